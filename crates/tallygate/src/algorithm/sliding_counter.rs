//! Two windows, the previous one weighted by its remaining share. Twin: `tallygate-redis/lua/sliding_counter.lua`.

use super::{EncodedState, State, numbers};
use crate::history::{Admitted, Rule, Span, any_window, estimate};
use crate::limit::{Limit, LimitError, Numbers};

/// The units used in the window that began at `start` and in the one before it.
#[derive(Debug, Clone)]
pub(crate) struct SlidingCounter {
    start: u64,
    previous: u64,
    current: u64,
    limit: Limit,
}

/// The two windows at an instant, and how many ticks of the previous one still count.
struct View {
    start: u64,
    previous: u64,
    current: u64,
    weight: u64,
}

impl View {
    /// What counts as used, in units times ticks of the window.
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
    fn complete(plain: Numbers) -> Result<Numbers, LimitError> {
        let tick = Numbers::finest_tick(plain.window, |tick| Numbers::fits(plain.amount, plain.window / tick));
        Ok(Numbers { tick, full: 2 * plain.window, ..plain })
    }

    fn script_numbers(n: &Numbers) -> Vec<u64> {
        vec![n.amount, n.window, n.tick]
    }

    fn worst_spans(n: &Numbers, calls: &[Admitted]) -> Vec<Span> {
        let mut spans = estimate(n, calls);
        spans.extend(any_window(n, calls, Rule::UnderTwice, (2 * n.amount).saturating_sub(1)));
        spans
    }

    fn fresh(limit: &Limit, now: u64) -> Self {
        Self { start: now - now % limit.numbers().window, previous: 0, current: 0, limit: limit.clone() }
    }

    #[inline(always)]
    fn fits(&self, limit: &Limit, now: u64, owed: u64) -> bool {
        let (n, old) = (limit.numbers(), self.limit.numbers());
        let same = (n.tick, n.window) == (old.tick, old.window);
        same && self.start <= now + n.full && self.previous.max(self.current) <= n.amount + owed
    }

    fn adopt(&mut self, limit: &Limit, now: u64, owed: u64) {
        let old = self.limit.numbers();
        let used = self.view(old, now).load(old).div_ceil(old.ticks());
        *self = Self { current: used.min(limit.numbers().amount + owed), ..Self::fresh(limit, now) };
    }

    #[inline(always)]
    fn free(&self, limit: &Limit, now: u64) -> u64 {
        let n = limit.numbers();
        (n.amount * n.ticks()).saturating_sub(self.view(n, now).load(n)) / n.ticks()
    }

    fn debt(&self, limit: &Limit, now: u64) -> u64 {
        let n = limit.numbers();
        self.view(n, now).load(n).saturating_sub(n.amount * n.ticks()).div_ceil(n.ticks())
    }

    fn excess(&self, limit: &Limit, now: u64) -> u64 {
        self.debt(limit, now).max(self.previous.max(self.current).saturating_sub(limit.numbers().amount))
    }

    #[inline(always)]
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

    #[inline(always)]
    fn retry_at(&self, limit: &Limit, now: u64, cost: u64) -> u64 {
        let n = limit.numbers();
        let view = self.view(n, now);
        // The call fits once the weight of the older window has dropped to `room / older`.
        let (older, room, start) = if view.current + cost <= n.amount {
            (view.previous, n.amount - view.current - cost, view.start)
        } else {
            (view.current, n.amount - cost, view.start + n.window)
        };
        start + (n.ticks() - room * n.ticks() / older) * n.tick
    }

    #[inline(always)]
    fn reset_at(&self, limit: &Limit, now: u64) -> u64 {
        let n = limit.numbers();
        match self.view(n, now) {
            View { start, current: 1.., .. } => start + 2 * n.window,
            View { start, previous: 1.., .. } => start + n.window,
            _ => now,
        }
    }

    #[inline(always)]
    fn limit(&self) -> &Limit {
        &self.limit
    }
    fn encode(&self) -> EncodedState {
        let n = self.limit.numbers();
        EncodedState::doubles(&[self.start, self.previous, self.current, n.window, n.tick])
    }

    fn decode(limit: &Limit, encoded: &[u8]) -> Option<Self> {
        let n = limit.numbers();
        let [start, previous, current, rule @ ..] = numbers::<5>(encoded)?;
        (rule == [n.window, n.tick]).then(|| Self { start, previous, current, limit: limit.clone() })
    }
}
