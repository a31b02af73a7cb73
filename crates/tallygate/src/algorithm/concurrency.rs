//! Counts what is in flight. Units are only reserved, and come back when their hold ends. Twin:
//! `tallygate-redis/lua/concurrency.lua`.

use super::{EncodedState, State, numbers};
use crate::history::{Admitted, Span};
use crate::limit::{Limit, LimitError, Numbers};

/// The units of open holds, and an instant before which none of their deadlines is later. From then on nothing counts, even if the
/// holds themselves were lost.
#[derive(Debug, Clone)]
pub(crate) struct Concurrency {
    ends: u64,
    used: u64,
    limit: Limit,
}

impl Concurrency {
    fn in_flight(&self, now: u64) -> u64 {
        if now < self.ends { self.used } else { 0 }
    }
}

impl State for Concurrency {
    fn complete(plain: Numbers) -> Result<Numbers, LimitError> {
        Ok(Numbers { checkable: 0, ..plain })
    }

    fn script_numbers(n: &Numbers) -> Vec<u64> {
        vec![n.amount, n.full]
    }

    /// Whether too much was in flight depends on when holds ended, which the answers to calls do not say.
    fn worst_spans(_: &Numbers, _: &[Admitted]) -> Vec<Span> {
        Vec::new()
    }

    fn fresh(limit: &Limit, now: u64) -> Self {
        Self { ends: now, used: 0, limit: limit.clone() }
    }

    /// Any other amount fits: what is in flight does not depend on it.
    #[inline(always)]
    fn fits(&self, limit: &Limit, now: u64, _owed: u64) -> bool {
        self.ends <= now + limit.numbers().full
    }

    fn adopt(&mut self, limit: &Limit, now: u64, owed: u64) {
        let n = limit.numbers();
        let used = self.in_flight(now).min(n.amount + owed);
        let ends = if used > 0 { now + n.full } else { now };
        *self = Self { ends, used, limit: limit.clone() };
    }

    #[inline(always)]
    fn free(&self, limit: &Limit, now: u64) -> u64 {
        limit.numbers().amount.saturating_sub(self.in_flight(now))
    }

    fn debt(&self, limit: &Limit, now: u64) -> u64 {
        self.in_flight(now).saturating_sub(limit.numbers().amount)
    }

    fn lasts_until(&mut self, deadline: u64) {
        self.ends = self.ends.max(deadline);
    }

    /// The deadline of the hold follows.
    #[inline(always)]
    fn charge(&mut self, _limit: &Limit, now: u64, cost: u64) {
        let used = self.in_flight(now);
        // With nothing in flight, it must equal a state that was dropped.
        self.ends = if used > 0 { self.ends.max(now + 1) } else { now + 1 };
        self.used = used + cost;
    }

    fn refund(&mut self, _limit: &Limit, now: u64, _charged_at: u64, units: u64) -> u64 {
        let given = units.min(self.in_flight(now));
        self.used -= given;
        given
    }

    /// All that is in flight has ended by then, unless it is renewed.
    #[inline(always)]
    fn retry_at(&self, _limit: &Limit, _now: u64, _cost: u64) -> u64 {
        self.ends
    }

    #[inline(always)]
    fn reset_at(&self, _limit: &Limit, now: u64) -> u64 {
        if self.in_flight(now) == 0 { now } else { self.ends }
    }

    #[inline(always)]
    fn limit(&self) -> &Limit {
        &self.limit
    }

    fn encode(&self) -> EncodedState {
        EncodedState::doubles(&[self.ends, self.used])
    }
    fn decode(limit: &Limit, encoded: &[u8]) -> Option<Self> {
        let [ends, used] = numbers(encoded)?;
        Some(Self { ends, used, limit: limit.clone() })
    }
}
