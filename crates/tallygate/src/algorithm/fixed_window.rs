//! Counts per window, aligned to the epoch or started by the first call. Twin: `tallygate-redis/lua/fixed_window.lua`.

use super::{Algorithm, State};
use crate::limit::{Limit, Numbers};

/// What was used in the window that began at `start`.
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
    /// Where the window in force begins, and what was used in it. A window whose units were all given back has not
    /// begun: it could not be told from one that was forgotten.
    fn current(&self, n: &Numbers, now: u64) -> (u64, u64) {
        let held = now.max(self.start);
        if self.used > 0 && held - self.start < n.window { (self.start, self.used) } else { (window_of(n, held), 0) }
    }
}

impl State for FixedWindow {
    fn fresh(limit: &Limit, now: u64) -> Self {
        Self { start: window_of(limit.numbers(), now), used: 0, limit: limit.clone() }
    }

    fn fits(&self, limit: &Limit, now: u64) -> bool {
        let n = limit.numbers();
        let same = n.window == self.limit.numbers().window && (!aligned(n) || self.start.is_multiple_of(n.window));
        same && self.start <= now + n.full
    }

    fn adopt(&mut self, limit: &Limit, now: u64) {
        let (_, used) = self.current(self.limit.numbers(), now);
        *self = Self { used: used.min(limit.numbers().amount), ..Self::fresh(limit, now) };
    }

    fn free(&self, limit: &Limit, now: u64) -> u64 {
        let n = limit.numbers();
        n.amount.saturating_sub(self.current(n, now).1)
    }

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

    fn retry_at(&self, limit: &Limit, now: u64, _cost: u64) -> u64 {
        let n = limit.numbers();
        self.current(n, now).0 + n.window
    }

    fn reset_at(&self, limit: &Limit, now: u64) -> u64 {
        let n = limit.numbers();
        match self.current(n, now) {
            (_, 0) => now,
            (start, _) => start + n.window,
        }
    }

    fn limit(&self) -> &Limit {
        &self.limit
    }
}
