//! Counts per sub-window, the oldest counted in full. Twin: `tallygate-redis/lua/sliding_window.lua`.

use std::collections::VecDeque;

use super::{EncodedState, State, VERSION, double, number};
use crate::history::{Admitted, Rule, Span, any_window};
use crate::limit::{Limit, LimitError, Numbers};

const MOST_SLOTS: u64 = 60;
const LEAST_SLOTS: u64 = 10;

/// The units used in each sub-window with a call, oldest first.
#[derive(Debug, Clone)]
pub(crate) struct SlidingWindow {
    used: VecDeque<Slot>,
    limit: Limit,
}

#[derive(Debug, Clone, Copy)]
struct Slot {
    /// The number of the sub-window since the epoch.
    index: u64,
    units: u64,
}

impl SlidingWindow {
    /// The current sub-window.
    fn held(&self, n: &Numbers, now: u64) -> u64 {
        self.used.back().map_or(0, |newest| newest.index).max(now / n.slot())
    }

    /// The sub-windows that still count: the current one and as many before it as make a whole window.
    fn live(&self, n: &Numbers, held: u64) -> impl Iterator<Item = &Slot> {
        self.used.iter().skip_while(move |slot| slot.index + n.slots < held)
    }

    fn total(&self, n: &Numbers, held: u64) -> u64 {
        self.live(n, held).map(|slot| slot.units).sum()
    }

    /// When the units of a sub-window stop counting.
    fn forgotten_at(n: &Numbers, index: u64) -> u64 {
        (index + n.slots + 1) * n.slot()
    }
}

impl State for SlidingWindow {
    /// One sub-window per second, at least ten and at most sixty, each a whole number of microseconds.
    fn complete(plain: Numbers) -> Result<Numbers, LimitError> {
        let wanted = (plain.window / 1_000_000).clamp(LEAST_SLOTS, MOST_SLOTS);
        let slots = (1..=wanted).rev().find(|&slots| plain.window.is_multiple_of(slots)).unwrap_or(1);
        Ok(Numbers { slots, full: plain.window + plain.window / slots, ..plain })
    }

    fn script_numbers(n: &Numbers) -> Vec<u64> {
        vec![n.amount, n.window, n.slots]
    }

    fn worst_spans(n: &Numbers, calls: &[Admitted]) -> Vec<Span> {
        any_window(n, calls, Rule::AnyWindow, n.amount)
    }

    fn fresh(limit: &Limit, _now: u64) -> Self {
        Self { used: VecDeque::new(), limit: limit.clone() }
    }

    fn fits(&self, limit: &Limit, now: u64, _owed: u64) -> bool {
        let (n, old) = (limit.numbers(), self.limit.numbers());
        let same = (n.slots, n.window) == (old.slots, old.window);
        same && self.held(n, now) * n.slot() <= now + n.full
    }

    fn adopt(&mut self, limit: &Limit, now: u64, owed: u64) {
        let old = self.limit.numbers();
        let units = self.total(old, self.held(old, now)).min(limit.numbers().amount + owed);
        *self = Self::fresh(limit, now);
        if units > 0 {
            self.used.push_back(Slot { index: now / limit.numbers().slot(), units });
        }
    }

    fn free(&self, limit: &Limit, now: u64) -> u64 {
        let n = limit.numbers();
        n.amount.saturating_sub(self.total(n, self.held(n, now)))
    }

    fn debt(&self, limit: &Limit, now: u64) -> u64 {
        let n = limit.numbers();
        self.total(n, self.held(n, now)).saturating_sub(n.amount)
    }

    fn charge(&mut self, limit: &Limit, now: u64, cost: u64) {
        let n = limit.numbers();
        let held = self.held(n, now);
        while self.used.front().is_some_and(|oldest| oldest.index + n.slots < held) {
            self.used.pop_front();
        }
        match self.used.back_mut() {
            Some(newest) if newest.index == held => newest.units += cost,
            _ => self.used.push_back(Slot { index: held, units: cost }),
        }
    }

    fn refund(&mut self, limit: &Limit, now: u64, charged_at: u64, units: u64) -> u64 {
        let n = limit.numbers();
        let held = self.held(n, now);
        let own = charged_at / n.slot();
        if own + n.slots < held {
            return 0;
        }
        let mut rest = units;
        let mut give_back = |slot: &mut Slot| {
            let given = rest.min(slot.units);
            slot.units -= given;
            rest -= given;
        };
        // Give back what the call itself charged, then, if that is less, from the oldest sub-window that counts.
        self.used.iter_mut().filter(|slot| slot.index == own).for_each(&mut give_back);
        self.used.iter_mut().skip_while(|slot| slot.index + n.slots < held).for_each(give_back);
        units - rest
    }

    fn retry_at(&self, limit: &Limit, now: u64, cost: u64) -> u64 {
        let n = limit.numbers();
        let held = self.held(n, now);
        let mut needed = self.total(n, held) + cost - n.amount;
        for slot in self.live(n, held) {
            if slot.units >= needed {
                return Self::forgotten_at(n, slot.index);
            }
            needed -= slot.units;
        }
        Self::forgotten_at(n, held)
    }

    fn reset_at(&self, limit: &Limit, now: u64) -> u64 {
        let n = limit.numbers();
        let held = self.held(n, now);
        let newest = self.live(n, held).filter(|slot| slot.units > 0).last();
        newest.map_or(now, |newest| Self::forgotten_at(n, newest.index))
    }

    fn limit(&self) -> &Limit {
        &self.limit
    }
    fn encode(&self) -> EncodedState {
        let n = self.limit.numbers();
        let low_byte = |number: u64| number.to_le_bytes()[0];
        let newest = self.used.back().map_or(0, |newest| newest.index);
        let mut packed = vec![VERSION];
        packed.extend_from_slice(&double(n.window));
        packed.push(low_byte(n.slots));
        packed.extend_from_slice(&double(newest));
        for slot in &self.used {
            packed.push(low_byte(slot.index));
            packed.extend_from_slice(&slot.units.to_le_bytes()[..4]);
        }
        EncodedState::Packed(packed)
    }

    fn decode(limit: &Limit, encoded: &[u8]) -> Option<Self> {
        let n = limit.numbers();
        let (window, rest) = encoded.strip_prefix(&[VERSION])?.split_first_chunk()?;
        let (slots, rest) = rest.split_first()?;
        let (newest, rest) = rest.split_first_chunk()?;
        let newest = number(*newest)?;
        let (packed, rest) = rest.as_chunks::<5>();
        let same = (number(*window)?, u64::from(*slots)) == (n.window, n.slots);
        let slot = |&[low, units @ ..]: &[u8; 5]| {
            // Only the low byte is stored: sub-windows that are kept are less than 256 apart.
            let before_newest = newest.to_le_bytes()[0].wrapping_sub(low);
            let index = newest.checked_sub(u64::from(before_newest))?;
            Some(Slot { index, units: u64::from(u32::from_le_bytes(units)) })
        };
        let used: VecDeque<Slot> = packed.iter().map(slot).collect::<Option<_>>()?;
        let in_order = used.iter().is_sorted_by(|one, other| one.index < other.index);
        (same && in_order && rest.is_empty()).then(|| Self { used, limit: limit.clone() })
    }
}
