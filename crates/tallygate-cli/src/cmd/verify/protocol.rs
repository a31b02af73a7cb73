//! The answers, as lines of JSON from a worker to its parent, and recorded by key.

use std::time::Duration;

use anyhow::Context;
use serde::{Deserialize, Serialize};
use tallygate::clock::Timestamp;
use tallygate::history::Record;
use tallygate::{Cost, Decision, Status};

use super::judge::Finding;
use super::scenario::{KEYS, Scenario};

/// One message of a client or its worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Entry {
    /// Connected, and waiting to begin.
    Ready,
    /// The answer to a call, and for each limit `[remaining, retry_after_us, reset_after_us]`. All of them were charged if
    /// the call was allowed.
    Answer { key: u16, cost: u64, decided_at_us: u64, allowed: bool, statuses: Vec<[Option<u64>; 3]> },
    /// The call may have been charged or not.
    Unknown { key: u16 },
    /// The call was not answered, and nothing was charged.
    Failed { why: String },
    /// The last message of a worker.
    Done,
}

impl Entry {
    pub(crate) fn answer(key: u16, cost: Cost, decision: &Decision) -> Self {
        let micros = |wait: Duration| u64::try_from(wait.as_micros()).ok();
        let numbers = |status: &Status| {
            [Some(status.remaining()), status.retry_after().and_then(micros), micros(status.reset_after())]
        };
        Self::Answer {
            key,
            cost: cost.get(),
            decided_at_us: decision.decided_at().map_or(0, Timestamp::as_micros),
            allowed: decision.allowed(),
            statuses: decision.statuses().iter().map(numbers).collect(),
        }
    }
}

/// All answers of a scenario.
#[derive(Debug)]
pub(crate) struct Recording {
    /// For each limit, for each key.
    pub(crate) records: Vec<Vec<Vec<Record>>>,
    /// For each key, calls that may have been charged or not.
    pub(crate) unknown: Vec<u64>,
    /// What needs no check.
    pub(crate) finding: Finding,
}

impl Recording {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        let keys = usize::from(KEYS);
        let records = vec![vec![Vec::new(); keys]; scenario.limits.len()];
        Self { records, unknown: vec![0; keys], finding: Finding::default() }
    }

    pub(crate) fn add(&mut self, entry: Entry) -> anyhow::Result<()> {
        const NO_KEY: &str = "a worker named an unknown key";
        match entry {
            Entry::Answer { key, cost, decided_at_us, allowed, statuses } => {
                self.finding.decisions += 1;
                let decided_at = Timestamp::from_micros(decided_at_us);
                for (by_key, [remaining, retry, reset]) in self.records.iter_mut().zip(statuses) {
                    let [retry_after, reset_after] = [retry, reset].map(|micros| micros.map(Duration::from_micros));
                    let record = Record { decided_at, cost, allowed, remaining, retry_after, reset_after };
                    by_key.get_mut(usize::from(key)).context(NO_KEY)?.push(record);
                }
            }
            Entry::Unknown { key } => {
                self.finding.unknown += 1;
                *self.unknown.get_mut(usize::from(key)).context(NO_KEY)? += 1;
            }
            Entry::Failed { why } => {
                self.finding.failed += 1;
                self.finding.failure.get_or_insert(why);
            }
            Entry::Ready | Entry::Done => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use tallygate::{Check, Key, Limit, Limiter, MemoryStore};

    use super::*;

    #[test]
    fn what_was_written_is_read_and_recorded_as_it_was_decided() {
        let limits = ["10/min sliding_log", "1/min"].map(|text| text.parse::<Limit>().unwrap());
        let limiter = Limiter::new(MemoryStore::new());
        let cost = Cost::new(7).unwrap();
        let scenario = Scenario::new("two_limits", Duration::from_millis(20)).unwrap();
        for (key, limit) in (2..).zip(&limits) {
            let check = Check::new(Key::new("p", "zoë").unwrap(), limit);
            let decisions = [check.cost(cost), check].map(|check| limiter.check_now(check));
            for decision in decisions.into_iter().flatten() {
                let said = Entry::answer(key, cost, &decision);
                let written = serde_json::to_string(&said).unwrap();
                assert!(!written.contains('\n'));
                assert_eq!(serde_json::from_str::<Entry>(&written).unwrap(), said);
                let mut recording = Recording::new(&scenario);
                recording.add(said).unwrap();
                assert_eq!(recording.records[0][usize::from(key)], [Record::new(cost, &decision)]);
            }
        }
        let failed = Entry::Failed { why: "the store is unavailable:\nzoë".into() };
        let written = serde_json::to_string(&failed).unwrap();
        assert!(!written.contains('\n'));
        assert_eq!(serde_json::from_str::<Entry>(&written).unwrap(), failed);
        assert!(Recording::new(&scenario).add(Entry::Unknown { key: KEYS }).is_err());
    }
}
