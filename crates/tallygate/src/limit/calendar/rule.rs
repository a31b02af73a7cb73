//! When the windows of a calendar begin. All arithmetic with dates is jiff's.

use std::fmt;
use std::sync::LazyLock;

use jiff::civil::Date;
use jiff::tz::{AmbiguousOffset, TimeZone, TimeZoneDatabase};
use jiff::{SignedDuration, Span, Timestamp, Unit};

use super::{Boundaries, CalendarError, IN_FORCE, Month, Period, Weekday};

/// Microseconds of a day of 24 hours.
pub(super) const DAY: u64 = 86_400_000_000;
/// From the beginning of a week of UTC to 1970, which began on a Thursday.
const BEFORE_1970: u64 = 3 * DAY;
/// The last instant that is exact in a double, in microseconds: in the year 2255.
const LAST: u64 = 1 << 53;

/// A rule by which time is divided.
#[derive(Debug)]
pub(super) enum Rule {
    /// Windows of a fixed length, in microseconds.
    Every { window: u64 },
    /// Windows of a calendar. All are counted from one date on which a window begins.
    Calendar { period: Period, name: String, zone: TimeZone, anchor: Date },
}

/// The database that is compiled in. The machine's own is never read: instances must agree.
static ZONES: LazyLock<TimeZoneDatabase> = LazyLock::new(TimeZoneDatabase::bundled);

pub(super) fn zone_names() -> Vec<String> {
    ZONES.available().map(|name| name.to_string()).collect()
}

/// The window of a fixed length that contains an instant. The first one after 1970 may be shorter.
pub(super) fn window_of_length(window: u64, at: u64) -> (u64, u64) {
    let shifted = at.saturating_add(BEFORE_1970 % window);
    let end = shifted.saturating_sub(shifted % window).saturating_add(window).saturating_sub(BEFORE_1970 % window);
    (end.saturating_sub(window), end)
}

impl Rule {
    pub(super) fn in_zone(period: Period, zone: &str) -> Result<Self, CalendarError> {
        let unknown = || CalendarError::UnknownZone { zone: zone.to_owned() };
        let found = ZONES.get(zone).map_err(|_| unknown())?;
        let name = found.iana_name().ok_or_else(unknown)?.to_owned();
        Ok(Self::Calendar { period, name, zone: found, anchor: anchor(period)? })
    }

    pub(super) fn with_rules(&self, posix: &str) -> Result<Self, CalendarError> {
        let invalid = || CalendarError::InvalidRules { rules: posix.to_owned() };
        let Self::Calendar { period, name, anchor, .. } = self else { return Err(invalid()) };
        let zone = TimeZone::posix(posix).map_err(|_| invalid())?;
        Ok(Self::Calendar { period: *period, name: name.clone(), zone, anchor: *anchor })
    }

    /// The boundaries around an instant. A window of no length is left out: a day that a time zone has skipped.
    pub(super) fn boundaries(&self, around: u64) -> Boundaries {
        let around = around.min(LAST);
        let in_force = self.index_of(around);
        let mut boundaries = Boundaries::default();
        boundaries[IN_FORCE] = self.boundary(in_force);
        let mut index = in_force;
        for place in IN_FORCE + 1..boundaries.len() {
            while boundaries[place] <= boundaries[place - 1] {
                index += 1;
                boundaries[place] = self.boundary(index);
            }
        }
        index = in_force;
        for place in (0..IN_FORCE).rev() {
            boundaries[place] = boundaries[place + 1];
            while boundaries[place] > 0 && boundaries[place] >= boundaries[place + 1] {
                index -= 1;
                boundaries[place] = self.boundary(index);
            }
        }
        boundaries
    }

    /// The last window that has begun at an instant, counted from that of the anchor.
    fn index_of(&self, at: u64) -> i64 {
        let mut index = match self {
            Self::Every { window } => i64::try_from(at / window).unwrap_or(i64::MAX),
            Self::Calendar { period, zone, anchor, .. } => {
                let date = zone.to_datetime(instant(at)).date();
                let since = |unit: Unit| anchor.until((unit, date)).expect("both are within the years of jiff");
                match period {
                    Period::Day => since(Unit::Day).get_days().into(),
                    Period::Week { .. } => since(Unit::Week).get_weeks().into(),
                    Period::Month { .. } => since(Unit::Month).get_months().into(),
                    Period::Year { .. } => since(Unit::Year).get_years().into(),
                }
            }
        };
        while self.boundary(index) > at {
            index -= 1;
        }
        while self.boundary(index + 1) <= at {
            index += 1;
        }
        index
    }

    /// When a window begins: at the first instant of its first day. If midnight comes twice, the earlier one; if it does not
    /// come, when the clocks were put forward.
    fn boundary(&self, index: i64) -> u64 {
        let (period, zone, anchor) = match self {
            Self::Calendar { period, zone, anchor, .. } => (period, zone, anchor),
            Self::Every { window } => {
                let from_week = i64::try_from(BEFORE_1970 % window).expect("less than a week");
                let window = i64::try_from(*window).expect("a year at most");
                return u64::try_from(index.saturating_mul(window) - from_week).unwrap_or(0);
            }
        };
        let span = match period {
            Period::Day => Span::new().days(index),
            Period::Week { .. } => Span::new().weeks(index),
            Period::Month { .. } => Span::new().months(index),
            Period::Year { .. } => Span::new().years(index),
        };
        // Counted from the anchor, not from one window to the next: so the 31st is the 31st again after a February.
        let date = anchor.checked_add(span).expect("within the years of jiff");
        let midnight = zone.to_ambiguous_timestamp(date.at(0, 0, 0, 0));
        let skipped = matches!(midnight.offset(), AmbiguousOffset::Gap { .. });
        let at = midnight.compatible().expect("within the years of jiff");
        let changed = || {
            let after = at.checked_add(SignedDuration::from_micros(1)).ok()?;
            Some(zone.preceding(after).next()?.timestamp())
        };
        let at = if skipped { changed().unwrap_or(at) } else { at };
        u64::try_from(at.as_microsecond()).unwrap_or(0)
    }
}

/// A date on which a window begins, such that all others can be counted from it: January has 31 days, and 1972 was a leap
/// year.
fn anchor(period: Period) -> Result<Date, CalendarError> {
    let day = |day: u8| i8::try_from(day).unwrap_or(i8::MAX);
    match period {
        Period::Day => Ok(Date::constant(1970, 1, 1)),
        // The fifth was a Monday.
        Period::Week { first } => Ok(Date::constant(1970, 1, 5 + first as i8)),
        Period::Month { day: of_month } => {
            Date::new(1970, 1, day(of_month)).map_err(|_| CalendarError::NoDayOfMonth { day: of_month })
        }
        Period::Year { month, day: of_month } => {
            let first = Date::constant(1972, 1 + month as i8, 1);
            let last = u8::try_from(first.days_in_month()).unwrap_or(u8::MAX);
            let none = |_| CalendarError::NoDayOfYear { month, day: of_month, last };
            first.with().day(day(of_month)).build().map_err(none)
        }
    }
}

fn instant(at: u64) -> Timestamp {
    let micros = i64::try_from(at).unwrap_or(i64::MAX);
    Timestamp::from_microsecond(micros).unwrap_or(Timestamp::MAX)
}

/// What is not the default is written. It is also what tells two calendars apart.
impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (period, name) = match self {
            Self::Every { window } => return write!(f, "{window} us"),
            Self::Calendar { period, name, .. } => (period, name),
        };
        write!(f, "{} in {name}", period.name())?;
        match period {
            Period::Week { first } if *first != Weekday::Monday => write!(f, " from {first}"),
            Period::Month { day } if *day != 1 => write!(f, " from day {day}"),
            Period::Year { month, day } if (*month, *day) != (Month::January, 1) => write!(f, " from {month} {day}"),
            _ => Ok(()),
        }
    }
}
