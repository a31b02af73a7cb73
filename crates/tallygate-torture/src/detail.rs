//! What each fault did to its callers, as a line.

use std::collections::BTreeMap;
use std::fmt;

use crate::history::{Call, End, Injected, Log};

/// One fault, seen from the callers. Times are in microseconds.
#[derive(Debug, Clone)]
pub struct Detail {
    /// The fault.
    pub fault: String,
    /// Its kind.
    pub kind: String,
    /// From its begin until everything was repaired.
    pub took: u64,
    /// Calls that ended meanwhile, by what answered them.
    pub by_source: BTreeMap<String, u64>,
    /// The latency of those: half of them, 99 of 100, all.
    pub latency: [u64; 3],
    /// For each state that was used, the longest time that it got no answer of the store.
    pub outages: BTreeMap<usize, u64>,
    /// From the repair to the first answer of the store to a later call; `None` if the next fault came first.
    pub recovery: Option<u64>,
}

/// One for each fault.
#[must_use]
pub fn details(log: &Log) -> Vec<Detail> {
    let after = |place: usize| log.injected.get(place + 1).map_or(u64::MAX, |next| next.from);
    log.injected.iter().enumerate().map(|(place, injected)| detail(log, injected, after(place))).collect()
}

fn detail(log: &Log, injected: &Injected, next: u64) -> Detail {
    let meanwhile: Vec<&Call> =
        log.calls.iter().filter(|call| call.ended >= injected.from && call.sent <= injected.to).collect();
    let mut by_source: BTreeMap<String, u64> = BTreeMap::new();
    let mut latency = Vec::new();
    let mut asked: BTreeMap<usize, Vec<(u64, bool)>> = BTreeMap::new();
    for call in &meanwhile {
        if call.end == End::HungUp {
            continue;
        }
        *by_source.entry(call.end.name()).or_default() += 1;
        latency.push(call.ended - call.sent);
        for part in &call.parts {
            asked.entry(part.key).or_default().push((call.ended, part.seen.is_some()));
        }
    }
    latency.sort_unstable();
    let share = |hundredth: usize| latency.get((latency.len() * hundredth / 100).min(latency.len().saturating_sub(1)));
    let latency = [50, 99, 100].map(|hundredth| share(hundredth).copied().unwrap_or(0));
    let later = log.calls.iter().filter(|call| call.sent > injected.to && call.sent < next && call.by_store());
    let recovery = later.map(|call| call.ended - injected.to).min();
    Detail {
        fault: injected.fault.to_string(),
        kind: injected.fault.kind(),
        took: injected.to - injected.from,
        by_source,
        latency,
        outages: asked.into_iter().map(|(key, answers)| (key, longest_outage(answers))).collect(),
        recovery,
    }
}

/// From the first call without an answer of the store to the last before the next answer.
fn longest_outage(mut answers: Vec<(u64, bool)>) -> u64 {
    answers.sort_unstable();
    let (mut longest, mut since) = (0, None);
    for (at, by_store) in answers {
        match (by_store, since) {
            (true, _) => since = None,
            (false, None) => since = Some(at),
            (false, Some(from)) => longest = longest.max(at - from),
        }
    }
    longest
}

impl fmt::Display for Detail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [half, most, all] = self.latency.map(|micros| micros / 100);
        let tenths = |tenths: u64| format!("{}.{}", tenths / 10, tenths % 10);
        let sources: Vec<String> = self.by_source.iter().map(|(name, count)| format!("{name} {count}")).collect();
        write!(
            f,
            "{} ({} ms): {}; p50 {} p99 {} max {} ms; longest outage of a state {} ms; back {}",
            self.fault,
            self.took / 1000,
            sources.join(", "),
            tenths(half),
            tenths(most),
            tenths(all),
            self.outages.values().max().unwrap_or(&0) / 1000,
            self.recovery.map_or("later".to_owned(), |micros| format!("after {} ms", tenths(micros / 100)))
        )
    }
}
