//! Section 14: units per window of a calendar.

use super::super::{Fraction, Rule};

#[derive(Debug, Clone)]
pub(in super::super) struct CalendarWindow {
    start: u64,
    end: u64,
    used: u64,
}

impl CalendarWindow {
    pub(super) fn fresh(rule: &Rule, now: u64) -> Self {
        let (start, end) = match rule.calendar {
            Some(calendar) => calendar.window_of(now),
            None => {
                // Weeks begin on Mondays, three days before 1970.
                let days = 3 * 86_400_000_000;
                let start = (now + days) / rule.window * rule.window - days;
                (start, start + rule.window)
            }
        };
        Self { start, end, used: 0 }
    }

    pub(super) fn level(&self, rule: &Rule, now: u64) -> Fraction {
        Fraction::new(i128::from(rule.amount) - i128::from(self.used(rule, now)), 1)
    }

    pub(super) fn charge(&mut self, rule: &Rule, now: u64, units: u64) {
        if self.used(rule, now) == 0 {
            *self = Self::fresh(rule, now);
        }
        self.used += units;
    }

    pub(super) fn refund(&mut self, rule: &Rule, now: u64, charged_at: u64, units: u64) -> u64 {
        let given = if charged_at >= self.start { units.min(self.used(rule, now)) } else { 0 };
        self.used -= given;
        given
    }

    pub(super) fn own_instant(&self, _: &Rule) -> u64 {
        self.start
    }

    pub(super) fn is_written_under(&self, old: &Rule, rule: &Rule) -> bool {
        old.calendar == rule.calendar && (rule.calendar.is_some() || old.window == rule.window)
    }

    pub(super) fn used(&self, _: &Rule, now: u64) -> u64 {
        if now < self.end { self.used } else { 0 }
    }
}
