//! Durations as they are written and printed: `250ms`, `30s`, `5min`, `1h 30min`, `2d`.

use std::time::Duration;

use anyhow::Context;
use tallygate_http::millis_up;

const DAY: u64 = 86_400_000;
const HOUR: u64 = 3_600_000;
const MINUTE: u64 = 60_000;
const SECOND: u64 = 1000;

/// The units, with the names they have in limits, in milliseconds.
const UNITS: [(&[&str], u64); 6] = [
    (&["ms", "millisecond", "milliseconds"], 1),
    (&["s", "sec", "secs", "second", "seconds"], SECOND),
    (&["min", "m", "mins", "minute", "minutes"], MINUTE),
    (&["h", "hr", "hour", "hours"], HOUR),
    (&["d", "day", "days"], DAY),
    (&["w", "week", "weeks"], 7 * DAY),
];

/// Reads whole numbers with their units: `90s`, `1m30s`, `1 hour 30 minutes`.
pub(crate) fn parse(text: &str) -> anyhow::Result<Duration> {
    let invalid =
        || format!("invalid duration `{text}`: write a number and a unit, for example 250ms, 30s, 5min, 1h30m or 2d");
    let mut rest = text.trim();
    let mut millis = Some(0_u64);
    loop {
        let (digits, after) = rest.split_at(rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len()));
        let after = after.trim_start();
        let (word, after) = after.split_at(after.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(after.len()));
        let unit = UNITS.iter().find(|(names, _)| names.contains(&word)).filter(|_| !digits.is_empty());
        let (_, unit) = unit.with_context(invalid)?;
        let count = digits.parse::<u64>().ok().and_then(|count| count.checked_mul(*unit));
        millis = millis.zip(count).and_then(|(sum, count)| sum.checked_add(count));
        rest = after.trim_start();
        if rest.is_empty() {
            return millis.map(Duration::from_millis).with_context(|| format!("the duration `{text}` is too long"));
        }
    }
}

/// At most two units, rounded up.
pub(crate) fn render(span: Duration) -> String {
    let millis = millis_up(span);
    match millis {
        0 => return "0ms".to_owned(),
        1..MINUTE => return format!("{:?}", Duration::from_millis(millis)),
        _ => {}
    }
    // Rounded before the units are chosen: 59min 59.5s is 1h, not 60min.
    let ((large, large_unit), (small, small_unit)) = match millis {
        _ if millis.div_ceil(SECOND) < HOUR / SECOND => ((MINUTE, "min"), (SECOND, "s")),
        _ if millis.div_ceil(MINUTE) < DAY / MINUTE => ((HOUR, "h"), (MINUTE, "min")),
        _ => ((DAY, "d"), (HOUR, "h")),
    };
    let (count, per_large) = (millis.div_ceil(small), large / small);
    match count % per_large {
        0 => format!("{}{large_unit}", count / per_large),
        rest => format!("{}{large_unit} {rest}{small_unit}", count / per_large),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_written_forms_mean_what_they_say() {
        for (text, millis) in
            [("250ms", 250), ("30s", 30_000), ("5min", 300_000), ("1h", HOUR), ("2d", 2 * DAY), ("1 week", 7 * DAY)]
        {
            assert_eq!(parse(text).unwrap(), Duration::from_millis(millis), "{text}");
        }
        for text in
            ["", "5", "h", "-5s", "1.5h", "5 fortnights", "1h burst 5", "99999999999999999999s", "9999999999999999w"]
        {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn durations_take_the_words_of_limits_and_several_units() {
        for (text, millis) in [
            ("1m30s", 90_000),
            ("1h 30 minutes", HOUR + 30 * MINUTE),
            ("2 hrs", 0),
            ("2hr", 2 * HOUR),
            ("3 days", 3 * DAY),
            ("10 seconds 5 milliseconds", 10_005),
        ] {
            assert_eq!(parse(text).ok(), (millis > 0).then(|| Duration::from_millis(millis)), "{text}");
        }
        assert!(parse("1h30").is_err() && parse("30s min").is_err());
    }

    #[test]
    fn waits_are_never_rounded_down() {
        for (micros, text) in [
            (0, "0ms"),
            (1, "1ms"),
            (999_001, "1s"),
            (1_500_000, "1.5s"),
            (59_999_001, "1min"),
            (60_000_001, "1min 1s"),
            (3_599_000_001, "1h"),
            (5_400_000_000, "1h 30min"),
            (90_000_000_000, "1d 1h"),
        ] {
            assert_eq!(render(Duration::from_micros(micros)), text, "{micros}");
        }
    }
}
