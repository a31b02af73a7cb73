//! The numbers of a limit, from sections 1 and 2 of `docs/algorithms.md`.

use tallygate::{Algorithm, Limit};

use super::calendar::{Calendar, DAY};
use crate::traces::micros;

/// An amount above zero, per window, in microseconds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rule {
    pub(super) algorithm: Algorithm,
    pub(super) amount: u64,
    pub(super) capacity: u64,
    pub(super) window: u64,
    pub(super) tick: u64,
    pub(super) slots: u64,
    /// That of a time zone; none for windows of a fixed length.
    pub(super) calendar: Option<Calendar>,
}

/// Doubles are exact for products up to here.
const LARGEST_PRODUCT: u128 = 1 << 51;

impl Rule {
    /// Only what the caller wrote is taken from the product; all other numbers are worked out here. None for a limit of
    /// zero.
    pub(super) fn of(limit: &Limit) -> Option<Self> {
        let (algorithm, amount, capacity) = (limit.algorithm(), limit.amount(), limit.capacity());
        let calendar = Calendar::of(limit);
        let plain = Self { algorithm, amount, capacity, window: micros(limit.window()), tick: 1, slots: 1, calendar };
        match algorithm {
            _ if amount == 0 => None,
            Algorithm::TokenBucket | Algorithm::SlidingCounter => Some(Self { tick: plain.finest_tick(), ..plain }),
            Algorithm::SlidingWindow => Some(Self { slots: slots(plain.window), ..plain }),
            _ => Some(plain),
        }
    }

    /// The longest time until a used limit is unused again.
    pub(super) fn full(&self) -> u64 {
        match self.algorithm {
            Algorithm::TokenBucket => {
                let ticks = (u128::from(self.capacity) * u128::from(self.window))
                    .div_ceil(u128::from(self.amount) * u128::from(self.tick));
                u64::try_from(ticks).expect("a century at most") * self.tick
            }
            Algorithm::SlidingWindow => self.window + self.slot(),
            Algorithm::SlidingCounter => 2 * self.window,
            _ if self.calendar.is_some() => self.window + DAY,
            _ => self.window,
        }
    }

    pub(super) fn slot(&self) -> u64 {
        self.window / self.slots
    }

    /// The parts into which a token bucket divides a unit, so that each tick brings a whole number of them.
    pub(super) fn parts_of_a_unit(&self, tick: u64) -> u64 {
        let ticks = self.window / tick;
        ticks / greatest_common_divisor(self.amount, ticks)
    }

    /// The last whole tick at or before an instant.
    pub(super) fn whole_ticks(&self, at: u64) -> u64 {
        at / self.tick * self.tick
    }

    /// Whether the largest product of the algorithm is exact with this tick.
    fn is_exact(&self, tick: u64) -> bool {
        let (units, each) = match self.algorithm {
            Algorithm::TokenBucket => (self.capacity, self.parts_of_a_unit(tick)),
            _ => (self.amount, self.window / tick),
        };
        u128::from(units) * u128::from(each) <= LARGEST_PRODUCT
    }

    /// The smallest `2^a·3^b·5^c·7^d` that divides the window into at least 1000 and is exact; else the thousandth.
    fn finest_tick(&self) -> u64 {
        if self.is_exact(1) {
            return 1;
        }
        let coarsest = self.window / 1000;
        let divides = |tick: u64| tick <= coarsest && self.window.is_multiple_of(tick);
        // If a number does not divide the window, neither does a multiple of it.
        let times = |from: u64, prime: u64| {
            std::iter::successors(Some(from), move |tick| Some(tick * prime)).take_while(move |&tick| divides(tick))
        };
        let all = times(1, 2).flat_map(|a| times(a, 3)).flat_map(|b| times(b, 5)).flat_map(|c| times(c, 7));
        all.filter(|&tick| self.is_exact(tick)).min().unwrap_or(coarsest)
    }
}

/// One per second, from 10 to 60, lowered to a divisor of the window.
fn slots(window: u64) -> u64 {
    let wanted = (window / 1_000_000).clamp(10, 60);
    (1..=wanted).rev().find(|&slots| window.is_multiple_of(slots)).expect("one divides everything")
}

fn greatest_common_divisor(mut a: u64, mut b: u64) -> u64 {
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a
}
