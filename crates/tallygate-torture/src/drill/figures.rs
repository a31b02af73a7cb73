//! What a history says in a few numbers. Times are in microseconds.

use std::collections::BTreeMap;

use crate::history::{Call, End, Log};
use crate::schedule::Schedule;

/// `12.3 ms`
pub fn millis(micros: u64) -> String {
    format!("{}.{} ms", micros / 1000, micros % 1000 / 100)
}

/// Times in order, of which shares are asked.
#[derive(Debug)]
pub struct Times(Vec<u64>);

impl Times {
    /// How long calls took.
    pub fn of<'a>(calls: impl Iterator<Item = &'a Call>) -> Self {
        Self::new(calls.map(|call| call.ended - call.sent).collect())
    }

    pub fn new(mut times: Vec<u64>) -> Self {
        times.sort_unstable();
        Self(times)
    }

    pub fn count(&self) -> u64 {
        self.0.len() as u64
    }

    /// In thousandths: 500 is the median, 1000 the longest.
    pub fn share(&self, thousandth: usize) -> u64 {
        let place = (self.0.len() * thousandth / 1000).min(self.0.len().saturating_sub(1));
        self.0.get(place).copied().unwrap_or(0)
    }

    /// The median, the 99th percentile and the longest.
    pub fn spread(&self) -> String {
        [500, 990, 1000].map(|share| millis(self.share(share))).join(" / ")
    }
}

/// `store 123, on_error_local 4`
pub fn sources<'a>(calls: impl Iterator<Item = &'a Call>) -> String {
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    for call in calls {
        let source = match &call.end {
            End::Decided { source, .. } => source,
            End::Failed { kind, .. } => kind,
            End::HungUp => "hung up",
        };
        *counts.entry(source).or_default() += 1;
    }
    let counts: Vec<String> = counts.into_iter().map(|(source, count)| format!("{source} {count}")).collect();
    if counts.is_empty() { "none".to_owned() } else { counts.join(", ") }
}

/// The policy of a call: a drill asks for one.
pub fn policy(schedule: &Schedule, call: &Call) -> usize {
    call.parts.first().map_or(0, |part| part.key / schedule.load.subjects)
}

/// `(admitted by the store, admitted instead of it)` for each state.
pub fn admitted(log: &Log, states: usize) -> Vec<(u64, u64)> {
    let mut admitted = vec![(0, 0); states];
    for call in log.calls.iter().filter(|call| call.allowed()) {
        for part in &call.parts {
            let (by_store, instead) = &mut admitted[part.key];
            *if part.seen.is_some() { by_store } else { instead } += part.cost;
        }
    }
    admitted
}

/// Units that are used at the end and that no caller got an answer for, over all states of this policy. Its window must not pass
/// while the drill runs, and no state may be lost.
pub fn phantoms(log: &Log, schedule: &Schedule, policy: usize) -> u64 {
    let (subjects, capacity) = (schedule.load.subjects, schedule.load.limits[policy].capacity());
    let admitted = admitted(log, log.peeked.len());
    let states = (policy * subjects..(policy + 1) * subjects).filter_map(|key| {
        let used = capacity - log.peeked.get(key).copied().flatten()?.remaining;
        Some(used.saturating_sub(admitted[key].0))
    });
    states.sum()
}
