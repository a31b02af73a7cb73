//! Refills evenly and holds at most the burst. Twin: `tallygate-redis/lua/token_bucket.lua`.

use super::{EncodedState, State, numbers};
use crate::history::{Admitted, Span, refill};
use crate::limit::{Limit, LimitError, Numbers};

/// What is missing from the bucket at the instant `at`, in parts.
#[derive(Debug, Clone)]
pub(crate) struct TokenBucket {
    at: u64,
    used: u64,
    limit: Limit,
}

impl TokenBucket {
    /// The last tick at or before `now`, unless the state is already later.
    #[inline(always)]
    fn held(&self, n: &Numbers, now: u64) -> u64 {
        n.tick_of(now).max(self.at)
    }

    #[inline(always)]
    fn used_at(&self, n: &Numbers, held: u64) -> u64 {
        let ticks = n.ticks_in(held - self.at);
        self.used.saturating_sub(ticks.saturating_mul(n.refill))
    }
}

/// Converts a fraction of a unit to other parts: in doubles, as the twin does, and rounded up by enough to cover their
/// error.
#[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "below 2^51")]
fn convert(rest: u64, old_unit: u64, unit: u64) -> u64 {
    match rest {
        0 => 0,
        _ => ((rest as f64 / old_unit as f64 * unit as f64).floor() as u64 + 2).min(unit),
    }
}

fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

impl State for TokenBucket {
    fn complete(plain: Numbers) -> Result<Numbers, LimitError> {
        let (amount, capacity, window) = (plain.amount, plain.capacity, plain.window);
        let largest = u128::from(Numbers::LONGEST_REFILL) * u128::from(amount) / u128::from(window);
        if u128::from(capacity) > largest {
            let largest = u64::try_from(largest).unwrap_or(u64::MAX);
            return Err(LimitError::SlowBurst { burst: capacity, largest });
        }
        let unit = |tick: u64| (window / tick) / gcd(amount, window / tick);
        let tick = Numbers::finest_tick(window, |tick| Numbers::fits(capacity, unit(tick)));
        let unit = unit(tick);
        let refill = amount / gcd(amount, window / tick);
        Ok(Numbers { tick, refill, unit, full: (capacity * unit).div_ceil(refill) * tick, ..plain })
    }

    fn script_numbers(n: &Numbers) -> Vec<u64> {
        vec![n.capacity, n.tick, n.refill, n.unit]
    }

    fn worst_spans(n: &Numbers, calls: &[Admitted]) -> Vec<Span> {
        refill(n, calls)
    }

    fn fresh(limit: &Limit, now: u64) -> Self {
        Self { at: limit.numbers().tick_of(now), used: 0, limit: limit.clone() }
    }

    #[inline(always)]
    fn fits(&self, limit: &Limit, now: u64, owed: u64) -> bool {
        let (n, old) = (limit.numbers(), self.limit.numbers());
        let same = limit.is_same(&self.limit) || (n.tick, n.refill, n.unit) == (old.tick, old.refill, old.unit);
        same && self.at <= now + n.full && self.used_at(n, self.held(n, now)) <= (n.capacity + owed) * n.unit
    }

    fn adopt(&mut self, limit: &Limit, now: u64, owed: u64) {
        let (n, old) = (limit.numbers(), self.limit.numbers());
        let most = n.capacity + owed;
        let used = self.used_at(old, self.held(old, now));
        let (units, rest) = (used / old.unit, used % old.unit);
        let used = if units < most { units * n.unit + convert(rest, old.unit, n.unit) } else { most * n.unit };
        *self = Self { used, ..Self::fresh(limit, now) };
    }

    #[inline(always)]
    fn free(&self, limit: &Limit, now: u64) -> u64 {
        let n = limit.numbers();
        (n.capacity * n.unit).saturating_sub(self.used_at(n, self.held(n, now))) / n.unit
    }

    fn debt(&self, limit: &Limit, now: u64) -> u64 {
        let n = limit.numbers();
        self.used_at(n, self.held(n, now)).saturating_sub(n.capacity * n.unit).div_ceil(n.unit)
    }

    #[inline(always)]
    fn charge(&mut self, limit: &Limit, now: u64, cost: u64) {
        let n = limit.numbers();
        let held = self.held(n, now);
        self.used = self.used_at(n, held) + cost * n.unit;
        self.at = held;
    }

    /// Units regained since the charge are not given back a second time.
    fn refund(&mut self, limit: &Limit, now: u64, charged_at: u64, units: u64) -> u64 {
        let n = limit.numbers();
        let held = self.held(n, now);
        let used = self.used_at(n, held);
        let regained = n.ticks_in(held.saturating_sub(n.tick_of(charged_at))).saturating_mul(n.refill) / n.unit;
        let given = units.saturating_sub(regained).min(used.div_ceil(n.unit));
        if given > 0 {
            self.used = used.saturating_sub(given * n.unit);
            self.at = held;
        }
        given
    }

    #[inline(always)]
    fn retry_at(&self, limit: &Limit, now: u64, cost: u64) -> u64 {
        let n = limit.numbers();
        let held = self.held(n, now);
        let missing = self.used_at(n, held) + cost * n.unit - n.capacity * n.unit;
        held + n.regained_after(missing)
    }

    #[inline(always)]
    fn reset_at(&self, limit: &Limit, now: u64) -> u64 {
        let n = limit.numbers();
        let held = self.held(n, now);
        match self.used_at(n, held) {
            0 => now,
            used => held + n.regained_after(used),
        }
    }

    #[inline(always)]
    fn limit(&self) -> &Limit {
        &self.limit
    }
    fn encode(&self) -> EncodedState {
        let n = self.limit.numbers();
        EncodedState::doubles(&[self.at, self.used, n.tick, n.refill, n.unit])
    }

    fn decode(limit: &Limit, encoded: &[u8]) -> Option<Self> {
        let n = limit.numbers();
        let [at, used, rate @ ..] = numbers::<5>(encoded)?;
        (rate == [n.tick, n.refill, n.unit]).then(|| Self { at, used, limit: limit.clone() })
    }
}
