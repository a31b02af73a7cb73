//! Section 7: every admitted call that is less than a window ago.

use std::collections::VecDeque;

use super::super::{Fraction, Rule};

/// Expired calls that an admitted one drops.
const DROPPED: usize = 16;
/// Calls that a refund looks at.
const REFUNDED: usize = 1000;

/// The calls, oldest first.
#[derive(Debug, Clone, Default)]
pub(in super::super) struct SlidingLog(VecDeque<Call>);

/// A call took the units from `first` up to `end`, counted from the beginning of the log. Between two calls some may be
/// missing, because they were refunded: they count as long as a call before them does.
#[derive(Debug, Clone)]
struct Call {
    at: u64,
    first: u64,
    end: u64,
}

impl SlidingLog {
    fn held(&self, rule: &Rule, now: u64) -> u64 {
        now.max(self.own_instant(rule))
    }

    /// How many calls, from the oldest on, no longer count.
    fn expired(&self, rule: &Rule, now: u64) -> usize {
        let held = self.held(rule, now);
        self.0.partition_point(|call| call.at + rule.window <= held)
    }

    /// The end of the newest call.
    fn end(&self) -> u64 {
        self.0.back().map_or(0, |newest| newest.end)
    }

    pub(super) fn level(&self, rule: &Rule, now: u64) -> Fraction {
        Fraction::new(i128::from(rule.amount) - i128::from(self.used(rule, now)), 1)
    }

    pub(super) fn charge(&mut self, rule: &Rule, now: u64, units: u64) {
        let (held, expired, first) = (self.held(rule, now), self.expired(rule, now), self.end());
        self.0.push_back(Call { at: held, first, end: first + units });
        self.0.drain(..expired.min(DROPPED));
    }

    pub(super) fn refund(&mut self, rule: &Rule, now: u64, charged_at: u64, units: u64) -> u64 {
        if charged_at + rule.window <= self.held(rule, now) {
            return 0;
        }
        match self.0.back_mut() {
            Some(newest) if newest.at == charged_at && newest.end - newest.first >= units => {
                newest.end -= units;
                self.0.retain(|call| call.end > call.first);
                units
            }
            _ => self.refund_oldest(self.expired(rule, now), units),
        }
    }

    fn refund_oldest(&mut self, expired: usize, units: u64) -> u64 {
        let Some(oldest) = self.0.get(expired) else { return 0 };
        let last = self.0.iter().skip(expired).take(REFUNDED).next_back().map_or(0, |call| call.end);
        let given = units.min(last - oldest.first);
        let from = oldest.first + given;
        let gone = self.0.iter().skip(expired).filter(|call| call.end <= from).count();
        self.0.drain(expired..expired + gone);
        if let Some(oldest) = self.0.get_mut(expired) {
            oldest.first = from;
        }
        given
    }

    pub(super) fn own_instant(&self, _: &Rule) -> u64 {
        self.0.back().map_or(0, |newest| newest.at)
    }

    pub(super) fn is_written_under(&self, old: &Rule, rule: &Rule) -> bool {
        old.window == rule.window
    }

    pub(super) fn used(&self, rule: &Rule, now: u64) -> u64 {
        self.0.get(self.expired(rule, now)).map_or(0, |oldest| self.end() - oldest.first)
    }
}
