//! Counts per window of a calendar: a day, a week, a month or a year of a time zone. Twin:
//! `tallygate-redis/lua/calendar_window.lua`.

use super::{EncodedState, State, numbers};
use crate::history::{Admitted, Span, one_window};
use crate::limit::{Calendar, Limit, LimitError, Numbers};

/// The units used in the window from `start` to `end`. It stays what it is until it ends, even if the calendar would now divide
/// time in another way.
#[derive(Debug, Clone)]
pub(crate) struct CalendarWindow {
    start: u64,
    end: u64,
    used: u64,
    limit: Limit,
}

fn calendar(n: &Numbers) -> &Calendar {
    n.calendar.as_ref().expect("`complete` gives every limit of this algorithm a calendar")
}

impl CalendarWindow {
    /// The units used in this window, if it is in force. A window whose units were all given back has not started: it must
    /// equal one whose state was dropped.
    fn in_force(&self, now: u64) -> u64 {
        if now < self.end { self.used } else { 0 }
    }
}

impl State for CalendarWindow {
    fn complete(plain: Numbers) -> Result<Numbers, LimitError> {
        let calendar = plain.calendar.unwrap_or_else(|| Calendar::of_length(plain.window));
        Ok(Numbers { full: calendar.longest(), calendar: Some(calendar), ..plain })
    }

    /// The boundaries around the present follow, when the script is asked.
    fn script_numbers(n: &Numbers) -> Vec<u64> {
        vec![n.amount, n.full, calendar(n).number()]
    }

    fn worst_spans(n: &Numbers, calls: &[Admitted]) -> Vec<Span> {
        one_window(n, calls, |at, _| calendar(n).window_of(at).0)
    }

    fn fresh(limit: &Limit, now: u64) -> Self {
        let (start, end) = calendar(limit.numbers()).window_of(now);
        Self { start, end, used: 0, limit: limit.clone() }
    }

    #[inline(always)]
    fn fits(&self, limit: &Limit, now: u64, _owed: u64) -> bool {
        let n = limit.numbers();
        let same = self.limit.is_same(limit) || calendar(n).number() == calendar(self.limit.numbers()).number();
        same && self.start <= now + n.full
    }

    fn adopt(&mut self, limit: &Limit, now: u64, owed: u64) {
        let used = self.in_force(now).min(limit.numbers().amount + owed);
        *self = Self { used, ..Self::fresh(limit, now) };
    }

    #[inline(always)]
    fn free(&self, limit: &Limit, now: u64) -> u64 {
        limit.numbers().amount.saturating_sub(self.in_force(now))
    }

    fn debt(&self, limit: &Limit, now: u64) -> u64 {
        self.in_force(now).saturating_sub(limit.numbers().amount)
    }

    fn window_start(&self) -> u64 {
        self.start
    }

    #[inline(always)]
    fn charge(&mut self, limit: &Limit, now: u64, cost: u64) {
        if self.in_force(now) == 0 {
            (self.start, self.end) = calendar(limit.numbers()).window_of(now);
            self.used = 0;
        }
        self.used += cost;
    }

    fn refund(&mut self, _limit: &Limit, now: u64, charged_at: u64, units: u64) -> u64 {
        let given = if charged_at < self.start { 0 } else { units.min(self.in_force(now)) };
        self.used -= given;
        given
    }

    /// What is not free was used in the window in force.
    #[inline(always)]
    fn retry_at(&self, _limit: &Limit, _now: u64, _cost: u64) -> u64 {
        self.end
    }

    #[inline(always)]
    fn reset_at(&self, _limit: &Limit, now: u64) -> u64 {
        if self.in_force(now) == 0 { now } else { self.end }
    }

    #[inline(always)]
    fn limit(&self) -> &Limit {
        &self.limit
    }

    fn encode(&self) -> EncodedState {
        EncodedState::doubles(&[self.start, self.end, self.used, calendar(self.limit.numbers()).number()])
    }

    fn decode(limit: &Limit, encoded: &[u8]) -> Option<Self> {
        let [start, end, used, number] = numbers(encoded)?;
        let same = number == calendar(limit.numbers()).number();
        (same && start <= end).then(|| Self { start, end, used, limit: limit.clone() })
    }
}
