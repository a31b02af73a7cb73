//! The part of a limit's text that says by which calendar it counts.

use std::time::Duration;

use super::Scan;
use crate::limit::{Calendar, CalendarError, Limit, LimitBuilder, LimitError, Month, Period, Weekday};

/// The window as written: `2 hours`, `month`.
pub(super) struct Window<'t> {
    /// The text from the unit on.
    pub(super) place: &'t str,
    pub(super) unit: &'t str,
    pub(super) count: u64,
    /// `None` if the unit varies in length.
    pub(super) length: Option<Duration>,
}

/// What is written after the window.
#[derive(Default)]
pub(super) struct Words<'t> {
    /// The text from the name of the time zone on, and the name.
    zone: Option<(&'t str, &'t str)>,
    from: Option<From<'t>>,
}

/// When windows begin: `day 31`, `sunday`, `april 1`.
struct From<'t> {
    place: &'t str,
    word: &'t str,
    number: Option<u64>,
}

impl<'t> Scan<'t> {
    /// Reads `in` a time zone, or `from` a day, if that is what follows.
    pub(super) fn calendar_word(&mut self, words: &mut Words<'t>) -> Result<bool, LimitError> {
        let start = self.rest;
        match self.word() {
            "in" if words.zone.is_none() => {
                self.skip_space();
                let place = self.rest;
                let (name, rest) = place.split_at(place.find(ends_a_name).unwrap_or(place.len()));
                if name.is_empty() {
                    return Err(self.error("expected a time zone, for example `in Europe/Berlin`"));
                }
                self.rest = rest;
                words.zone = Some((place, name));
            }
            "from" if words.from.is_none() => {
                self.skip_space();
                let place = self.rest;
                let before = if self.peek_digit() { Some(self.number("a day")?) } else { None };
                let word = self.word();
                let number = if before.is_none() && self.peek_digit() { Some(self.number("a day")?) } else { before };
                words.from = Some(From { place, word, number });
            }
            word @ ("in" | "from") => return Err(self.error_at(start, format!("`{word}` is given twice"))),
            _ => {
                self.rest = start;
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The limit of an amount per window, by a calendar if one is written.
    pub(super) fn builder(
        &self,
        amount: u64,
        window: &Window<'t>,
        words: &Words<'t>,
    ) -> Result<LimitBuilder, LimitError> {
        let Some((place, zone)) = words.zone else {
            if let Some(from) = &words.from {
                let problem = "only windows of a time zone begin on a day: write `1000/month in UTC from day 15`";
                return Err(self.error_at(from.place, problem));
            }
            return match window.length {
                Some(length) => Ok(Limit::builder(amount, length)),
                None => Err(self.error_at(
                    window.place,
                    "months and years vary in length: name a time zone, for example `1000/month in UTC`, \
                     or use days, for example `30d` or `365d`",
                )),
            };
        };
        if window.count != 1 {
            let problem = "a calendar counts one `day`, `week`, `month` or `year` at a time: leave out the number";
            return Err(self.error_at(window.place, problem));
        }
        let period = self.period(window, words.from.as_ref())?;
        let calendar = Calendar::new(period, zone).map_err(|error| {
            let place = match (&error, &words.from) {
                (CalendarError::NoDayOfMonth { .. } | CalendarError::NoDayOfYear { .. }, Some(from)) => from.place,
                _ => place,
            };
            self.error_at(place, error.to_string())
        })?;
        Ok(Limit::in_calendar(amount, calendar))
    }

    fn period(&self, window: &Window<'t>, from: Option<&From<'t>>) -> Result<Period, LimitError> {
        let (day, plain) = (from.and_then(|from| from.number), from.is_none());
        // Above any day there is.
        let day = |default: u8| day.map_or(default, |day| u8::try_from(day).unwrap_or(u8::MAX));
        let word = from.map_or("", |from| from.word).to_ascii_lowercase();
        let misplaced = |problem: String| {
            let place = from.map_or(window.place, |from| from.place);
            Err(self.error_at(place, problem))
        };
        match window.unit {
            "d" | "day" | "days" if plain => Ok(Period::Day),
            "d" | "day" | "days" => misplaced("a day begins at midnight: leave out `from`".to_owned()),
            "w" | "week" | "weeks" => match word.parse() {
                _ if plain => Ok(Period::Week { first: Weekday::Monday }),
                Ok(first) if from.is_some_and(|from| from.number.is_none()) => Ok(Period::Week { first }),
                Ok(first) => misplaced(format!("a week begins on a weekday: write `from {first}`")),
                Err(unknown) => misplaced(format!("a week begins on a weekday, for example `from sunday`: {unknown}")),
            },
            "mo" | "month" | "months" if plain || word == "day" && day(0) > 0 => Ok(Period::Month { day: day(1) }),
            "mo" | "month" | "months" => {
                misplaced("a month begins on one of its days: write, for example, `from day 15`".to_owned())
            }
            "y" | "year" | "years" => match word.parse() {
                _ if plain => Ok(Period::Year { month: Month::January, day: 1 }),
                Ok(month) => Ok(Period::Year { month, day: day(1) }),
                Err(unknown) => misplaced(format!("a year begins on a date, for example `from april 1`: {unknown}")),
            },
            _ => {
                let problem =
                    "a calendar counts by `day`, `week`, `month` or `year`: use one of them, or leave out `in`";
                Err(self.error_at(window.place, problem))
            }
        }
    }
}

/// No other character is in a name of the database, or may be repeated in an error.
fn ends_a_name(character: char) -> bool {
    !(character.is_ascii_alphanumeric() || matches!(character, '/' | '_' | '+' | '-'))
}

#[cfg(test)]
mod tests {
    use crate::Limit;
    use crate::limit::{LimitError, Month, Period, Weekday};

    #[test]
    fn calendars_are_written_in_words_and_read_again() {
        for (text, period, zone, written) in [
            ("1000/month in Europe/Berlin", Period::Month { day: 1 }, "Europe/Berlin", ""),
            ("1000 per month in Europe/Berlin from day 31", Period::Month { day: 31 }, "Europe/Berlin", " from day 31"),
            ("5/day in UTC", Period::Day, "UTC", ""),
            ("5/d in asia/kathmandu calendar_window", Period::Day, "Asia/Kathmandu", ""),
            ("5/week in UTC", Period::Week { first: Weekday::Monday }, "UTC", ""),
            ("5/1 week from Sunday in UTC", Period::Week { first: Weekday::Sunday }, "UTC", " from sunday"),
            ("5/year in UTC", Period::Year { month: Month::January, day: 1 }, "UTC", ""),
            ("5/year in UTC from april", Period::Year { month: Month::April, day: 1 }, "UTC", " from april 1"),
            (
                "5/year in UTC from 29 february",
                Period::Year { month: Month::February, day: 29 },
                "UTC",
                " from february 29",
            ),
        ] {
            let limit: Limit = text.parse().unwrap_or_else(|error| panic!("{error}"));
            let calendar = limit.calendar().unwrap();
            assert_eq!((calendar.period(), calendar.zone()), (Some(period), zone), "{text}");
            assert_eq!(limit.to_string(), format!("{}/{} in {zone}{written}", limit.amount(), period.name()));
            assert_eq!(limit.to_string().parse::<Limit>().unwrap(), limit, "{text}");
        }
        assert_ne!("5/day in UTC".parse::<Limit>(), "5/day calendar_window".parse());
        assert_ne!("5/day in UTC".parse::<Limit>(), "5/day in Europe/Berlin".parse());
        let zero: Limit = "0/month in UTC".parse().unwrap();
        assert_eq!(zero.to_string(), "0/month in UTC");
        assert_eq!("9/month in UTC".parse::<Limit>().unwrap().share(1, 2).to_string(), "4/month in UTC");
    }

    #[test]
    fn errors_say_what_a_calendar_lacks() {
        for (text, at, problem) in [
            ("5/month", 2, "name a time zone, for example `1000/month in UTC`, or use days"),
            ("5/year burst 3", 2, "name a time zone"),
            ("5/month in", 10, "expected a time zone, for example `in Europe/Berlin`"),
            ("5/month in Europe/Berln", 11, "unknown time zone `Europe/Berln` (did you mean `Europe/Berlin`?)"),
            ("5/month in Nowhere/AtAllAtAll", 11, "use a name of the IANA database"),
            ("5/month in UTC in UTC", 15, "`in` is given twice"),
            ("5/month in UTC from day 1 from day 2", 26, "`from` is given twice"),
            ("5/month in UTC from day 32", 20, "no month has a day 32: use 1 to 31"),
            ("5/month in UTC from day 0", 20, "for example, `from day 15`"),
            ("5/month in UTC from day 300", 20, "no month has a day 255"),
            ("5/month in UTC from monday", 20, "for example, `from day 15`"),
            ("5/month from day 15", 13, "write `1000/month in UTC from day 15`"),
            ("5/year in UTC from february 30", 19, "february has no day 30: use 1 to 29"),
            ("5/year in UTC from april 31", 19, "april has no day 31: use 1 to 30"),
            ("5/year in UTC from april 0", 19, "april has no day 0"),
            ("5/year in UTC from day 3", 19, "for example `from april 1`"),
            ("5/year in UTC from march 99999999999999999999", 25, "the largest number"),
            ("5/week in UTC from sunnday", 19, "did you mean `sunday`?"),
            ("5/week in UTC from sunday 3", 19, "write `from sunday`"),
            ("5/day in UTC from monday", 18, "a day begins at midnight"),
            ("5/2 months in UTC", 4, "one `day`, `week`, `month` or `year` at a time"),
            ("5/0 months in UTC", 4, "cannot be zero"),
            ("5/h in UTC", 2, "a calendar counts by `day`, `week`, `month` or `year`"),
            ("5/fortnight in UTC", 2, "expected a unit"),
            ("5/month in UTC sliding_log", 15, "sliding_log cannot count by a calendar"),
            ("5/month sliding_log in UTC", 8, "sliding_log cannot count by a calendar"),
            ("5/month in UTC burst 6", 15, "cannot be used with calendar_window"),
            ("5/month in \u{1b}[31mUTC", 11, "expected a time zone"),
            ("5/month in Zürich", 12, "expected `burst` or an algorithm"),
            ("5/month in UTC, 3/s", 14, "expected `burst` or an algorithm"),
        ] {
            match text.parse::<Limit>() {
                Err(LimitError::Syntax { at: found, problem: said, .. }) => {
                    assert!(said.contains(problem), "{text}: {said}");
                    assert_eq!(found, at, "{text}: {said}");
                }
                other => panic!("{text}: {other:?}"),
            }
        }
    }
}
