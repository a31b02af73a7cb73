//! A policy set in force, and what was counted under each of its policies.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use tallygate::{Mode, PolicySet, Ruling, Source, Verb, Verdict, words};

use crate::decision_event::DecisionEvent;

/// A policy set and its counts. The counts of a policy outlive the set: the next one takes them over by name.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) set: PolicySet,
    pub(crate) generation: u64,
    /// One for each policy, in the order of [`PolicySet::policies`].
    pub(crate) counters: Vec<Arc<PolicyCounters>>,
}

words! {
    /// What became of a policy's rulings.
    pub(crate) enum RulingOutcome {
        Allowed = "allowed",
        Denied = "denied",
        ShadowAllowed = "shadow_allowed",
        ShadowDenied = "shadow_denied",
    }
}

impl RulingOutcome {
    fn of(ruling: &Ruling) -> Self {
        match (ruling.mode() == Mode::Shadow, ruling.status().allowed()) {
            (false, true) => Self::Allowed,
            (false, false) => Self::Denied,
            (true, true) => Self::ShadowAllowed,
            (true, false) => Self::ShadowDenied,
        }
    }
}

const OUTCOMES: usize = RulingOutcome::ALL.len();
const SOURCES: usize = Source::ALL.len();

#[derive(Debug, Default)]
pub(crate) struct PolicyCounters {
    decisions: [[AtomicU64; SOURCES]; OUTCOMES],
    units: [AtomicU64; OUTCOMES],
    pub(crate) near: AtomicU64,
    pub(crate) refunded: AtomicU64,
}

impl Loaded {
    /// `set` in force, after `before`.
    pub(crate) fn new(set: PolicySet, before: Option<&Self>) -> Self {
        let mut known: HashMap<(&str, &str), &Arc<PolicyCounters>> = HashMap::new();
        if let Some(before) = before {
            let policies = before.set.policies().map(|policy| (policy.domain(), policy.name()));
            known.extend(policies.zip(&before.counters));
        }
        let counters = set.policies().map(|policy| known.get(&(policy.domain(), policy.name())).copied().cloned());
        let counters = counters.map(Option::unwrap_or_default).collect();
        Self { set, counters, generation: before.map_or(1, |before| before.generation + 1) }
    }

    pub(crate) fn observe(&self, event: &DecisionEvent<'_>) {
        for ruling in event.asked.and_then(|asked| asked.verdict()).into_iter().flat_map(Verdict::states) {
            self.counters[ruling.place()].count(ruling);
        }
    }
}

impl PolicyCounters {
    fn count(&self, ruling: &Ruling) {
        if ruling.refunded() > 0 {
            self.refunded.fetch_add(ruling.refunded(), Relaxed);
        }
        // What only looks or gives back is no decision.
        if ruling.action().verb != Verb::Check {
            return;
        }
        let outcome = RulingOutcome::of(ruling);
        let source = Source::ALL.iter().position(|source| *source == ruling.source()).unwrap_or(0);
        self.decisions[outcome as usize][source].fetch_add(1, Relaxed);
        self.units[outcome as usize].fetch_add(ruling.action().cost.get(), Relaxed);
        if ruling.near() {
            self.near.fetch_add(1, Relaxed);
        }
    }

    /// Decisions by outcome and source; those that never happened are left out.
    pub(crate) fn decisions(&self) -> impl Iterator<Item = (RulingOutcome, Source, u64)> {
        let pairs =
            RulingOutcome::ALL.iter().flat_map(|outcome| Source::ALL.iter().map(move |source| (*outcome, *source)));
        let counts = self.decisions.iter().flatten().map(|count| count.load(Relaxed));
        pairs.zip(counts).filter(|(_, count)| *count > 0).map(|((outcome, source), count)| (outcome, source, count))
    }

    /// Units asked for, by outcome; zero ones are left out.
    pub(crate) fn units(&self) -> impl Iterator<Item = (RulingOutcome, u64)> {
        let counts = self.units.iter().map(|count| count.load(Relaxed));
        RulingOutcome::ALL.iter().copied().zip(counts).filter(|(_, count)| *count > 0)
    }
}
