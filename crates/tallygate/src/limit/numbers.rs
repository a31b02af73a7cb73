//! The integers that an algorithm computes with, chosen so that all products stay exact in both twins.

use std::time::Duration;

use super::{Calendar, LimitError};
use crate::algorithm::{Algorithm, double};
use crate::hold::HoldTerms;

/// The numbers that the twins compute with. All times are in microseconds.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Numbers {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// Units per window.
    pub amount: u64,
    /// The most that can be charged at one instant.
    pub capacity: u64,
    /// The most that a check can charge at one instant: the capacity, or 0 if units can only be reserved.
    pub checkable: u64,
    /// The window; of concurrency the longest time without a renewal.
    pub window: u64,
    /// The resolution of time; token_bucket and sliding_counter only.
    pub tick: u64,
    /// token_bucket: parts regained per tick.
    pub refill: u64,
    /// token_bucket: parts per unit. `refill : unit` is `amount : window` in lowest terms.
    pub unit: u64,
    /// sliding_window: sub-windows per window.
    pub slots: u64,
    /// calendar_window: when windows begin.
    pub calendar: Option<Calendar>,
    /// The longest time until a used limit is completely unused again.
    pub full: u64,
    /// The numbers that the script of the algorithm reads, as little-endian doubles. For calendar_window, boundaries follow that
    /// depend on the time.
    pub packed: Box<[u8]>,
}

/// The maximum of any product. Doubles are exact to 2^53. The two spare bits keep the sum of two products exact, and
/// let its quotient round down and up exactly.
const MAX_PRODUCT: u64 = 1 << 51;
/// A tick is at most this fraction of the window.
const LEAST_TICKS: u64 = 1000;
const MILLISECOND: u64 = 1000;
const YEAR: u64 = 365 * 86_400 * 1_000_000;

impl Numbers {
    /// The longest time that an empty bucket may take to refill.
    pub(crate) const LONGEST_REFILL: u64 = 100 * YEAR;

    pub(super) fn new(
        amount: u64,
        window: Duration,
        burst: Option<u64>,
        algorithm: Algorithm,
        calendar: Option<Calendar>,
    ) -> Result<Self, LimitError> {
        let micros = u64::try_from(window.as_micros()).unwrap_or(u64::MAX);
        let whole = micros.is_multiple_of(MILLISECOND) && window.subsec_nanos().is_multiple_of(1000);
        if calendar.is_none() && (!whole || !(MILLISECOND..=YEAR).contains(&micros)) {
            return Err(LimitError::Window { window });
        }
        if calendar.is_some() && algorithm != Algorithm::CalendarWindow {
            return Err(LimitError::NotByCalendar { algorithm });
        }
        if algorithm == Algorithm::Concurrency && window != HoldTerms::LONGEST {
            return Err(LimitError::NoWindow { amount });
        }
        if let Some(burst) = burst {
            if algorithm != Algorithm::TokenBucket {
                return Err(LimitError::BurstOnWindow { algorithm });
            }
            if burst == 0 || amount == 0 {
                return Err(LimitError::EmptyBurst { burst, amount });
            }
        }
        let plain = Self {
            algorithm,
            amount,
            capacity: burst.unwrap_or(amount),
            checkable: burst.unwrap_or(amount),
            window: micros,
            tick: 1,
            refill: 0,
            unit: 1,
            slots: 0,
            calendar,
            full: micros,
            packed: Box::default(),
        };
        // A limit of zero is denied before the store, so nothing is computed for it.
        if amount == 0 {
            return Ok(plain);
        }
        let numbers = algorithm.complete(plain)?;
        let packed = algorithm.script_numbers(&numbers).into_iter().flat_map(double).collect();
        Ok(Self { packed, ..numbers })
    }

    /// The last tick at or before `at`. Nearly every limit has a tick of one, and a branch is cheaper than a division.
    #[inline(always)]
    pub(crate) fn tick_of(&self, at: u64) -> u64 {
        if self.tick == 1 { at } else { at - at % self.tick }
    }

    /// The number of whole ticks in `span`.
    #[inline(always)]
    pub(crate) fn ticks_in(&self, span: u64) -> u64 {
        if self.tick == 1 { span } else { span / self.tick }
    }

    /// How long it takes to regain `parts`. Most rates in lowest terms regain one part per tick.
    #[inline(always)]
    pub(crate) fn regained_after(&self, parts: u64) -> u64 {
        let ticks = if self.refill == 1 { parts } else { parts.div_ceil(self.refill) };
        ticks * self.tick
    }

    /// The window in ticks.
    pub fn ticks(&self) -> u64 {
        self.window / self.tick
    }

    /// The length of a sub-window.
    pub fn slot(&self) -> u64 {
        self.window / self.slots
    }

    /// Whether a product can be computed exactly.
    pub(crate) fn fits(a: u64, b: u64) -> bool {
        u128::from(a) * u128::from(b) <= u128::from(MAX_PRODUCT)
    }

    /// The smallest tick that divides the window and satisfies `enough`, among those made of small primes. At worst a
    /// thousandth of the window, which is whole because windows are whole milliseconds.
    pub(crate) fn finest_tick(window: u64, enough: impl Fn(u64) -> bool) -> u64 {
        if enough(1) {
            return 1;
        }
        let mut ticks = vec![1_u64];
        for prime in [2, 3, 5, 7] {
            let mut from = 0;
            while from < ticks.len() {
                let tick = ticks[from] * prime;
                if window.is_multiple_of(tick) && window / tick >= LEAST_TICKS {
                    ticks.push(tick);
                }
                from += 1;
            }
        }
        ticks.sort_unstable();
        ticks.into_iter().find(|&tick| enough(tick)).unwrap_or(window / LEAST_TICKS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Limit;

    #[test]
    fn what_an_algorithm_does_not_use_is_neutral() {
        let numbers = |text: &str| {
            let limit: Limit = text.parse().unwrap();
            let Numbers { tick, refill, unit, slots, full, .. } = *limit.numbers();
            [tick, refill, unit, slots, full]
        };
        let minute = 60_000_000;
        assert_eq!(numbers("6/min"), [1, 1, 10_000_000, 0, minute]);
        assert_eq!(numbers("6/min burst 9"), [1, 1, 10_000_000, 0, minute * 3 / 2]);
        assert_eq!(numbers("6/min fixed_window"), [1, 0, 1, 0, minute]);
        assert_eq!(numbers("6/min fixed_window_from_first_call"), [1, 0, 1, 0, minute]);
        assert_eq!(numbers("6/min sliding_window")[..4], [1, 0, 1, 60]);
        assert_eq!(numbers("6/min sliding_counter")[..4], [1, 0, 1, 0]);
        assert_eq!(numbers("6/min sliding_log"), [1, 0, 1, 0, minute]);
        assert_eq!(numbers("0/min"), [1, 0, 1, 0, minute]);
    }

    #[test]
    fn products_are_exact_up_to_the_largest() {
        assert!(Numbers::fits(MAX_PRODUCT, 1) && Numbers::fits(1 << 25, 1 << 26));
        assert!(!Numbers::fits(MAX_PRODUCT + 1, 1) && !Numbers::fits(u64::MAX, u64::MAX));
    }

    /// Each prime is needed, alone and with others.
    #[test]
    fn a_tick_is_the_smallest_that_is_enough_and_divides_the_window() {
        for (window, enough, tick) in [
            (1000, 1, 1),
            (1000, 2, 1),
            (2000, 2, 2),
            (9000, 3, 3),
            (10_000, 5, 5),
            (14_000, 7, 7),
            (36_000, 11, 12),
            (21_000, 21, 21),
            (8000, 3, 4),
            (8000, 8, 8),
            (8000, 9, 8),
            (11_000, 9, 10),
            (11_000, 11, 11),
        ] {
            assert_eq!(Numbers::finest_tick(window, |tick| tick >= enough), tick, "{window} and {enough}");
        }
    }
}
