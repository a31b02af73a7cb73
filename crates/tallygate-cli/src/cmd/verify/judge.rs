//! Checks the answers of a scenario: every span against its bound, and every answer against the algorithm.

use std::time::Duration;

use tallygate::Limit;
use tallygate::history::{self, Record, Span};

use super::protocol::Recording;
use super::scenario::{self, Scenario};

/// What was found about a scenario, over all rounds.
#[derive(Debug, Clone, Default)]
pub(crate) struct Finding {
    pub(crate) decisions: u64,
    /// Calls that passed, and the units they took.
    pub(crate) admitted: u64,
    pub(crate) units: u64,
    /// Calls that may have been charged or not: for their keys only the bound is checked.
    pub(crate) unknown: u64,
    /// Calls that were not answered and not charged, and why the first was not.
    pub(crate) failed: u64,
    pub(crate) failure: Option<String>,
    /// The span that came nearest to its bound.
    pub(crate) tightest: Option<Span>,
    pub(crate) violations: u64,
    pub(crate) mismatches: u64,
    /// The first of either, as text.
    pub(crate) example: Option<String>,
    /// From the start to the last answer.
    pub(crate) took: Duration,
    /// Keys audited afterwards, and those of them without a TTL. `None` if there was no audit.
    pub(crate) audited: Option<(u64, u64)>,
    pub(crate) not_audited: Option<String>,
}

impl Finding {
    pub(crate) fn holds(&self) -> bool {
        self.violations == 0 && self.mismatches == 0 && self.orphans().unwrap_or(0) == 0
    }

    pub(crate) fn orphans(&self) -> Option<u64> {
        self.audited.map(|(_, orphans)| orphans)
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.decisions += other.decisions;
        self.admitted += other.admitted;
        self.units += other.units;
        self.unknown += other.unknown;
        self.failed += other.failed;
        self.violations += other.violations;
        self.mismatches += other.mismatches;
        self.took += other.took;
        self.failure = self.failure.take().or(other.failure);
        self.example = self.example.take().or(other.example);
        self.not_audited = self.not_audited.take().or(other.not_audited);
        self.audited = match (self.audited, other.audited) {
            (Some((keys, orphans)), Some(more)) => Some((keys + more.0, orphans + more.1)),
            (before, other) => before.or(other),
        };
        self.nearest(other.tightest);
    }

    fn nearest(&mut self, span: Option<Span>) {
        let room = |span: &Span| i128::from(span.allowed) - i128::from(span.admitted);
        self.tightest = [self.tightest, span].into_iter().flatten().min_by_key(room);
    }

    fn key(&mut self, limit: &Limit, subject: &str, records: &[Record], complete: bool) {
        let bound = history::bound(limit, records);
        self.nearest(bound.worst);
        self.violations += bound.violations.len() as u64;
        if let Some(span) = bound.violations.first() {
            self.example.get_or_insert_with(|| format!("{subject}: {span}"));
        }
        if !complete {
            return;
        }
        let wrong = history::replay(limit, records, history::SERVER_STEP_BACK);
        self.mismatches += wrong.len() as u64;
        if let Some(mismatch) = wrong.first() {
            self.example.get_or_insert_with(|| format!("{subject}, {mismatch}"));
        }
    }
}

/// Judges a scenario. Of several limits only the first ever denies, so the others must be charged exactly by the calls that
/// it lets pass: what they answer to those is all there is to know about them.
pub(crate) fn judge(scenario: &Scenario, recording: &Recording) -> Finding {
    let mut finding = recording.finding.clone();
    for (place, (limit, by_key)) in scenario.limits.iter().zip(&recording.records).enumerate() {
        for (key, records) in (0..).zip(by_key) {
            let complete = recording.unknown.get(usize::from(key)).is_some_and(|unknown| *unknown == 0);
            let subject = scenario::subject(key);
            if place == 0 {
                let passed = records.iter().filter(|record| record.allowed);
                let (calls, units) = passed.fold((0, 0), |(calls, units), record| (calls + 1, units + record.cost));
                finding.admitted += calls;
                finding.units += units;
                finding.key(limit, &subject, records, complete);
            } else {
                let charged: Vec<Record> = records.iter().filter(|record| record.allowed).cloned().collect();
                let nearest = finding.tightest;
                finding.key(limit, &subject, &charged, complete);
                // How near a limit that never denies comes to its bound means nothing.
                finding.tightest = nearest;
            }
        }
    }
    finding
}

#[cfg(test)]
mod tests {
    use tallygate::{Limiter, MemoryStore};

    use super::super::protocol::Entry;
    use super::*;

    /// What an honest store answers.
    fn honest(slug: &str) -> (Scenario, Recording) {
        let scenario = Scenario::new(slug, Duration::from_millis(20)).unwrap();
        let limiter = Limiter::new(MemoryStore::new());
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let policies = scenario.policies("judge");
        let mut random = scenario::Random::new(7);
        let mut recording = Recording::new(&scenario);
        for _ in 0..20_000 {
            let (key, cost) = scenario::pick(&mut random).unwrap();
            let subject = scenario::subject(key);
            let checks = scenario.checks(&policies, &subject, cost).unwrap();
            let decision = runtime.block_on(limiter.check_all(&checks)).unwrap();
            recording.add(Entry::answer(key, cost, &decision)).unwrap();
        }
        (scenario, recording)
    }

    #[test]
    fn honest_answers_pass() {
        for slug in ["token_bucket", "sliding_log", "two_limits"] {
            let (scenario, recording) = honest(slug);
            let finding = judge(&scenario, &recording);
            assert!(finding.holds(), "{slug}: {:?}", finding.example);
            assert!(finding.admitted > 0 && finding.admitted < finding.decisions, "{slug}");
        }
    }

    #[test]
    fn one_denial_turned_into_an_admission_breaks_the_bound() {
        let (scenario, mut recording) = honest("sliding_log");
        let denied = recording.records[0][0].iter_mut().find(|record| !record.allowed).unwrap();
        denied.allowed = true;
        let finding = judge(&scenario, &recording);
        assert!(finding.violations > 0 && finding.mismatches > 0);
        assert!(finding.example.unwrap().contains("but the maximum is"));
    }

    #[test]
    fn one_unit_too_many_remaining_is_a_mismatch() {
        let (scenario, mut recording) = honest("token_bucket");
        let allowed = recording.records[0][5].iter_mut().find(|record| record.allowed).unwrap();
        allowed.remaining = allowed.remaining.map(|left| left + 1);
        let finding = judge(&scenario, &recording);
        assert_eq!(finding.violations, 0);
        assert!(finding.mismatches > 0);
        // The same on a key with an answer that never came: nobody can tell what was right.
        recording.unknown[5] = 1;
        assert!(judge(&scenario, &recording).holds());
    }

    /// As if a denied call had been charged to the limit that had room for it.
    #[test]
    fn a_refused_call_that_is_charged_all_the_same_is_found() {
        let (scenario, mut recording) = honest("two_limits");
        let loose = &mut recording.records[1][0];
        let last = loose.iter_mut().rfind(|record| record.allowed).unwrap();
        last.remaining = last.remaining.map(|left| left - 1);
        let finding = judge(&scenario, &recording);
        assert_eq!((finding.violations, finding.mismatches), (0, 1));
    }
}
