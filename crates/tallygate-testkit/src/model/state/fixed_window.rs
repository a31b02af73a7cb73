//! Section 4: units per window, aligned to 1970 or begun by the first call.

use tallygate::Algorithm;

use super::super::{Fraction, Rule};

#[derive(Debug, Clone)]
pub(in super::super) struct FixedWindow {
    start: u64,
    used: u64,
}

impl FixedWindow {
    pub(super) fn fresh(rule: &Rule, now: u64) -> Self {
        let aligned = rule.algorithm == Algorithm::FixedWindow;
        Self { start: if aligned { now / rule.window * rule.window } else { now }, used: 0 }
    }

    /// The window in force at an instant.
    fn in_force(&self, rule: &Rule, now: u64) -> Self {
        let held = now.max(self.start);
        if self.used > 0 && held < self.start + rule.window { self.clone() } else { Self::fresh(rule, held) }
    }

    pub(super) fn level(&self, rule: &Rule, now: u64) -> Fraction {
        Fraction::new(i128::from(rule.amount) - i128::from(self.used(rule, now)), 1)
    }

    pub(super) fn charge(&mut self, rule: &Rule, now: u64, units: u64) {
        *self = self.in_force(rule, now);
        self.used += units;
    }

    pub(super) fn refund(&mut self, rule: &Rule, now: u64, charged_at: u64, units: u64) -> u64 {
        let window = self.in_force(rule, now);
        let given = if charged_at >= window.start { units.min(window.used) } else { 0 };
        if given > 0 {
            *self = Self { used: window.used - given, ..window };
        }
        given
    }

    pub(super) fn own_instant(&self, _: &Rule) -> u64 {
        self.start
    }

    pub(super) fn is_written_under(&self, old: &Rule, rule: &Rule) -> bool {
        let aligned = rule.algorithm == Algorithm::FixedWindow;
        old.window == rule.window && (!aligned || self.start.is_multiple_of(rule.window))
    }

    pub(super) fn used(&self, rule: &Rule, now: u64) -> u64 {
        self.in_force(rule, now).used
    }
}
