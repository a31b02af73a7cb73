//! Two windows, the previous one weighted by what is left of it. Twin: `tallygate-redis/lua/sliding_counter.lua`.

use super::State;
use crate::limit::{Limit, Numbers};

/// What was used in the window that began at `start` and in the one before it.
#[derive(Debug, Clone)]
pub(crate) struct SlidingCounter {
    start: u64,
    previous: u64,
    current: u64,
    limit: Limit,
}

/// The two windows as they stand at an instant, and how many ticks of the previous one still count.
struct View {
    start: u64,
    previous: u64,
    current: u64,
    weight: u64,
}

impl View {
    /// What counts as used, in ticks of the window times units.
    fn load(&self, n: &Numbers) -> u64 {
        self.previous * self.weight + self.current * n.ticks()
    }
}

impl SlidingCounter {
    fn view(&self, n: &Numbers, now: u64) -> View {
        let held = now.max(self.start);
        let start = held - held % n.window;
        let (previous, current) = match (start - self.start) / n.window {
            0 => (self.previous, self.current),
            1 => (self.current, 0),
            _ => (0, 0),
        };
        View { start, previous, current, weight: n.ticks() - (held - start) / n.tick }
    }
}

impl State for SlidingCounter {
    fn fresh(limit: &Limit, now: u64) -> Self {
        Self { start: now - now % limit.numbers().window, previous: 0, current: 0, limit: limit.clone() }
    }

    fn fits(&self, limit: &Limit, now: u64) -> bool {
        let (n, old) = (limit.numbers(), self.limit.numbers());
        let same = (n.tick, n.window) == (old.tick, old.window);
        same && self.start <= now + n.full && self.previous.max(self.current) <= n.amount
    }

    fn adopt(&mut self, limit: &Limit, now: u64) {
        let old = self.limit.numbers();
        let used = self.view(old, now).load(old).div_ceil(old.ticks());
        *self = Self { current: used.min(limit.numbers().amount), ..Self::fresh(limit, now) };
    }

    fn free(&self, limit: &Limit, now: u64) -> u64 {
        let n = limit.numbers();
        (n.amount * n.ticks()).saturating_sub(self.view(n, now).load(n)) / n.ticks()
    }

    fn charge(&mut self, limit: &Limit, now: u64, cost: u64) {
        let view = self.view(limit.numbers(), now);
        (self.start, self.previous, self.current) = (view.start, view.previous, view.current + cost);
    }

    fn refund(&mut self, limit: &Limit, now: u64, charged_at: u64, units: u64) -> u64 {
        let n = limit.numbers();
        let mut view = self.view(n, now);
        let mut given = 0;
        if charged_at >= view.start {
            given = units.min(view.current);
            view.current -= given;
        }
        if charged_at.saturating_add(n.window) >= view.start {
            let rest = (units - given).min(view.previous);
            view.previous -= rest;
            given += rest;
        }
        if given > 0 {
            (self.start, self.previous, self.current) = (view.start, view.previous, view.current);
        }
        given
    }

    fn retry_at(&self, limit: &Limit, now: u64, cost: u64) -> u64 {
        let n = limit.numbers();
        let view = self.view(n, now);
        // The call fits once the weight of the older window has sunk to `room / older`.
        let (older, room, start) = if view.current + cost <= n.amount {
            (view.previous, n.amount - view.current - cost, view.start)
        } else {
            (view.current, n.amount - cost, view.start + n.window)
        };
        start + (n.ticks() - room * n.ticks() / older) * n.tick
    }

    fn reset_at(&self, limit: &Limit, now: u64) -> u64 {
        let n = limit.numbers();
        match self.view(n, now) {
            View { start, current: 1.., .. } => start + 2 * n.window,
            View { start, previous: 1.., .. } => start + n.window,
            _ => now,
        }
    }

    fn limit(&self) -> &Limit {
        &self.limit
    }
}
