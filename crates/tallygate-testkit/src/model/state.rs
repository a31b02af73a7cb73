//! What is kept for a key: one file for each kind, with the same verbs.

mod calendar_window;
mod fixed_window;
mod sliding_counter;
mod sliding_log;
mod sliding_window;
mod token_bucket;

use tallygate::Algorithm;

use super::{Fraction, Rule};
use calendar_window::CalendarWindow;
use fixed_window::FixedWindow;
use sliding_counter::SlidingCounter;
use sliding_log::SlidingLog;
use sliding_window::SlidingWindow;
use token_bucket::TokenBucket;

#[derive(Debug, Clone)]
pub(super) enum State {
    TokenBucket(TokenBucket),
    FixedWindow(FixedWindow),
    SlidingWindow(SlidingWindow),
    SlidingCounter(SlidingCounter),
    SlidingLog(SlidingLog),
    CalendarWindow(CalendarWindow),
}

/// Calls the same verb of every kind.
macro_rules! of_each {
    ($state:expr, $kind:ident => $then:expr) => {
        match $state {
            State::TokenBucket($kind) => $then,
            State::FixedWindow($kind) => $then,
            State::SlidingWindow($kind) => $then,
            State::SlidingCounter($kind) => $then,
            State::SlidingLog($kind) => $then,
            State::CalendarWindow($kind) => $then,
        }
    };
}

impl State {
    /// The state of an unused key.
    pub(super) fn fresh(rule: &Rule, now: u64) -> Self {
        match rule.algorithm {
            Algorithm::TokenBucket => Self::TokenBucket(TokenBucket::fresh(rule, now)),
            Algorithm::FixedWindow | Algorithm::FixedWindowFromFirstCall => {
                Self::FixedWindow(FixedWindow::fresh(rule, now))
            }
            Algorithm::SlidingWindow => Self::SlidingWindow(SlidingWindow::default()),
            Algorithm::SlidingCounter => Self::SlidingCounter(SlidingCounter::fresh(rule, now)),
            Algorithm::SlidingLog => Self::SlidingLog(SlidingLog::default()),
            Algorithm::CalendarWindow => Self::CalendarWindow(CalendarWindow::fresh(rule, now)),
            other => panic!("{other} has no model: add a file to model/state"),
        }
    }

    /// How much can be had at an instant, exactly.
    pub(super) fn level(&self, rule: &Rule, now: u64) -> Fraction {
        of_each!(self, state => state.level(rule, now))
    }

    /// Takes units, which can be had.
    pub(super) fn charge(&mut self, rule: &Rule, now: u64, units: u64) {
        of_each!(self, state => state.charge(rule, now, units));
    }

    /// Gives back up to `units`; returns how many.
    pub(super) fn refund(&mut self, rule: &Rule, now: u64, charged_at: u64, units: u64) -> u64 {
        of_each!(self, state => state.refund(rule, now, charged_at, units))
    }

    /// No decision is computed as of an earlier instant than this.
    pub(super) fn own_instant(&self, rule: &Rule) -> u64 {
        of_each!(self, state => state.own_instant(rule))
    }

    /// Whether a state written under the numbers `old` can be used under `rule`.
    pub(super) fn fits(&self, old: &Rule, rule: &Rule, now: u64) -> bool {
        let alike = of_each!(self, state => state.is_written_under(old, rule));
        alike
            && self.own_instant(old) <= now + rule.full()
            && if let Self::TokenBucket(bucket) = self { bucket.is_within(rule, now) } else { true }
    }

    /// What was used under the numbers `old`, as a state of `rule` as of now.
    pub(super) fn adopted(&self, old: &Rule, rule: &Rule, now: u64) -> Option<Self> {
        let used = match self {
            Self::TokenBucket(state) => return Some(Self::TokenBucket(state.adopted(old, rule, now))),
            Self::FixedWindow(state) => state.used(old, now),
            Self::SlidingWindow(state) => state.used(old, now),
            Self::SlidingCounter(state) => state.used(old, now),
            Self::SlidingLog(state) => state.used(old, now),
            Self::CalendarWindow(state) => state.used(old, now),
        };
        // Without units, a list is no state.
        let empty = used == 0 && matches!(self, Self::SlidingLog(_) | Self::SlidingWindow(_));
        (!empty).then(|| {
            let mut fresh = Self::fresh(rule, now);
            fresh.charge(rule, now, used.min(rule.amount));
            fresh
        })
    }
}
