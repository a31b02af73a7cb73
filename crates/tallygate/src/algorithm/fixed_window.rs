//! Counts per window, aligned to the epoch or started by the first call. Twin: `tallygate-redis/lua/fixed_window.lua`.

use super::{Algorithm, EncodedState, State, numbers};
use crate::history::{Admitted, Span, one_window};
use crate::limit::{Limit, LimitError, Numbers};

/// The units used in the window that began at `start`.
#[derive(Debug, Clone)]
pub(crate) struct FixedWindow {
    start: u64,
    used: u64,
    limit: Limit,
}

fn aligned(n: &Numbers) -> bool {
    n.algorithm == Algorithm::FixedWindow
}

fn window_of(n: &Numbers, at: u64) -> u64 {
    if aligned(n) { at - at % n.window } else { at }
}

impl FixedWindow {
    /// The start of the current window and the units used in it. A window whose units were all given back has not
    /// started: it must equal one whose state was dropped.
    fn current(&self, n: &Numbers, now: u64) -> (u64, u64) {
        let held = now.max(self.start);
        if self.used > 0 && held - self.start < n.window { (self.start, self.used) } else { (window_of(n, held), 0) }
    }
}

impl State for FixedWindow {
    fn complete(plain: Numbers) -> Result<Numbers, LimitError> {
        Ok(plain)
    }

    fn script_numbers(n: &Numbers) -> Vec<u64> {
        vec![n.amount, n.window, u64::from(aligned(n))]
    }

    fn worst_spans(n: &Numbers, calls: &[Admitted]) -> Vec<Span> {
        one_window(n, calls, |at, start| start.filter(|start| at - start < n.window).unwrap_or(window_of(n, at)))
    }

    fn fresh(limit: &Limit, now: u64) -> Self {
        Self { start: window_of(limit.numbers(), now), used: 0, limit: limit.clone() }
    }

    #[inline(always)]
    fn fits(&self, limit: &Limit, now: u64, _owed: u64) -> bool {
        let n = limit.numbers();
        let same = n.window == self.limit.numbers().window && (!aligned(n) || self.start.is_multiple_of(n.window));
        same && self.start <= now + n.full
    }

    fn adopt(&mut self, limit: &Limit, now: u64, owed: u64) {
        let (_, used) = self.current(self.limit.numbers(), now);
        *self = Self { used: used.min(limit.numbers().amount + owed), ..Self::fresh(limit, now) };
    }

    #[inline(always)]
    fn free(&self, limit: &Limit, now: u64) -> u64 {
        let n = limit.numbers();
        n.amount.saturating_sub(self.current(n, now).1)
    }

    fn window_start(&self) -> u64 {
        self.start
    }

    fn debt(&self, limit: &Limit, now: u64) -> u64 {
        let n = limit.numbers();
        self.current(n, now).1.saturating_sub(n.amount)
    }

    #[inline(always)]
    fn charge(&mut self, limit: &Limit, now: u64, cost: u64) {
        let (start, used) = self.current(limit.numbers(), now);
        (self.start, self.used) = (start, used + cost);
    }

    fn refund(&mut self, limit: &Limit, now: u64, charged_at: u64, units: u64) -> u64 {
        let (start, used) = self.current(limit.numbers(), now);
        let given = if charged_at < start { 0 } else { units.min(used) };
        if given > 0 {
            (self.start, self.used) = (start, used - given);
        }
        given
    }

    #[inline(always)]
    fn retry_at(&self, limit: &Limit, now: u64, _cost: u64) -> u64 {
        let n = limit.numbers();
        self.current(n, now).0 + n.window
    }

    #[inline(always)]
    fn reset_at(&self, limit: &Limit, now: u64) -> u64 {
        let n = limit.numbers();
        match self.current(n, now) {
            (_, 0) => now,
            (start, _) => start + n.window,
        }
    }

    #[inline(always)]
    fn limit(&self) -> &Limit {
        &self.limit
    }
    fn encode(&self) -> EncodedState {
        EncodedState::doubles(&[self.start, self.used, self.limit.numbers().window])
    }

    fn decode(limit: &Limit, encoded: &[u8]) -> Option<Self> {
        let [start, used, window] = numbers(encoded)?;
        (window == limit.numbers().window).then(|| Self { start, used, limit: limit.clone() })
    }
}
