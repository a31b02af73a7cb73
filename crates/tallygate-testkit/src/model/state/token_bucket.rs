//! Section 3: a level that rises evenly, up to the capacity.

use super::super::fraction::in_doubles;
use super::super::{Fraction, Rule};

#[derive(Debug, Clone)]
pub(in super::super) struct TokenBucket {
    at: u64,
    /// Units missing from a full bucket as of `at`, in parts of the window: a unit comes back in `window / amount`.
    missing: i128,
    /// The window that `missing` is in parts of.
    over: u64,
}

impl TokenBucket {
    pub(super) fn fresh(rule: &Rule, now: u64) -> Self {
        Self { at: rule.whole_ticks(now), missing: 0, over: rule.window }
    }

    fn held(&self, rule: &Rule, now: u64) -> u64 {
        rule.whole_ticks(now).max(self.at)
    }

    /// What is missing at an instant. Another window of the same rate is other parts of the same units.
    fn missing(&self, rule: &Rule, now: u64) -> Fraction {
        let (window, over) = (i128::from(rule.window), i128::from(self.over));
        let missing = if window == over { self.missing } else { self.missing * window / over };
        assert_eq!(missing * over, self.missing * window, "the same rate has whole parts: {self:?}, {rule:?}");
        let elapsed = self.held(rule, now) - self.at;
        Fraction::new(missing - i128::from(elapsed) * i128::from(rule.amount), window)
    }

    fn set(&mut self, rule: &Rule, now: u64, missing: i128) {
        *self = Self { at: self.held(rule, now), missing: missing.max(0), over: rule.window };
    }

    pub(super) fn level(&self, rule: &Rule, now: u64) -> Fraction {
        let missing = self.missing(rule, now);
        Fraction::new(i128::from(rule.capacity) * missing.over - missing.parts, missing.over)
    }

    pub(super) fn charge(&mut self, rule: &Rule, now: u64, units: u64) {
        let missing = self.missing(rule, now);
        self.set(rule, now, missing.parts + i128::from(units) * missing.over);
    }

    pub(super) fn refund(&mut self, rule: &Rule, now: u64, charged_at: u64, units: u64) -> u64 {
        let missing = self.missing(rule, now);
        // Whole units that came back since the charge may have been used again.
        let since = self.held(rule, now).saturating_sub(rule.whole_ticks(charged_at));
        let regained = Fraction::new(i128::from(since) * i128::from(rule.amount), missing.over).parts / missing.over;
        let left = i128::from(units) - regained;
        let given = u64::try_from(left.max(0)).expect("no more than the units").min(missing.whole_up());
        if given > 0 {
            self.set(rule, now, missing.parts - i128::from(given) * missing.over);
        }
        given
    }

    pub(super) fn own_instant(&self, _: &Rule) -> u64 {
        self.at
    }

    pub(super) fn is_written_under(&self, old: &Rule, rule: &Rule) -> bool {
        let [now, then] = [(rule, old), (old, rule)].map(|(a, b)| u128::from(a.amount) * u128::from(b.window));
        old.tick == rule.tick && now == then
    }

    /// Whether what is missing at an instant, under the same rate, is no more than the capacity.
    pub(super) fn is_within(&self, rule: &Rule, now: u64) -> bool {
        let missing = self.missing(rule, now);
        missing.parts <= i128::from(rule.capacity) * missing.over
    }

    /// Keeps whole units, and the rest in parts of the new unit: rounded as doubles round, and two more.
    pub(super) fn adopted(&self, old: &Rule, rule: &Rule, now: u64) -> Self {
        let missing = self.missing(old, now);
        let (whole, rest) = (missing.parts / missing.over, missing.parts % missing.over);
        let unit = u128::from(rule.parts_of_a_unit(rule.tick));
        let [part, old_unit] = [rest, missing.over].map(|number| u128::try_from(number).expect("not negative"));
        let parts = if part == 0 { 0 } else { (in_doubles(part, old_unit, unit) + 2).min(unit) };
        let window = i128::from(rule.window);
        let kept = whole * window + i128::try_from(parts * u128::from(rule.window) / unit).expect("less than a window");
        assert!(
            kept * missing.over >= missing.parts * window,
            "a change of rate must refill nothing: {self:?}, {rule:?}"
        );
        Self { at: rule.whole_ticks(now), missing: kept.min(i128::from(rule.capacity) * window), over: rule.window }
    }
}
