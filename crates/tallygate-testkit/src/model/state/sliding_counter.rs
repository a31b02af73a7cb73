//! Section 6: the window in force, and the share of the one before that is still within a window.

use super::super::{Fraction, Rule};

#[derive(Debug, Clone)]
pub(in super::super) struct SlidingCounter {
    /// The index of the window, since 1970, of the newest call.
    newest: u64,
    /// Admitted units with the indices of their windows.
    calls: Vec<(u64, u64)>,
}

impl SlidingCounter {
    pub(super) fn fresh(rule: &Rule, now: u64) -> Self {
        Self { newest: now / rule.window, calls: Vec::new() }
    }

    /// The instant of a decision: only the start of a window is held.
    fn held(&self, rule: &Rule, now: u64) -> u64 {
        now.max(self.own_instant(rule))
    }

    fn units_in(&self, window: u64) -> u64 {
        self.calls.iter().filter(|(index, _)| *index == window).map(|(_, units)| units).sum()
    }

    /// Everything in this window, and of the one before the share of it that is less than a window ago, in whole ticks.
    fn estimate(&self, rule: &Rule, now: u64) -> Fraction {
        let held = self.held(rule, now);
        let index = held / rule.window;
        let before = index.checked_sub(1).map_or(0, |before| self.units_in(before));
        let still_within = rule.window - rule.whole_ticks(held - index * rule.window);
        let parts =
            i128::from(self.units_in(index)) * i128::from(rule.window) + i128::from(before) * i128::from(still_within);
        Fraction::new(parts, i128::from(rule.window))
    }

    pub(super) fn level(&self, rule: &Rule, now: u64) -> Fraction {
        let estimate = self.estimate(rule, now);
        Fraction::new(i128::from(rule.amount) * estimate.over - estimate.parts, estimate.over)
    }

    pub(super) fn charge(&mut self, rule: &Rule, now: u64, units: u64) {
        self.newest = self.held(rule, now) / rule.window;
        self.calls.push((self.newest, units));
        self.calls.retain(|(index, units)| index + 1 >= self.newest && *units > 0);
    }

    /// From the window in force if the charge is not before it, then from the one before if it is not before that.
    pub(super) fn refund(&mut self, rule: &Rule, now: u64, charged_at: u64, units: u64) -> u64 {
        let index = self.held(rule, now) / rule.window;
        let mut left = units;
        for window in [Some(index), index.checked_sub(1)].into_iter().flatten() {
            if charged_at / rule.window >= window {
                for (_, used) in self.calls.iter_mut().filter(|(index, _)| *index == window) {
                    let given = left.min(*used);
                    (*used, left) = (*used - given, left - given);
                }
            }
        }
        if left < units {
            self.newest = index;
        }
        units - left
    }

    pub(super) fn own_instant(&self, rule: &Rule) -> u64 {
        self.newest * rule.window
    }

    pub(super) fn is_written_under(&self, old: &Rule, rule: &Rule) -> bool {
        let counts =
            [Some(self.newest), self.newest.checked_sub(1)].into_iter().flatten().map(|index| self.units_in(index));
        old.window == rule.window && old.tick == rule.tick && counts.max() <= Some(rule.amount)
    }

    /// Rounded up.
    pub(super) fn used(&self, rule: &Rule, now: u64) -> u64 {
        self.estimate(rule, now).whole_up()
    }
}
