//! The windows of a calendar: days, weeks, months and years of a time zone.

mod error;
mod rule;
#[cfg(test)]
mod tests;

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use parking_lot::RwLock;
use sha2::{Digest, Sha256};

use crate::clock::Timestamp;
use crate::words::words;
pub use error::CalendarError;
use rule::Rule;

/// What one window of a calendar is, and when it begins: at the first instant of that day in the time zone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Period {
    /// One day.
    Day,
    /// Seven days.
    Week {
        /// The day on which a week begins.
        first: Weekday,
    },
    /// One month.
    Month {
        /// The day on which a month begins, 1 to 31. Where a month has no such day, its last day.
        day: u8,
    },
    /// One year.
    Year {
        /// The month in which a year begins.
        month: Month,
        /// The day of that month. 29 February is 28 February in years that are not leap years.
        day: u8,
    },
}

words! {
    /// A day of the week.
    pub enum Weekday, "weekday" {
        /// The default.
        Monday = "monday",
        /// The second.
        Tuesday = "tuesday",
        /// The third.
        Wednesday = "wednesday",
        /// The fourth.
        Thursday = "thursday",
        /// The fifth.
        Friday = "friday",
        /// The sixth.
        Saturday = "saturday",
        /// The seventh.
        Sunday = "sunday",
    }
}

words! {
    /// A month of the year.
    pub enum Month, "month" {
        /// The default.
        January = "january",
        /// The second.
        February = "february",
        /// The third.
        March = "march",
        /// The fourth.
        April = "april",
        /// The fifth.
        May = "may",
        /// The sixth.
        June = "june",
        /// The seventh.
        July = "july",
        /// The eighth.
        August = "august",
        /// The ninth.
        September = "september",
        /// The tenth.
        October = "october",
        /// The eleventh.
        November = "november",
        /// The twelfth.
        December = "december",
    }
}

impl Period {
    /// Its word in the text of a limit.
    pub fn name(self) -> &'static str {
        match self {
            Self::Day => "day",
            Self::Week { .. } => "week",
            Self::Month { .. } => "month",
            Self::Year { .. } => "year",
        }
    }

    /// The most days that one of them has.
    pub(crate) fn most_days(self) -> u64 {
        match self {
            Self::Day => 1,
            Self::Week { .. } => 7,
            Self::Month { .. } => 31,
            Self::Year { .. } => 366,
        }
    }
}

/// Divides time into the windows of a calendar. Cheap to clone.
///
/// ```
/// use tallygate::limit::{Calendar, Period};
/// use tallygate::Limit;
///
/// let billing = Calendar::new(Period::Month { day: 31 }, "Europe/Berlin")?;
/// let limit = Limit::in_calendar(1000, billing).build()?;
/// assert_eq!(limit.to_string(), "1000/month in Europe/Berlin from day 31");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Calendar(Arc<Inner>);

struct Inner {
    rule: Rule,
    text: String,
    number: u64,
    /// Those around the instant that was asked about last: nearly every question is about the same window.
    known: RwLock<Boundaries>,
}

/// Instants at which windows begin, in order, in microseconds since 1970: those of three windows, of the one in force and
/// of the four after it. Before 1970 there is none, and it is zeros instead.
pub type Boundaries = [u64; 8];

/// The place of the window in force.
const IN_FORCE: usize = 3;

impl Calendar {
    /// A calendar of a time zone, by its name in the IANA database. That database is part of this library, and not the
    /// machine's, so that all instances of one version agree.
    pub fn new(period: Period, zone: &str) -> Result<Self, CalendarError> {
        Rule::in_zone(period, zone).map(Self::of)
    }

    /// Windows of a fixed length, in microseconds. They begin with the minutes, hours and days of UTC and with its weeks.
    pub(crate) fn of_length(window: u64) -> Self {
        Self::of(Rule::Every { window })
    }

    /// The same calendar after its time zone has changed its rules, which are given in the notation of POSIX. For tests of
    /// instances that have different databases.
    #[doc(hidden)]
    pub fn with_rules(&self, posix: &str) -> Result<Self, CalendarError> {
        self.0.rule.with_rules(posix).map(Self::of)
    }

    fn of(rule: Rule) -> Self {
        let text = rule.to_string();
        let digest = Sha256::digest(&text);
        let number = digest.iter().take(6).fold(0, |number, &byte| number << 8 | u64::from(byte));
        Self(Arc::new(Inner { rule, text, number, known: RwLock::new(Boundaries::default()) }))
    }

    /// The period, unless the windows have a fixed length.
    pub fn period(&self) -> Option<Period> {
        match &self.0.rule {
            Rule::Every { .. } => None,
            Rule::Calendar { period, .. } => Some(*period),
        }
    }

    /// The name of the time zone.
    pub fn zone(&self) -> &str {
        match &self.0.rule {
            Rule::Every { .. } => "UTC",
            Rule::Calendar { name, .. } => name,
        }
    }

    /// The window that contains an instant: when it begins, and when the next one does.
    pub fn window_at(&self, at: Timestamp) -> (Timestamp, Timestamp) {
        let (start, end) = self.window_of(at.as_micros());
        (Timestamp::from_micros(start), Timestamp::from_micros(end))
    }

    /// The window that contains an instant, in microseconds.
    pub(crate) fn window_of(&self, at: u64) -> (u64, u64) {
        if let Rule::Every { window } = self.0.rule {
            return rule::window_of_length(window, at);
        }
        let known = *self.0.known.read();
        let found = window_in(&known, at).or_else(|| window_in(&self.boundaries(at), at));
        // Beyond the end of all calendars.
        found.unwrap_or((at, at.saturating_add(self.longest())))
    }

    /// The boundaries to send to a store that knows no calendar, and whose clock may differ from `around`.
    pub fn boundaries(&self, around: u64) -> Boundaries {
        let known = *self.0.known.read();
        if known[IN_FORCE] <= around && around < known[IN_FORCE + 1] {
            return known;
        }
        let boundaries = self.0.rule.boundaries(around);
        *self.0.known.write() = boundaries;
        boundaries
    }

    /// A number of its own for each rule, which says whether a state was written under the same one. Below 2^48.
    pub(crate) fn number(&self) -> u64 {
        self.0.number
    }

    /// The length of a window, or the most it can be, in microseconds. A day of daylight saving time counts 24 hours.
    pub(crate) fn usual(&self) -> u64 {
        match &self.0.rule {
            Rule::Every { window } => *window,
            Rule::Calendar { period, .. } => period.most_days() * rule::DAY,
        }
    }

    /// The most that a window can last, in microseconds. When a time zone changes its offset, a window gets longer by less
    /// than a day.
    pub(crate) fn longest(&self) -> u64 {
        match &self.0.rule {
            Rule::Every { window } => *window,
            Rule::Calendar { .. } => self.usual() + rule::DAY,
        }
    }
}

fn window_in(boundaries: &Boundaries, at: u64) -> Option<(u64, u64)> {
    let next = boundaries.partition_point(|&start| start <= at);
    (1..boundaries.len()).contains(&next).then(|| (boundaries[next - 1], boundaries[next]))
}

/// Two calendars are equal if they have the same rule, whatever the version of the database.
impl PartialEq for Calendar {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0.text == other.0.text
    }
}

impl Eq for Calendar {}

impl Hash for Calendar {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.text.hash(state);
    }
}

/// As in the text of a limit: `month in Europe/Berlin from day 31`.
impl fmt::Display for Calendar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.text)
    }
}

impl fmt::Debug for Calendar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Calendar({self})")
    }
}
