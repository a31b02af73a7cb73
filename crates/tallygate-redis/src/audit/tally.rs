//! Running totals of an audit, in constant memory.

use std::collections::HashMap;

use tallygate::Algorithm;
use tallygate::clock::Timestamp;
use tallygate::key::decode_policy;

use crate::overrides::KIND;

use super::report::{AuditReport, LargeKey, Usage};
use super::sweep::Sweep;
use crate::holds::OpenRecord;

/// The maximum number of policies counted separately. More than this come from user input.
const POLICIES: usize = 1000;
const LISTED: usize = 20;
const LARGEST: usize = 10;

pub(super) struct Tally<'a> {
    sweep: &'a Sweep,
    usage: HashMap<(Option<String>, &'static str), Usage>,
    pub(super) report: AuditReport,
    /// By the clock of the server that is scanned.
    pub(super) now: Timestamp,
}

impl<'a> Tally<'a> {
    pub(super) fn new(sweep: &'a Sweep) -> Self {
        let report = AuditReport { complete: true, ..AuditReport::default() };
        Self { sweep, usage: HashMap::new(), report, now: Timestamp::from_micros(0) }
    }

    pub(super) fn is_full(&self) -> bool {
        self.report.keys >= self.sweep.at_most
    }

    /// Returns whether the key is ours, has no TTL, and was not meant to last.
    pub(super) fn add(&mut self, key: &[u8], bytes: u64, expires: bool) -> bool {
        let written = std::str::from_utf8(key).ok();
        let ours = written.and_then(|key| decode_policy(key, &self.sweep.prefix));
        let ours = ours.and_then(|(policy, kind)| Some((policy, kind_name(policy, kind)?)));
        let lasting = !expires && ours.is_some_and(|(_, kind)| kind == COUNTER);
        let orphan = !expires && !lasting;
        let report = &mut self.report;
        report.keys += 1;
        report.bytes += bytes;
        report.orphans += u64::from(orphan);
        report.foreign += u64::from(orphan && ours.is_none());
        report.lasting_counters += u64::from(lasting);
        let name = || String::from_utf8_lossy(key).into_owned();
        if orphan && report.listed.len() < LISTED {
            report.listed.push(name());
        }
        let largest = &mut report.largest;
        if largest.len() < LARGEST || largest.last().is_some_and(|least| least.bytes < bytes) {
            let place = largest.partition_point(|large| large.bytes >= bytes);
            largest.insert(place, LargeKey { key: name(), bytes });
            largest.truncate(LARGEST);
        }
        let (policy, kind) = ours.map_or((None, "other"), |(policy, kind)| (Some(policy), kind));
        let usage = self.usage_of(policy, kind);
        usage.keys += 1;
        usage.bytes += bytes;
        usage.orphans += u64::from(orphan);
        orphan && ours.is_some()
    }

    fn usage_of(&mut self, policy: Option<&str>, kind: &'static str) -> &mut Usage {
        let mut policy = policy.map(str::to_owned);
        if self.usage.len() >= POLICIES && !self.usage.contains_key(&(policy.clone(), kind)) {
            policy = None;
        }
        let usage = self.usage.entry((policy.clone(), kind));
        usage.or_insert_with(|| Usage { policy, kind, ..Usage::default() })
    }

    /// Whether a key is that of a record of a hold.
    pub(super) fn is_record(&self, key: &[u8]) -> bool {
        let kind = std::str::from_utf8(key).ok().and_then(|key| decode_policy(key, &self.sweep.prefix));
        kind.is_some_and(|(policy, kind)| kind_name(policy, kind) == Some(HOLDS) && !kind.ends_with("-open"))
    }

    /// Counts an open hold under each of its policies.
    pub(super) fn add_hold(&mut self, record: &OpenRecord) {
        let sweep = self.sweep;
        for (key, units) in &record.parts {
            let Some((policy, _)) = decode_policy(key, &sweep.prefix) else { continue };
            if sweep.policies.as_ref().is_none_or(|wanted| policy.starts_with(wanted)) {
                let usage = self.usage_of(Some(policy), HOLDS);
                usage.open_holds += 1;
                usage.held = usage.held.saturating_add(*units);
            }
        }
    }

    pub(super) fn into_report(self) -> AuditReport {
        let mut usage: Vec<Usage> = self.usage.into_values().collect();
        usage.sort_by(|a, b| (b.bytes, &a.policy, a.kind).cmp(&(a.bytes, &b.policy, b.kind)));
        AuditReport { usage, ..self.report }
    }
}

const COUNTER: &str = "counter";
/// Live limits: their policy, and what they are called.
const OVERRIDES: &str = "overrides";
/// What is held of a state, and the records of holds.
const HOLDS: &str = "holds";

/// The name of a key's kind, if it is one of ours.
fn kind_name(policy: &str, kind: &str) -> Option<&'static str> {
    if (policy, kind) == ("counter", "n") {
        return Some(COUNTER);
    }
    if policy == OVERRIDES && (kind == KIND || kind == "o-revision") {
        return Some(OVERRIDES);
    }
    if let Some((state, rest)) = kind.split_once('-') {
        let record = rest.len() == 32 && rest.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'));
        let of_state = Algorithm::ALL.iter().any(|algorithm| algorithm.kind() == state);
        return (of_state && (rest == "open" || record)).then_some(HOLDS);
    }
    // Both fixed windows have the same kind: their states are the same.
    Algorithm::ALL.iter().find(|algorithm| algorithm.kind() == kind).map(|algorithm| algorithm.name())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lasting_counters_are_not_orphans_and_foreign_keys_are_counted_separately() {
        let sweep = Sweep::of("tallygate").unwrap();
        let mut tally = Tally::new(&sweep);
        assert!(!tally.add(b"tallygate:{a}:api:tb", 100, true));
        assert!(tally.add(b"tallygate:{a}:api:fw", 100, false));
        assert!(!tally.add(b"tallygate:{a}:counter:n", 50, false));
        assert!(!tally.add(b"tallygate:{a}:api:n", 50, false));
        assert!(!tally.add(b"tallygate:\xff", 70, false));
        let report = tally.into_report();
        assert_eq!((report.keys, report.bytes, report.orphans, report.foreign), (5, 370, 3, 2));
        assert_eq!(report.lasting_counters, 1);
        assert_eq!(report.listed[2], "tallygate:\u{fffd}");
        assert_eq!(report.usage[0].kind, "other");
        assert_eq!(report.largest.len(), 5);
    }

    #[test]
    fn the_keys_of_holds_belong_to_their_policy() {
        let sweep = Sweep::of("tallygate").unwrap();
        let mut tally = Tally::new(&sweep);
        tally.add(b"tallygate:{a}:api:tb", 900, true);
        tally.add(b"tallygate:{a}:api:tb-open", 100, true);
        tally.add(b"tallygate:{a}:api:tb-0123456789abcdef0123456789abcdef", 200, true);
        assert!(tally.add(b"tallygate:{a}:api:sl-open", 300, false), "it is ours, and has no TTL");
        for foreign in ["tb-opened", "tb-", "xx-open", "tb-0123456789ABCDEF0123456789abcdef", "tb-0123"] {
            tally.add(format!("tallygate:{{a}}:api:{foreign}").as_bytes(), 1, true);
        }
        let report = tally.into_report();
        let usage: Vec<_> =
            report.usage.iter().map(|usage| (usage.policy.as_deref(), usage.kind, usage.keys)).collect();
        assert_eq!(usage, [(Some("api"), "token_bucket", 1), (Some("api"), "holds", 3), (None, "other", 5)]);
        assert_eq!((report.orphans, report.foreign), (1, 0));
    }

    #[test]
    fn memory_is_bounded() {
        let sweep = Sweep { at_most: 5000, ..Sweep::of("t").unwrap() };
        let mut tally = Tally::new(&sweep);
        for number in 0..5000_u64 {
            assert!(!tally.is_full());
            tally.add(format!("t:{{s}}:p{number}:sl").as_bytes(), number, false);
        }
        assert!(tally.is_full());
        let report = tally.into_report();
        assert_eq!(report.usage.len(), POLICIES + 1);
        assert_eq!(report.usage.iter().map(|usage| usage.orphans).sum::<u64>(), 5000);
        let bytes: Vec<u64> = report.largest.iter().map(|large| large.bytes).collect();
        assert_eq!(bytes, (4990..5000).rev().collect::<Vec<_>>());
        assert_eq!(report.listed.len(), LISTED);
    }
}
