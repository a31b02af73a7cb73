//! The limit: an amount, a window and an algorithm. All a store needs to decide.

mod calendar;
mod changes;
mod into;
mod numbers;
mod text;

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;

use crate::algorithm::Algorithm;
use crate::hold::HoldTerms;
pub use calendar::{Boundaries, Calendar, CalendarError, Month, Period, Weekday};
pub use changes::Changes;
pub use into::IntoLimit;
pub use numbers::Numbers;

/// `amount` units per `window`, enforced by an [`Algorithm`]. Cheap to clone.
///
/// ```
/// use tallygate::{Algorithm, Limit};
/// use std::time::Duration;
///
/// let written: Limit = "10/s burst 50".parse()?;
/// let built = Limit::builder(10, Duration::from_secs(1)).burst(50).build()?;
/// assert_eq!(written, built);
///
/// let log: Limit = "5 per 2h sliding_log".parse()?;
/// assert_eq!(log.algorithm(), Algorithm::SlidingLog);
/// assert_eq!(log.to_string(), "5/2h sliding_log");
/// # Ok::<(), tallygate::limit::LimitError>(())
/// ```
#[derive(Clone)]
pub struct Limit(Arc<Inner>);

struct Inner {
    numbers: Numbers,
    /// The last share that was asked for. A process asks for the same one at every call.
    share: RwLock<Option<(Fraction, Limit)>>,
}

/// Parts of a whole.
type Fraction = (u32, u32);

/// Builds a [`Limit`]; [`build`](LimitBuilder::build) validates it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "call `.build()`"]
pub struct LimitBuilder {
    amount: u64,
    window: Duration,
    burst: Option<u64>,
    algorithm: Option<Algorithm>,
    calendar: Option<Calendar>,
}

/// The error of an invalid limit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LimitError {
    /// The text does not follow the grammar.
    #[error("invalid limit `{text}`: {problem}\n  {text}\n  {:>width$}", '^', width = *at + 1)]
    Syntax {
        /// The invalid text.
        text: String,
        /// The position of the error, in characters from 0.
        at: usize,
        /// What is wrong, and how to write it.
        problem: String,
    },
    /// The amount or the burst is above [`Limit::MAX_AMOUNT`].
    #[error("the {what} {value} is too large: the largest is {}", Limit::MAX_AMOUNT)]
    TooLarge {
        /// `amount` or `burst`.
        what: &'static str,
        /// The number.
        value: u64,
    },
    /// The window is not a whole number of milliseconds between 1 ms and 365 days.
    #[error("invalid window of {window:?}: use whole milliseconds, from 1 ms to 365 days")]
    Window {
        /// The window.
        window: Duration,
    },
    /// Only a token bucket can hold more than it gains in one window.
    #[error("`burst` cannot be used with {algorithm}: remove it, or use token_bucket")]
    BurstOnWindow {
        /// The algorithm.
        algorithm: Algorithm,
    },
    /// Only one algorithm counts by the windows of a calendar.
    #[error("{algorithm} cannot count by a calendar: remove it, or use calendar_window")]
    NotByCalendar {
        /// The algorithm.
        algorithm: Algorithm,
    },
    /// What is in flight has no window.
    #[error("a concurrency limit has no window: write `{amount} concurrent`")]
    NoWindow {
        /// The amount.
        amount: u64,
    },
    /// There is no such calendar.
    #[error(transparent)]
    Calendar(#[from] CalendarError),
    /// A bucket that never refills, or holds nothing, cannot have a burst.
    #[error("a burst of {burst} cannot be combined with an amount of {amount}: both must be at least 1")]
    EmptyBurst {
        /// The burst.
        burst: u64,
        /// The amount.
        amount: u64,
    },
    /// An empty bucket would take more than a century to refill.
    #[error("a burst of {burst} would take more than 100 years to refill: the largest possible burst is {largest}")]
    SlowBurst {
        /// The burst.
        burst: u64,
        /// The largest possible burst at this rate.
        largest: u64,
    },
}

impl Limit {
    /// The maximum of an amount and of a burst.
    pub const MAX_AMOUNT: u64 = 1_000_000_000;

    /// Starts a limit of `amount` units per `window`.
    pub fn builder(amount: u64, window: Duration) -> LimitBuilder {
        LimitBuilder { amount, window, burst: None, algorithm: None, calendar: None }
    }

    /// Starts a limit of `amount` units per window of a calendar.
    pub fn in_calendar(amount: u64, calendar: Calendar) -> LimitBuilder {
        let window = Duration::from_micros(calendar.usual());
        let algorithm = Some(Algorithm::CalendarWindow);
        LimitBuilder { amount, window, burst: None, algorithm, calendar: Some(calendar) }
    }

    /// Starts a limit of `amount` units in flight at one time. They are only [reserved](crate::Limiter::reserve), and come back when their
    /// hold ends.
    pub fn concurrent(amount: u64) -> LimitBuilder {
        Self::builder(amount, HoldTerms::LONGEST).algorithm(Algorithm::Concurrency)
    }

    /// Starts a limit of `amount` units per second.
    pub fn per_second(amount: u64) -> LimitBuilder {
        Self::builder(amount, Duration::from_secs(1))
    }

    /// Starts a limit of `amount` units per minute.
    pub fn per_minute(amount: u64) -> LimitBuilder {
        Self::builder(amount, Duration::from_secs(60))
    }

    /// Starts a limit of `amount` units per hour.
    pub fn per_hour(amount: u64) -> LimitBuilder {
        Self::builder(amount, Duration::from_secs(3600))
    }

    /// Starts a limit of `amount` units per day of 24 hours.
    pub fn per_day(amount: u64) -> LimitBuilder {
        Self::builder(amount, Duration::from_secs(86_400))
    }

    /// The units per window.
    pub fn amount(&self) -> u64 {
        self.0.numbers.amount
    }

    /// The window. That of concurrency is the longest time that units can be held without a renewal, a day. That of a calendar is the longest one, without changes of daylight saving time: 1, 7, 31 or 366 days.
    pub fn window(&self) -> Duration {
        Duration::from_micros(self.0.numbers.window)
    }

    /// The calendar whose windows are counted, if the limit has one.
    pub fn calendar(&self) -> Option<&Calendar> {
        self.0.numbers.calendar.as_ref().filter(|calendar| calendar.period().is_some())
    }

    /// The most that can be charged at one instant: the burst of a token bucket, the amount of any other algorithm.
    pub fn capacity(&self) -> u64 {
        self.0.numbers.capacity
    }

    /// Whether its units are in flight until their hold ends, instead of coming back as time passes. Then they cannot be checked, only
    /// reserved.
    pub fn is_concurrency(&self) -> bool {
        self.algorithm() == Algorithm::Concurrency
    }

    /// The algorithm that enforces the limit.
    pub fn algorithm(&self) -> Algorithm {
        self.0.numbers.algorithm
    }

    /// The resolution of time for this limit: a microsecond, unless its numbers are too large for that.
    pub fn tick(&self) -> Duration {
        Duration::from_micros(self.0.numbers.tick)
    }

    /// The longest time until a used limit is completely unused again.
    pub fn full_after(&self) -> Duration {
        Duration::from_micros(self.0.numbers.full)
    }

    /// The numbers that the algorithms compute with, for stores that run the algorithms elsewhere, such as in scripts.
    pub fn numbers(&self) -> &Numbers {
        &self.0.numbers
    }

    /// `parts` of `of` equal shares of this limit, for a process that must decide without the others: amount and burst are
    /// divided and rounded down, but a limit that allows anything leaves one unit to each share. A log becomes a sliding
    /// window, which is as strict and takes less memory.
    ///
    /// ```
    /// use tallygate::Limit;
    ///
    /// let limit: Limit = "100/min burst 250".parse()?;
    /// assert_eq!(limit.share(1, 4).to_string(), "25/min burst 62");
    /// assert_eq!(limit.share(1, 1000).to_string(), "1/min");
    /// # Ok::<(), tallygate::limit::LimitError>(())
    /// ```
    #[must_use]
    pub fn share(&self, parts: u32, of: u32) -> Self {
        let fraction = (parts.min(of).max(1), of.max(1));
        let log = self.algorithm() == Algorithm::SlidingLog;
        if self.amount() == 0 || fraction.0 == fraction.1 && !log {
            return self.clone();
        }
        if let Some((_, share)) = self.0.share.read().as_ref().filter(|(known, _)| *known == fraction) {
            return share.clone();
        }
        let share = self.divided(fraction);
        *self.0.share.write() = Some((fraction, share.clone()));
        share
    }

    fn divided(&self, (parts, of): Fraction) -> Self {
        let part = |units: u64| (units * u64::from(parts) / u64::from(of)).max(1);
        let (amount, algorithm) = (part(self.amount()), self.algorithm());
        let share = LimitBuilder { calendar: self.calendar().cloned(), ..Self::builder(amount, self.window()) };
        let share = match algorithm {
            Algorithm::SlidingLog => share.algorithm(Algorithm::SlidingWindow),
            Algorithm::TokenBucket => share.burst(part(self.capacity())),
            _ => share.algorithm(algorithm),
        };
        // Rounding down can make a bucket too slow.
        let built = share.clone().build().or_else(|error| match error {
            LimitError::SlowBurst { largest, .. } => share.burst(largest).build(),
            error => Err(error),
        });
        built.expect("a part of a valid limit is valid")
    }

    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// Two limits are equal if they have the same numbers.
impl PartialEq for Limit {
    fn eq(&self, other: &Self) -> bool {
        self.is_same(other) || self.numbers() == other.numbers()
    }
}

impl Eq for Limit {}

impl Hash for Limit {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.numbers().hash(state);
    }
}

impl fmt::Debug for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Limit").field(self.numbers()).finish()
    }
}

impl LimitBuilder {
    /// Sets how much a token bucket can hold. Defaults to the amount.
    pub fn burst(mut self, burst: u64) -> Self {
        self.burst = Some(burst);
        self
    }

    /// Sets the algorithm. Defaults to the token bucket.
    pub fn algorithm(mut self, algorithm: Algorithm) -> Self {
        self.algorithm = Some(algorithm);
        self
    }

    /// The algorithm, if one was set.
    pub fn chosen_algorithm(&self) -> Option<Algorithm> {
        self.algorithm
    }

    /// Validates the limit and computes the numbers of its algorithm.
    pub fn build(self) -> Result<Limit, LimitError> {
        let algorithm = self.algorithm.unwrap_or_default();
        for (what, value) in [("amount", Some(self.amount)), ("burst", self.burst)] {
            if let Some(value) = value.filter(|&value| value > Limit::MAX_AMOUNT) {
                return Err(LimitError::TooLarge { what, value });
            }
        }
        let numbers = Numbers::new(self.amount, self.window, self.burst, algorithm, self.calendar)?;
        Ok(Limit(Arc::new(Inner { numbers, share: RwLock::new(None) })))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::hash::DefaultHasher;

    use super::*;

    #[test]
    fn the_largest_and_the_smallest_work() {
        for amount in [1, 2, 3, 7, 999_999_937, 1_000_000_000] {
            for millis in [1, 2, 3, 1000, 86_400_000, 31_535_999_999, 365 * 86_400_000] {
                for &algorithm in Algorithm::OVER_TIME {
                    let limit = Limit::builder(amount, Duration::from_millis(millis)).algorithm(algorithm).build();
                    let limit = limit.unwrap_or_else(|error| panic!("{amount} per {millis} ms, {algorithm}: {error}"));
                    assert!(limit.tick() * 1000 <= limit.window(), "{limit} has a tick of {:?}", limit.tick());
                }
            }
        }
    }

    #[test]
    fn what_cannot_be_exact_is_refused_with_the_largest_that_works() {
        let year = Duration::from_secs(365 * 86_400);
        let error = Limit::builder(1, year).burst(101).build().unwrap_err();
        assert_eq!(error, LimitError::SlowBurst { burst: 101, largest: 100 });
        assert!(Limit::builder(1, year).burst(100).build().is_ok());
        assert!(Limit::per_second(1_000_000_001).build().is_err());
        assert!(Limit::builder(5, Duration::from_micros(1500)).build().is_err());
        assert!(Limit::builder(5, Duration::from_nanos(1_000_001)).build().is_err());
        assert!(Limit::builder(5, Duration::ZERO).build().is_err());
        assert!(Limit::builder(5, year + Duration::from_millis(1)).build().is_err());
    }

    #[test]
    fn burst_belongs_to_the_token_bucket() {
        for algorithm in Algorithm::OVER_TIME.iter().copied().filter(|&algorithm| algorithm != Algorithm::TokenBucket) {
            let error = Limit::per_minute(5).burst(6).algorithm(algorithm).build().unwrap_err();
            assert_eq!(error, LimitError::BurstOnWindow { algorithm });
        }
        assert!(Limit::per_minute(0).burst(6).build().is_err());
        assert!(Limit::per_minute(6).burst(0).build().is_err());
    }

    #[test]
    fn named_windows_are_the_written_ones() {
        let built = [Limit::per_second(5), Limit::per_minute(5), Limit::per_hour(5), Limit::per_day(5)];
        for (limit, text) in built.into_iter().zip(["5/s", "5/min", "5/h", "5/day"]) {
            assert_eq!(limit.build().unwrap(), text.parse().unwrap());
        }
    }

    #[test]
    fn ticks_are_microseconds_where_the_products_fit() {
        let tick = |text: &str| text.parse::<Limit>().unwrap().tick().as_micros();
        assert_eq!(tick("700000/s"), 1);
        assert_eq!(tick("1000/day"), 1);
        assert_eq!(tick("1000000000/365d"), 1);
        assert_eq!(tick("999983/day"), 40);
        assert_eq!(tick("1000000000/day sliding_counter"), 38_400);
    }

    #[test]
    fn sub_windows_are_one_per_second_from_ten_up_to_sixty() {
        let slots = |text: &str| text.parse::<Limit>().unwrap().numbers().slots;
        assert_eq!(slots("5/s sliding_window"), 10);
        assert_eq!(slots("5/30s sliding_window"), 30);
        assert_eq!(slots("5/min sliding_window"), 60);
        assert_eq!(slots("5/h sliding_window"), 60);
        assert_eq!(slots("5/100s sliding_window"), 50);
        assert_eq!(slots("5/ms sliding_window"), 10);
    }

    #[test]
    fn a_share_is_at_least_one_part_and_at_most_the_whole() {
        let share = |text: &str, parts, of| text.parse::<Limit>().unwrap().share(parts, of).to_string();
        for (text, parts, of, expected) in [
            ("100/min", 0, 4, "25/min"),
            ("100/min", 3, 4, "75/min"),
            ("100/min", 9, 4, "100/min"),
            ("100/min", 0, 0, "100/min"),
            ("1/min burst 9", 1, 3, "1/min burst 3"),
            ("0/min", 1, 4, "0/min"),
            ("100/min fixed_window", 1, 4, "25/min fixed_window"),
            ("100/min sliding_log", 1, 4, "25/min sliding_window"),
            ("100/min sliding_log", 4, 4, "100/min sliding_window"),
            // Half of the burst would take 150 years to refill.
            ("3/365d burst 300", 1, 2, "1/365d burst 100"),
        ] {
            assert_eq!(share(text, parts, of), expected, "{parts} of {of} of {text}");
        }
    }

    /// A process asks for the same share at every call.
    #[test]
    fn the_whole_and_the_last_share_are_not_computed_again() {
        let limit = Limit::per_minute(100).build().unwrap();
        assert!(limit.share(4, 4).is_same(&limit));
        let quarter = limit.share(1, 4);
        assert!(limit.share(1, 4).is_same(&quarter) && !quarter.is_same(&limit));
        assert_eq!(limit.share(1, 2).amount(), 50);
        assert_eq!(limit.share(1, 4), quarter);
    }

    #[test]
    fn different_limits_have_different_hashes() {
        let hashes = ["5/s", "6/s", "5/min", "5/s burst 6", "5/s sliding_log"].map(|text| {
            let mut hasher = DefaultHasher::new();
            text.parse::<Limit>().unwrap().hash(&mut hasher);
            hasher.finish()
        });
        assert_eq!(HashSet::from(hashes).len(), hashes.len());
    }
}
