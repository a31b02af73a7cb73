//! What has been seen so far, in the same memory however many keys there are.

use std::collections::HashMap;

use tallygate::{Algorithm, decode_policy};

use super::report::{AuditReport, LargeKey, ServerReport, Usage};
use super::sweep::Sweep;

/// Policies told apart; who has more of them has them from user input.
const POLICIES: usize = 1000;
const LISTED: usize = 20;
const LARGEST: usize = 10;

pub(super) struct Tally<'a> {
    sweep: &'a Sweep,
    usage: HashMap<(Option<String>, &'static str), Usage>,
    pub(super) report: AuditReport,
}

/// What a key turned out to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    /// It expires, or was made to last.
    Sound,
    /// Ours, and it would never expire.
    Orphan,
    /// Not ours, and it would never expire.
    Foreign,
}

impl<'a> Tally<'a> {
    pub(super) fn new(sweep: &'a Sweep) -> Self {
        let report = AuditReport { complete: true, ..AuditReport::default() };
        Self { sweep, usage: HashMap::new(), report }
    }

    pub(super) fn is_full(&self) -> bool {
        self.report.keys >= self.sweep.most
    }

    pub(super) fn add(&mut self, key: &[u8], bytes: u64, expires: bool) -> Found {
        let written = std::str::from_utf8(key).ok();
        let ours = written.and_then(|key| decode_policy(key, &self.sweep.prefix));
        let ours = ours.and_then(|(policy, kind)| Some((policy, kind_name(policy, kind)?)));
        let found = match ours {
            _ if expires => Found::Sound,
            Some((_, COUNTER)) => {
                self.report.lasting_counters += 1;
                Found::Sound
            }
            Some(_) => Found::Orphan,
            None => Found::Foreign,
        };
        let orphan = found != Found::Sound;
        self.report.keys += 1;
        self.report.bytes += bytes;
        self.report.orphans += u64::from(orphan);
        self.report.foreign += u64::from(found == Found::Foreign);
        let name = || String::from_utf8_lossy(key).into_owned();
        if orphan && self.report.listed.len() < LISTED {
            self.report.listed.push(name());
        }
        let largest = &mut self.report.largest;
        if largest.len() < LARGEST || largest.last().is_some_and(|least| least.bytes < bytes) {
            let place = largest.partition_point(|large| large.bytes >= bytes);
            largest.insert(place, LargeKey { key: name(), bytes });
            largest.truncate(LARGEST);
        }
        self.count(ours, bytes, orphan);
        found
    }

    fn count(&mut self, ours: Option<(&str, &'static str)>, bytes: u64, orphan: bool) {
        let (mut policy, kind) = match ours {
            Some((policy, kind)) => (Some(policy.to_owned()), kind),
            None => (None, "other"),
        };
        if self.usage.len() >= POLICIES && !self.usage.contains_key(&(policy.clone(), kind)) {
            policy = None;
        }
        let usage = self.usage.entry((policy.clone(), kind));
        let usage = usage.or_insert_with(|| Usage { policy, kind, ..Usage::default() });
        usage.keys += 1;
        usage.bytes += bytes;
        usage.orphans += u64::from(orphan);
    }

    pub(super) fn into_report(self, servers: Vec<ServerReport>) -> AuditReport {
        let mut usage: Vec<Usage> = self.usage.into_values().collect();
        usage.sort_by(|a, b| (b.bytes, &a.policy, a.kind).cmp(&(a.bytes, &b.policy, b.kind)));
        AuditReport { usage, servers, ..self.report }
    }
}

const COUNTER: &str = "counter";

/// The name of what ends a key, if it is an ending of ours.
fn kind_name(policy: &str, kind: &str) -> Option<&'static str> {
    if (policy, kind) == ("counter", "n") {
        return Some(COUNTER);
    }
    // Both fixed windows end alike: their states are the same.
    Algorithm::ALL.into_iter().find(|algorithm| algorithm.kind() == kind).map(Algorithm::name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lasting_counters_are_no_orphans_and_strangers_are_told_apart() {
        let sweep = Sweep::of("tallygate").unwrap();
        let mut tally = Tally::new(&sweep);
        assert_eq!(tally.add(b"tallygate:{a}:api:tb", 100, true), Found::Sound);
        assert_eq!(tally.add(b"tallygate:{a}:api:fw", 100, false), Found::Orphan);
        assert_eq!(tally.add(b"tallygate:{a}:counter:n", 50, false), Found::Sound);
        assert_eq!(tally.add(b"tallygate:{a}:api:n", 50, false), Found::Foreign);
        assert_eq!(tally.add(b"tallygate:\xff", 70, false), Found::Foreign);
        let report = tally.into_report(Vec::new());
        assert_eq!((report.keys, report.bytes, report.orphans, report.foreign), (5, 370, 3, 2));
        assert_eq!(report.lasting_counters, 1);
        assert_eq!(report.listed[2], "tallygate:\u{fffd}");
        assert_eq!(report.usage[0].kind, "other");
        assert_eq!(report.largest.len(), 5);
    }

    #[test]
    fn memory_is_bounded() {
        let sweep = Sweep::of("t").unwrap().at_most(5000);
        let mut tally = Tally::new(&sweep);
        for number in 0..5000_u64 {
            assert!(!tally.is_full());
            tally.add(format!("t:{{s}}:p{number}:sl").as_bytes(), number, false);
        }
        assert!(tally.is_full());
        let report = tally.into_report(Vec::new());
        assert_eq!(report.usage.len(), POLICIES + 1);
        assert_eq!(report.usage.iter().map(|usage| usage.orphans).sum::<u64>(), 5000);
        let bytes: Vec<u64> = report.largest.iter().map(|large| large.bytes).collect();
        assert_eq!(bytes, (4990..5000).rev().collect::<Vec<_>>());
        assert_eq!(report.listed.len(), LISTED);
    }
}
