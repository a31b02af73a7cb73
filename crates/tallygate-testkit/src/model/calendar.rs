//! Section 14: the windows of a calendar, found day by day and not counted from an anchor.

use std::sync::LazyLock;

use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::{TimeZone, TimeZoneDatabase};
use tallygate::Limit;
use tallygate::limit::Period;

use crate::random::ZONES;

/// A calendar of one of the [`ZONES`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Calendar {
    period: Period,
    zone: &'static str,
}

/// In microseconds.
const QUARTER: i64 = 900_000_000;
pub(super) const DAY: u64 = 86_400_000_000;

static DATABASE: LazyLock<TimeZoneDatabase> = LazyLock::new(TimeZoneDatabase::bundled);

impl Calendar {
    pub(super) fn of(limit: &Limit) -> Option<Self> {
        let calendar = limit.calendar()?;
        let zone = ZONES.iter().find(|zone| **zone == calendar.zone()).expect("one of the zones of the tests");
        Some(Self { period: calendar.period()?, zone })
    }

    /// The beginnings of the window that contains an instant, and of the next one.
    pub(super) fn window_of(self, at: u64) -> (u64, u64) {
        let zone = DATABASE.get(self.zone).expect("a zone of the database");
        let today = date(&zone, i64::try_from(at).expect("before the year 2255"));
        // On the last day of a period, clocks that go back can return to the day before.
        let tomorrow = today.tomorrow().expect("within the years of jiff");
        let days = std::iter::successors(Some(tomorrow), |day| day.yesterday().ok());
        let before =
            days.filter(|&day| self.begins(day)).map(|day| first_instant(&zone, day)).find(|&start| start <= at);
        let days = std::iter::successors(Some(today), |day| day.tomorrow().ok());
        let after = days.filter(|&day| self.begins(day)).map(|day| first_instant(&zone, day)).find(|&start| start > at);
        (before.expect("a first day"), after.expect("a next first day"))
    }

    /// Whether a window begins on this day.
    fn begins(self, date: Date) -> bool {
        let is = |day: u8| date.day() == date.days_in_month().min(i8::try_from(day).expect("31 at most"));
        match self.period {
            Period::Day => true,
            Period::Week { first } => date.weekday().to_monday_zero_offset() == first as i8,
            Period::Month { day } => is(day),
            Period::Year { month, day } => date.month() == 1 + month as i8 && is(day),
        }
    }
}

fn date(zone: &TimeZone, at: i64) -> Date {
    zone.to_datetime(Timestamp::from_microsecond(at).expect("within the years of jiff")).date()
}

/// The first instant at which the date is at least this one: searched for, because no clock says it.
fn first_instant(zone: &TimeZone, day: Date) -> u64 {
    let midnight = TimeZone::UTC.to_timestamp(day.at(0, 0, 0, 0)).expect("within the years of jiff").as_microsecond();
    let earliest = midnight - 26 * 4 * QUARTER;
    // The clocks change at most once within a quarter of an hour.
    let quarter = (0..).map(|quarter| earliest + quarter * QUARTER).find(|&at| date(zone, at) >= day);
    let mut after = quarter.expect("every day comes");
    let mut before = after - QUARTER;
    while after - before > 1 {
        let middle = before + (after - before) / 2;
        if date(zone, middle) >= day { after = middle } else { before = middle }
    }
    u64::try_from(after).expect("after 1970")
}
