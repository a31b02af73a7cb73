//! The text form of a limit, for code, command line, configuration and HTTP.
//!
//! ```text
//! limit     = amount ("/" | "per") [count] unit { "burst" amount | algorithm }
//!           | amount "concurrent"
//!           | amount ("/" | "per") period "in" zone [ "from" first ] [ "calendar_window" ]
//! unit      = "ms" | "s" | "sec" | "second" | "min" | "minute" | "h" | "hour" | "d" | "day" | "w" | "week" (or plural)
//! algorithm = "token_bucket" | "fixed_window" | "fixed_window_from_first_call" | "sliding_window" | …
//! period    = "day" | "week" | "month" | "year"
//! zone      = a name of the IANA database: "UTC" | "Europe/Berlin" | …
//! first     = weekday | "day" number | month number
//! ```

mod calendar;

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use super::{Limit, LimitBuilder, LimitError};
use crate::algorithm::Algorithm;
use calendar::{Window, Words};

/// The names of each unit, the canonical one first, and its length in milliseconds. Ordered by preference when a limit
/// is written.
const UNITS: [(&[&str], u64); 6] = [
    (&["day", "d", "days"], 86_400_000),
    (&["h", "hr", "hour", "hours"], 3_600_000),
    (&["min", "m", "mins", "minute", "minutes"], 60_000),
    (&["s", "sec", "secs", "second", "seconds"], 1000),
    (&["ms", "millisecond", "milliseconds"], 1),
    (&["w", "week", "weeks"], 604_800_000),
];

impl FromStr for Limit {
    type Err = LimitError;

    fn from_str(text: &str) -> Result<Self, LimitError> {
        Self::parse_with(text, None)
    }
}

impl Limit {
    /// Parses a limit whose text may omit the algorithm; `algorithm` is then used.
    ///
    /// ```
    /// use tallygate::{Algorithm, Limit};
    ///
    /// let log = Some(Algorithm::SlidingLog);
    /// assert_eq!(Limit::parse_with("5/min", log)?.algorithm(), Algorithm::SlidingLog);
    /// assert_eq!(Limit::parse_with("5/min fixed_window", log)?.algorithm(), Algorithm::FixedWindow);
    /// # Ok::<(), tallygate::limit::LimitError>(())
    /// ```
    pub fn parse_with(text: &str, algorithm: Option<Algorithm>) -> Result<Self, LimitError> {
        let builder: LimitBuilder = text.parse()?;
        if algorithm == Some(Algorithm::Concurrency) && builder.chosen_algorithm().is_none() {
            return Err(LimitError::NoWindow { amount: builder.amount }.in_text(text));
        }
        let algorithm = builder.chosen_algorithm().or(algorithm).unwrap_or_default();
        builder.algorithm(algorithm).build().map_err(|error| error.in_text(text))
    }
}

impl LimitError {
    /// Points the error of a limit that was scanned at its position in the text.
    fn in_text(self, text: &str) -> Self {
        let place = match &self {
            Self::TooLarge { what: "amount", .. } => text.trim_start(),
            Self::NoWindow { .. } => text.find(['/', 'p']).map_or(text, |at| &text[at..]),
            Self::NotByCalendar { algorithm } => text.find(algorithm.name()).map_or(text, |at| &text[at..]),
            // The window was checked by the scanner.
            _ => text.find("burst").map_or(text, |at| &text[at..]),
        };
        Scan { text, rest: place }.error(self.to_string())
    }
}

impl FromStr for LimitBuilder {
    type Err = LimitError;

    fn from_str(text: &str) -> Result<Self, LimitError> {
        let mut scan = Scan { text, rest: text };
        let amount = scan.number("an amount, for example `100/min`")?;
        if scan.take("concurrent") {
            return match scan.at_end() {
                true => Ok(Limit::concurrent(amount)),
                false => Err(scan.error("nothing may follow `concurrent`: a concurrency limit has no window")),
            };
        }
        if !scan.take("/") && !scan.take("per") {
            return Err(scan.no_window());
        }
        let count = if scan.peek_digit() { scan.number("a number")? } else { 1 };
        let window = scan.window(count)?;
        let (mut written, mut words) = (Written::default(), Words::default());
        while !scan.at_end() {
            if !scan.calendar_word(&mut words)? {
                scan.extra(&mut written)?;
            }
        }
        let builder = scan.builder(amount, &window, &words)?;
        let algorithm = written.algorithm.or(builder.algorithm);
        Ok(LimitBuilder { burst: written.burst, algorithm, ..builder })
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_concurrency() {
            return write!(f, "{} concurrent", self.amount());
        }
        if let Some(calendar) = self.calendar() {
            return write!(f, "{}/{calendar}", self.amount());
        }
        let millis = u64::try_from(self.window().as_millis()).unwrap_or(u64::MAX);
        let unit = UNITS.into_iter().find(|(_, size)| millis.is_multiple_of(*size));
        let (names, size) = unit.expect("a millisecond is a unit");
        match (millis / size, names[0]) {
            (1, unit) => write!(f, "{}/{unit}", self.amount())?,
            (count, "day") => write!(f, "{}/{count}d", self.amount())?,
            (count, unit) => write!(f, "{}/{count}{unit}", self.amount())?,
        }
        if self.capacity() != self.amount() {
            write!(f, " burst {}", self.capacity())?;
        }
        if self.algorithm() != Algorithm::default() {
            write!(f, " {}", self.algorithm())?;
        }
        Ok(())
    }
}

/// What may be written after the window of any limit.
#[derive(Default)]
struct Written {
    burst: Option<u64>,
    algorithm: Option<Algorithm>,
}

/// The scanner of a limit's text.
struct Scan<'t> {
    text: &'t str,
    rest: &'t str,
}

impl<'t> Scan<'t> {
    fn error(&self, problem: impl Into<String>) -> LimitError {
        self.error_at(self.rest, problem)
    }

    /// `place` is a tail of the text.
    fn error_at(&self, place: &str, problem: impl Into<String>) -> LimitError {
        let at = self.text[..self.text.len() - place.len()].chars().count();
        let shown: String = self.text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
        LimitError::Syntax { text: shown, at, problem: problem.into() }
    }

    fn skip_space(&mut self) {
        self.rest = self.rest.trim_start();
    }

    fn at_end(&mut self) -> bool {
        self.skip_space();
        self.rest.is_empty()
    }

    fn peek_digit(&mut self) -> bool {
        self.skip_space();
        self.rest.starts_with(|c: char| c.is_ascii_digit())
    }

    fn take(&mut self, word: &str) -> bool {
        self.skip_space();
        match self.rest.strip_prefix(word) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn word(&mut self) -> &'t str {
        self.skip_space();
        let end = self.rest.find(|c: char| !c.is_ascii_alphabetic() && c != '_').unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        word
    }

    fn number(&mut self, what: &str) -> Result<u64, LimitError> {
        self.skip_space();
        let start = self.rest;
        let end = start.find(|c: char| !c.is_ascii_digit()).unwrap_or(start.len());
        let (digits, rest) = start.split_at(end);
        if digits.is_empty() {
            let hint = if start.starts_with('-') { "a limit cannot be negative: expected" } else { "expected" };
            return Err(self.error(format!("{hint} {what}")));
        }
        self.rest = rest;
        if rest.starts_with('.') {
            return Err(self.error("fractions are not supported: write `1/2s` for `0.5/s`, and `5/90min` for `5/1.5h`"));
        }
        if rest.starts_with(['e', 'E', '_', ',']) || is_magnitude(rest) {
            return Err(self.error("write the number in plain digits, for example `1000/min`"));
        }
        digits.parse().map_err(|_| self.error_at(start, format!("the largest number is {}", Limit::MAX_AMOUNT)))
    }

    /// The error of what stands between the amount and its window.
    fn no_window(&mut self) -> LimitError {
        let start = self.rest;
        self.word();
        self.skip_space();
        let problem = if self.rest.starts_with('/') || self.rest.starts_with("per") {
            "leave out this word: a limit is written as `100/min`"
        } else {
            "expected `/` or `per` after the amount, for example `100/min`"
        };
        self.error_at(start, problem)
    }

    fn window(&mut self, count: u64) -> Result<Window<'t>, LimitError> {
        self.skip_space();
        let place = self.rest;
        let unit = self.word();
        let varies = matches!(unit, "mo" | "month" | "months" | "y" | "year" | "years");
        let millis = UNITS.into_iter().find(|(names, _)| names.contains(&unit)).map(|(_, millis)| millis);
        if millis.is_none() && !varies {
            let problem =
                "expected a unit: `ms`, `s`, `min`, `h`, `day` or `week`, or of a time zone `month` or `year`";
            return Err(self.error_at(place, problem));
        }
        if count == 0 {
            return Err(self.error_at(place, "a window cannot be zero: the shortest is `1ms`"));
        }
        let length = |millis| {
            let millis = count.checked_mul(millis).filter(|&millis| millis <= 365 * 86_400_000);
            millis.map(Duration::from_millis).ok_or_else(|| self.error_at(place, "the longest window is `365d`"))
        };
        let length = millis.map(length).transpose()?;
        Ok(Window { place, unit, count, length })
    }

    fn extra(&mut self, builder: &mut Written) -> Result<(), LimitError> {
        let start = self.rest;
        let word = self.word();
        if word == "burst" {
            if builder.burst.is_some() {
                return Err(self.error_at(start, "`burst` is given twice"));
            }
            if self.rest.starts_with(['=', ':']) {
                return Err(self.error("write a space before the burst, for example `burst 50`"));
            }
            builder.burst = Some(self.number("the burst, for example `burst 50`")?);
            return Ok(());
        }
        if builder.algorithm.is_some() {
            return Err(self.error_at(start, "only `burst` may follow the algorithm"));
        }
        let algorithm = word.parse::<Algorithm>();
        builder.algorithm = Some(algorithm.map_err(|error| {
            let problem = match start.strip_prefix('/') {
                _ if !word.is_empty() => error.to_string(),
                None => "expected `burst` or an algorithm".to_owned(),
                Some(key) => {
                    let key = Scan { text: key, rest: key }.word();
                    let key = if key.is_empty() { "user" } else { key };
                    format!("a limit does not say what to count by: in a policy file, write `partition: [{key}]`")
                }
            };
            self.error_at(start, problem)
        })?);
        Ok(())
    }
}

/// Whether a number goes on with a letter for thousands or millions.
fn is_magnitude(rest: &str) -> bool {
    let end = rest.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(rest.len());
    matches!(&rest[..end], "k" | "K") || rest.starts_with("M/")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_written_forms_mean_what_they_say() {
        for (text, amount, millis, capacity) in [
            ("100/min", 100, 60_000, 100),
            ("10/s burst 50", 10, 1000, 50),
            ("5 per 2h", 5, 7_200_000, 5),
            ("5 per 2 hours", 5, 7_200_000, 5),
            ("1000/day", 1000, 86_400_000, 1000),
            ("3/250ms", 3, 250, 3),
            ("0/s", 0, 1000, 0),
            ("5/365d", 5, 31_536_000_000, 5),
            ("  7  /  1  week  ", 7, 604_800_000, 7),
        ] {
            let limit: Limit = text.parse().unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(limit.amount(), amount, "{text}");
            assert_eq!(limit.window(), Duration::from_millis(millis), "{text}");
            assert_eq!(limit.capacity(), capacity, "{text}");
        }
    }

    #[test]
    fn errors_point_at_the_character_and_say_what_would_be_right() {
        for (text, at, problem) in [
            ("", 0, "expected an amount"),
            ("0/0s", 3, "a window cannot be zero"),
            ("5/", 2, "expected a unit"),
            ("5", 1, "expected `/` or `per`"),
            ("1e9/day", 1, "plain digits"),
            ("1,000/min", 1, "plain digits"),
            ("1k/min", 1, "plain digits"),
            ("1M/day", 1, "plain digits"),
            ("5/10M", 4, "expected a unit"),
            ("5/min burst 2K", 13, "plain digits"),
            ("100r/m", 3, "leave out this word: a limit is written as `100/min`"),
            ("100 requests per minute", 4, "leave out this word"),
            ("100 minute", 4, "expected `/` or `per` after the amount"),
            ("5/min burst=5", 11, "write a space before the burst, for example `burst 50`"),
            ("10/min/user", 6, "write `partition: [user]`"),
            ("10/min/ip", 6, "write `partition: [ip]`"),
            ("10/min/", 6, "write `partition: [user]`"),
            ("10/min/ ip", 6, "write `partition: [ip]`"),
            ("-3/min", 0, "cannot be negative"),
            ("1.5/s", 1, "fractions are not supported"),
            ("5/1.5h", 3, "fractions are not supported"),
            ("5/min gcra", 6, "same limit as `token_bucket`"),
            ("5/month", 2, "use days"),
            ("5/fortnight", 2, "expected a unit"),
            ("5/2 fortnights", 4, "expected a unit"),
            ("5/min bursts 3", 6, "did you mean"),
            ("5/min sliding_logs", 6, "did you mean `sliding_log`"),
            ("5/min burst", 11, "expected the burst"),
            ("5/min burst 1 burst 2", 14, "twice"),
            ("5/min sliding_log fixed_window", 18, "only `burst` may follow the algorithm"),
            ("5/400d", 5, "the longest window"),
            ("5/31536000001ms", 13, "the longest window"),
            ("99999999999999999999/s", 0, "the largest number"),
            ("5/min, 3/s", 5, "expected `burst` or an algorithm"),
            ("∞/s", 0, "expected an amount"),
            (" 2000000000/day", 1, "the largest is 1000000000"),
            ("5/min burst 3 sliding_log", 6, "cannot be used with sliding_log"),
            ("5/min burst 2000000000", 6, "the largest is 1000000000"),
            ("5/min burst 0", 6, "at least 1"),
            ("1/365d burst 101", 7, "the largest possible burst is 100"),
        ] {
            match text.parse::<Limit>() {
                Err(LimitError::Syntax { at: found, problem: said, .. }) => {
                    assert_eq!(found, at, "{text}: {said}");
                    assert!(said.contains(problem), "{text}: {said}");
                    assert_eq!(said.contains("negative"), text.starts_with('-'), "{text}: {said}");
                }
                other => panic!("{text}: {other:?}"),
            }
        }
    }

    #[test]
    fn the_caret_stands_below_the_fault() {
        let error = "5/fortnight".parse::<Limit>().unwrap_err().to_string();
        assert!(error.ends_with("\n  5/fortnight\n    ^"), "{error}");
    }

    proptest! {
        #[test]
        fn display_and_from_str_agree(
            amount in 1..=Limit::MAX_AMOUNT, millis in 1_u64..=365 * 86_400_000, burst in 1..=Limit::MAX_AMOUNT,
            algorithm in prop::sample::select(Algorithm::OVER_TIME.to_vec()),
        ) {
            let builder = Limit::builder(amount, Duration::from_millis(millis)).algorithm(algorithm);
            let limit = builder.clone().build().unwrap();
            prop_assert_eq!(limit.to_string().parse::<Limit>().unwrap(), limit);
            if let Ok(limit) = builder.burst(burst).build() {
                prop_assert_eq!(limit.to_string().parse::<Limit>().unwrap(), limit);
            }
        }

        #[test]
        fn no_text_panics(text in "\\PC{0,40}") {
            let _ = text.parse::<Limit>().map_err(|error| error.to_string());
        }

        #[test]
        fn near_misses_do_not_panic(text in "[0-9]{0,12} ?(/|per)? ?[0-9]{0,3}(ms|s|min|mo|h|d)? ?(burst)? ?[a-z_0-9]{0,12}") {
            let _ = text.parse::<Limit>().map_err(|error| error.to_string());
        }
    }
}
