//! Deterministic random values: the same seed gives the same test on every machine.

use std::time::Duration;

use tallygate::limit::{Calendar, LimitError, Month, Period, Weekday};
use tallygate::{Algorithm, Cost, Limit};

/// SplitMix64. Also generates values worth trying: limits over their whole range, and costs at the edges.
#[derive(Debug, Clone)]
pub struct Random(u64);

/// Amounts and windows whose quotients are not whole, and common ones.
const NASTY_AMOUNTS: [u64; 12] = [1, 2, 3, 7, 10, 60, 97, 1000, 700_000, 999_983, 999_999_937, 1_000_000_000];
const NASTY_MILLIS: [u64; 14] =
    [1, 2, 3, 7, 97, 1000, 1009, 60_000, 999_983, 3_600_000, 86_399_999, 86_400_000, 31_535_999_939, 31_536_000_000];

/// With whole, half and quarter hours, with and without changes of daylight saving time, some of them at midnight.
pub(crate) const ZONES: [&str; 8] = [
    "UTC",
    "America/Havana",
    "America/New_York",
    "America/Sao_Paulo",
    "Asia/Kathmandu",
    "Australia/Lord_Howe",
    "Europe/Berlin",
    "Pacific/Apia",
];

impl Random {
    /// Creates a generator from a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Any number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// From `low` to `high`, inclusive, uniformly distributed.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        let count = u128::from(high.max(low) - low) + 1;
        low + u64::try_from((u128::from(self.number()) * count) >> 64).expect("less than count")
    }

    /// From `low`, at least 1, to `high`, inclusive, with each order of magnitude equally likely.
    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a rough spread is enough, and it is clamped"
    )]
    pub fn spread(&mut self, low: u64, high: u64) -> u64 {
        let share = self.between(0, 1 << 30) as f64 / (1_u64 << 30) as f64;
        let value = low as f64 * (high.max(low) as f64 / low as f64).powf(share);
        (value.round() as u64).clamp(low, high.max(low))
    }

    /// True with this probability in percent.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.between(0, 99) < percent
    }

    /// One of them.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[usize::try_from(self.between(0, from.len() as u64 - 1)).expect("an index")]
    }

    /// A limit of this algorithm, from 1 to 10^9 units per 1 ms to 365 days.
    pub fn limit(&mut self, algorithm: Algorithm) -> Limit {
        let (amount, millis) = (self.amount(), self.millis());
        self.limit_of(algorithm, amount, millis)
    }

    /// Other numbers for a limit in use; sometimes the other kind of fixed window.
    pub fn other_numbers(&mut self, limit: &Limit) -> Limit {
        if let Some(calendar) = limit.calendar().filter(|_| self.chance(60)) {
            let amount = if self.chance(50) { self.between(1, limit.amount()) } else { self.amount() };
            return Limit::in_calendar(amount, calendar.clone())
                .build()
                .expect("every amount works with every calendar");
        }
        let algorithm = match limit.algorithm() {
            Algorithm::FixedWindow | Algorithm::FixedWindowFromFirstCall => {
                self.pick(&[Algorithm::FixedWindow, Algorithm::FixedWindowFromFirstCall])
            }
            other => other,
        };
        // A window of a calendar can be a leap year.
        let millis = u64::try_from(limit.window().as_millis()).expect("a year at most").min(31_536_000_000);
        let near = |amount: u64, by: u64| (amount + by).clamp(1, Limit::MAX_AMOUNT);
        let (amount, millis) = match self.between(0, 5) {
            0 => (limit.amount(), self.millis()),
            1 => (self.amount(), millis),
            2 => (near(limit.amount(), self.spread(1, limit.amount())), millis),
            3 => (self.between(1, limit.amount()), millis),
            4 => (near(limit.amount(), 1), millis),
            _ => (self.amount(), self.millis()),
        };
        self.limit_of(algorithm, amount, millis)
    }

    /// A cost to try when `remaining` is left: often one, often exactly what is left or one more.
    pub fn cost(&mut self, limit: &Limit, remaining: u64) -> Cost {
        let units = match self.between(0, 19) {
            0..=5 => 1,
            6..=9 => remaining,
            10..=12 => remaining.saturating_add(1),
            13..=14 => limit.capacity(),
            _ => self.spread(1, limit.capacity()),
        };
        Cost::new(units.clamp(1, limit.capacity())).expect("from 1 to the capacity")
    }

    fn amount(&mut self) -> u64 {
        if self.chance(30) { self.pick(&NASTY_AMOUNTS) } else { self.spread(1, Limit::MAX_AMOUNT) }
    }

    fn millis(&mut self) -> u64 {
        if self.chance(30) { self.pick(&NASTY_MILLIS) } else { self.spread(1, 31_536_000_000) }
    }

    /// A calendar of one of the zones.
    fn calendar(&mut self) -> Calendar {
        let day = u8::try_from(self.between(1, 31)).expect("31 at most");
        let period = match self.between(0, 5) {
            0..=1 => Period::Day,
            2 => Period::Week { first: self.pick(Weekday::ALL) },
            3..=4 => Period::Month { day },
            _ => Period::Year { month: self.pick(Month::ALL), day: day.min(28) },
        };
        Calendar::new(period, self.pick(&ZONES)).expect("a zone of the database")
    }

    fn limit_of(&mut self, algorithm: Algorithm, amount: u64, millis: u64) -> Limit {
        if algorithm == Algorithm::Concurrency {
            return Limit::concurrent(amount).build().expect("every amount works");
        }
        if algorithm == Algorithm::CalendarWindow && self.chance(60) {
            let limit = Limit::in_calendar(amount, self.calendar()).build();
            return limit.expect("every amount works with every calendar");
        }
        let plain = Limit::builder(amount, Duration::from_millis(millis)).algorithm(algorithm);
        if algorithm != Algorithm::TokenBucket || self.chance(40) {
            return plain.build().expect("every amount works with every window");
        }
        let bursty = |burst: u64| plain.clone().burst(burst).build();
        match bursty(self.spread(1, Limit::MAX_AMOUNT)) {
            Err(LimitError::SlowBurst { largest, .. }) => bursty(largest).expect("the largest possible burst"),
            built => built.expect("a burst that the rate can refill"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_values_and_both_ends_occur() {
        let mut random = Random::new(7);
        assert_eq!(random.number(), Random::new(7).number());
        let mut seen = [false; 3];
        for _ in 0..100 {
            seen[usize::try_from(random.between(0, 2)).unwrap()] = true;
        }
        assert_eq!(seen, [true; 3]);
        let spread: Vec<u64> = (0..20_000).map(|_| random.spread(1, 1_000_000_000)).collect();
        assert!(spread.contains(&1) && spread.iter().any(|&value| value > 900_000_000));
    }
}
