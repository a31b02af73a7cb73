use jiff::civil::{Date, date};
use jiff::tz::TimeZone;

use super::*;

/// Both hemispheres, half and quarter hours, changes at midnight, of half an hour and of two, a day that was skipped.
const ZONES: [&str; 16] = [
    "UTC",
    "Africa/Cairo",
    "Africa/Casablanca",
    "America/Asuncion",
    "America/Havana",
    "America/New_York",
    "America/Sao_Paulo",
    "America/St_Johns",
    "Antarctica/Troll",
    "Asia/Beirut",
    "Asia/Kathmandu",
    "Asia/Tehran",
    "Australia/Lord_Howe",
    "Europe/Berlin",
    "Pacific/Apia",
    "Pacific/Chatham",
];

fn micros(zone: &TimeZone, date: Date, hour: i8) -> u64 {
    let at = zone.to_ambiguous_timestamp(date.at(hour, 0, 0, 0)).compatible().unwrap();
    u64::try_from(at.as_microsecond()).unwrap()
}

/// The date in a time zone.
fn date_at(zone: &TimeZone, at: u64) -> Date {
    zone.to_datetime(jiff::Timestamp::from_microsecond(i64::try_from(at).unwrap()).unwrap()).date()
}

/// Whether a window begins on a date, said without counting from an anchor.
fn begins(period: Period, date: Date) -> bool {
    let is_day = |day: u8| date.day() == i8::try_from(day).unwrap().min(date.days_in_month());
    match period {
        Period::Day => true,
        Period::Week { first } => date.weekday().to_monday_zero_offset() == first as i8,
        Period::Month { day } => is_day(day),
        Period::Year { month, day } => date.month() == 1 + month as i8 && is_day(day),
    }
}

/// Twenty years back and ahead. jiff is asked the other way round: which date it is at an instant, and one microsecond before.
#[test]
fn every_window_of_forty_years_begins_when_jiff_says_that_its_first_day_does() {
    let week = |first| Period::Week { first };
    let year = |month, day| Period::Year { month, day };
    let mut periods = vec![Period::Day, week(Weekday::Monday), week(Weekday::Thursday), week(Weekday::Sunday)];
    periods.extend([1, 15, 28, 29, 30, 31].map(|day| Period::Month { day }));
    periods.extend([
        year(Month::January, 1),
        year(Month::February, 29),
        year(Month::March, 29),
        year(Month::October, 31),
    ]);
    for name in ZONES {
        let zone = TimeZone::get(name).unwrap();
        for &period in &periods {
            let calendar = Calendar::new(period, name).unwrap();
            let mut last: Option<(u64, u64)> = None;
            let days = std::iter::successors(Some(date(2006, 10, 15)), |day| day.tomorrow().ok());
            for first in days.take_while(|day| day.year() < 2047).filter(|&day| begins(period, day)) {
                let (start, end) = calendar.window_of(micros(&zone, first, 12));
                assert!(date_at(&zone, start) >= first, "{calendar}: {start} is before {first}");
                assert!(date_at(&zone, start - 1) < first, "{calendar}: {first} begins before {start}");
                assert!(end - start <= calendar.longest(), "{calendar}: {start} to {end}");
                // Nothing is between two windows; a day that a zone skips is the next one.
                assert!(
                    last.is_none_or(|last| last.1 == start || last == (start, end)),
                    "{calendar}: gap before {first}"
                );
                for at in [start, start + (end - start) / 2, end - 1] {
                    assert_eq!(calendar.window_of(at), (start, end), "{calendar}: at {at}");
                }
                last = Some((start, end));
            }
        }
    }
}

/// The first days of the windows from an instant on, in the time zone, with their lengths in hours.
fn windows(calendar: &str, from: Date, count: usize) -> Vec<(String, u64)> {
    let limit: crate::Limit = format!("5/{calendar}").parse().unwrap();
    let calendar = limit.calendar().unwrap();
    let zone = TimeZone::get(calendar.zone()).unwrap();
    let mut at = micros(&zone, from, 12);
    let window = |_| {
        let (start, end) = calendar.window_of(at);
        at = end;
        let first = jiff::Timestamp::from_microsecond(i64::try_from(start).unwrap()).unwrap();
        (zone.to_datetime(first).strftime("%m-%d %H:%M").to_string(), (end - start) / 3_600_000_000)
    };
    (0..count).map(window).collect()
}

fn same(found: Vec<(String, u64)>, expected: &[(&str, u64)]) {
    let found: Vec<(&str, u64)> = found.iter().map(|(first, hours)| (first.as_str(), *hours)).collect();
    assert_eq!(found, expected);
}

#[test]
fn a_month_from_the_31st_ends_with_the_month_and_comes_back_to_the_31st() {
    let days = |days: u64| days * 24;
    same(
        windows("month in UTC from day 31", date(2027, 12, 31), 5),
        &[
            ("12-31 00:00", days(31)),
            ("01-31 00:00", days(29)),
            ("02-29 00:00", days(31)),
            ("03-31 00:00", days(30)),
            ("04-30 00:00", days(31)),
        ],
    );
    same(
        windows("month in UTC from day 30", date(2027, 1, 30), 3),
        &[("01-30 00:00", days(29)), ("02-28 00:00", days(30)), ("03-30 00:00", days(31))],
    );
}

#[test]
fn a_year_from_a_leap_day_begins_on_the_28th_in_other_years() {
    let days = |days: u64| days * 24;
    same(
        windows("year in UTC from february 29", date(2024, 2, 29), 5),
        &[
            ("02-29 00:00", days(365)),
            ("02-28 00:00", days(365)),
            ("02-28 00:00", days(365)),
            ("02-28 00:00", days(366)),
            ("02-29 00:00", days(365)),
        ],
    );
}

#[test]
fn days_are_shorter_and_longer_when_the_clocks_change() {
    let berlin = |from| windows("day in Europe/Berlin", from, 2);
    same(berlin(date(2027, 3, 28)), &[("03-28 00:00", 23), ("03-29 00:00", 24)]);
    same(berlin(date(2027, 10, 31)), &[("10-31 00:00", 25), ("11-01 00:00", 24)]);
    // Two hours, and half an hour.
    same(windows("day in Antarctica/Troll", date(2027, 10, 31), 1), &[("10-31 00:00", 26)]);
    same(windows("day in Australia/Lord_Howe", date(2027, 10, 3), 1), &[("10-03 00:00", 23)]);
}

#[test]
fn a_midnight_that_does_not_come_is_the_first_instant_after_it() {
    same(windows("day in America/Sao_Paulo", date(2018, 11, 4), 2), &[("11-04 01:00", 23), ("11-05 00:00", 24)]);
    // On 10 April the clocks go from half past eleven to half past twelve.
    let skipped = Calendar::new(Period::Day, "UTC").unwrap().with_rules("AAA0BBB,J100/23:30,J200/12").unwrap();
    let noon = micros(&TimeZone::UTC, date(2027, 4, 11), 12);
    assert_eq!(skipped.window_of(noon), (noon - 45_000_000_000, noon + 39_600_000_000));
}

#[test]
fn a_midnight_that_comes_twice_is_the_earlier_one() {
    same(windows("day in America/Havana", date(2027, 11, 7), 1), &[("11-07 00:00", 25)]);
    // At one in the morning the clocks go back to midnight; in the zone below they go back to the day before.
    let twice = Calendar::new(Period::Day, "UTC").unwrap().with_rules("AAA0BBB,J100/12,J200/0:30").unwrap();
    let at = micros(&TimeZone::UTC, date(2027, 7, 19), 12);
    let (start, end) = twice.window_of(at);
    assert_eq!((at - start, end - start), (13 * 3_600_000_000, 25 * 3_600_000_000));
}

/// On 30 December 2011 nobody was in Samoa.
#[test]
fn a_day_that_a_zone_skips_is_no_window() {
    same(
        windows("day in Pacific/Apia", date(2011, 12, 28), 4),
        &[("12-28 00:00", 24), ("12-29 00:00", 24), ("12-31 00:00", 24), ("01-01 00:00", 24)],
    );
    same(
        windows("month in Pacific/Apia from day 30", date(2011, 11, 30), 2),
        &[("11-30 00:00", 30 * 24), ("12-31 00:00", 30 * 24)],
    );
}

#[test]
fn odd_offsets_count() {
    let calendar = Calendar::new(Period::Day, "Asia/Kathmandu").unwrap();
    let midnight = micros(&TimeZone::UTC, date(2027, 1, 1), 0);
    assert_eq!(calendar.window_of(midnight).0, midnight - (5 * 60 + 45) * 60_000_000);
}

/// Instants are exact until 2112, and no reading of a clock breaks anything.
#[test]
fn any_instant_is_in_a_window() {
    let year = Calendar::new(Period::Year { month: Month::March, day: 1 }, "Asia/Kathmandu").unwrap();
    let minute = Calendar::of_length(60_000_000);
    for at in [0, 1, 5_000_000_000_000, 1 << 52, (1 << 53) - 1, 1 << 53, u64::MAX - 1] {
        for calendar in [&year, &minute] {
            let (start, end) = calendar.window_of(at);
            assert!(start <= at && at < end, "{calendar} at {at}: {start} to {end}");
        }
    }
    assert_eq!(year.window_of(0).0, 0, "there is no time before 1970");
}

/// Windows of a fixed length begin with the days and weeks of UTC.
#[test]
fn windows_of_a_fixed_length_are_those_of_utc() {
    for (length, calendar) in [(7 * 86_400, "week"), (86_400, "day")] {
        let plain = Calendar::of_length(length * 1_000_000);
        let calendar: crate::Limit = format!("5/{calendar} in UTC").parse().unwrap();
        for at in (0..2_000_000_000_000_000).step_by(99_999_999_999_997).chain([0, 345_600_000_000]) {
            assert_eq!(plain.window_of(at), calendar.calendar().unwrap().window_of(at), "{at}");
            assert_eq!(plain.boundaries(at), plain.0.rule.boundaries(at));
            let (start, end) = plain.window_of(at);
            assert!(plain.boundaries(at).contains(&start) && plain.boundaries(at).contains(&end));
        }
    }
}

/// What a script is sent allows its server's clock to differ by three windows.
#[test]
fn boundaries_reach_three_windows_in_both_directions() {
    let calendar = Calendar::new(Period::Day, "Europe/Berlin").unwrap();
    let at = micros(&TimeZone::UTC, date(2027, 7, 1), 12);
    let boundaries = calendar.boundaries(at);
    assert!(boundaries.is_sorted() && boundaries[0] + 3 * 86_400_000_000 <= at);
    assert!(at + 3 * 86_400_000_000 < boundaries[7]);
    assert_eq!(calendar.boundaries(boundaries[3]), boundaries);
    assert_eq!(calendar.boundaries(boundaries[4] - 1), boundaries);
    assert_eq!(calendar.boundaries(boundaries[4])[3], boundaries[4]);
    assert_eq!(calendar.boundaries(boundaries[3] - 1)[4], boundaries[3]);
}

#[test]
fn calendars_are_told_apart_by_their_rule_and_not_by_their_database() {
    let of = |period, zone: &str| Calendar::new(period, zone).unwrap();
    let all = [
        of(Period::Day, "UTC"),
        of(Period::Day, "Europe/Berlin"),
        of(Period::Week { first: Weekday::Monday }, "UTC"),
        of(Period::Week { first: Weekday::Sunday }, "UTC"),
        of(Period::Month { day: 1 }, "UTC"),
        of(Period::Month { day: 31 }, "UTC"),
        of(Period::Year { month: Month::January, day: 1 }, "UTC"),
        of(Period::Year { month: Month::January, day: 2 }, "UTC"),
        Calendar::of_length(86_400_000_000),
        Calendar::of_length(3_600_000_000),
    ];
    for (one, calendar) in all.iter().enumerate() {
        assert!(calendar.number() < 1 << 48);
        for (other, second) in all.iter().enumerate() {
            assert_eq!(calendar == second, one == other, "{calendar} and {second}");
            assert_eq!(calendar.number() == second.number(), one == other);
        }
    }
    let later = all[1].with_rules("CET-3").unwrap();
    assert_eq!((later.number(), &later), (all[1].number(), &all[1]));
    assert_ne!(later.window_of(5_000_000_000_000_000), all[1].window_of(5_000_000_000_000_000));
    assert!(all[1].with_rules("25 o'clock").is_err());
}

#[test]
fn a_calendar_that_does_not_exist_is_refused() {
    let error = |period, zone: &str| Calendar::new(period, zone).unwrap_err().to_string();
    let unknown = error(Period::Day, "Europe/Berln");
    assert!(
        unknown.starts_with("unknown time zone `Europe/Berln` (did you mean `Europe/Berlin`?): use a name"),
        "{unknown}"
    );
    assert!(error(Period::Day, "").contains("unknown time zone ``"));
    assert!(error(Period::Day, "../../etc/localtime").contains("unknown time zone"));
    for day in [0, 32, 255] {
        assert!(error(Period::Month { day }, "UTC").contains(&format!("no month has a day {day}")));
        let month = Month::February;
        assert!(error(Period::Year { month, day }, "UTC").contains("use 1 to 29"));
    }
}
