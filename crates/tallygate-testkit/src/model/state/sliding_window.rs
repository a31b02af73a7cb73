//! Section 5: units per sub-window, of which the last `slots` count, and the one in force.

use std::collections::BTreeMap;

use super::super::{Fraction, Rule};

/// Units by the index of the sub-window since 1970.
#[derive(Debug, Clone, Default)]
pub(in super::super) struct SlidingWindow(BTreeMap<u64, u64>);

impl SlidingWindow {
    /// The sub-window in force.
    fn held(&self, rule: &Rule, now: u64) -> u64 {
        let newest = self.0.last_key_value().map_or(0, |(&index, _)| index);
        newest.max(now / rule.slot())
    }

    /// The first sub-window that counts.
    fn oldest_live(&self, rule: &Rule, now: u64) -> u64 {
        self.held(rule, now).saturating_sub(rule.slots)
    }

    pub(super) fn level(&self, rule: &Rule, now: u64) -> Fraction {
        Fraction::new(i128::from(rule.amount) - i128::from(self.used(rule, now)), 1)
    }

    pub(super) fn charge(&mut self, rule: &Rule, now: u64, units: u64) {
        let (held, oldest) = (self.held(rule, now), self.oldest_live(rule, now));
        self.0.retain(|&index, _| index >= oldest);
        *self.0.entry(held).or_default() += units;
    }

    /// From the sub-window of the charge, then oldest first.
    pub(super) fn refund(&mut self, rule: &Rule, now: u64, charged_at: u64, units: u64) -> u64 {
        let (oldest, own) = (self.oldest_live(rule, now), charged_at / rule.slot());
        if own < oldest {
            return 0;
        }
        let mut left = units;
        let mut take = |used: &mut u64| {
            let given = left.min(*used);
            (*used, left) = (*used - given, left - given);
        };
        self.0.get_mut(&own).map(&mut take);
        self.0.range_mut(oldest..).for_each(|(_, used)| take(used));
        units - left
    }

    pub(super) fn own_instant(&self, rule: &Rule) -> u64 {
        self.0.last_key_value().map_or(0, |(&index, _)| index * rule.slot())
    }

    pub(super) fn is_written_under(&self, old: &Rule, rule: &Rule) -> bool {
        old.window == rule.window && old.slots == rule.slots
    }

    pub(super) fn used(&self, rule: &Rule, now: u64) -> u64 {
        self.0.range(self.oldest_live(rule, now)..).map(|(_, used)| used).sum()
    }
}
