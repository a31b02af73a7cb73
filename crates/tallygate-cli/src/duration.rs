//! Durations as people write and read them: `250ms`, `30s`, `5min`, `1h`, `2d`.

use std::time::Duration;

use anyhow::{Context, bail};
use tallygate_http::millis_up;

const DAY: u64 = 86_400_000;
const HOUR: u64 = 3_600_000;
const MINUTE: u64 = 60_000;
const SECOND: u64 = 1000;

/// Reads a whole number and a unit.
pub(crate) fn parse(text: &str) -> anyhow::Result<Duration> {
    let expected =
        || format!("`{text}` is not a duration: write a number and a unit, for example 250ms, 30s, 5min, 1h or 2d");
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(end);
    let millis = match unit.trim() {
        "ms" => 1,
        "s" | "sec" => SECOND,
        "m" | "min" => MINUTE,
        "h" | "hour" => HOUR,
        "d" | "day" => DAY,
        "w" | "week" => 7 * DAY,
        _ => bail!(expected()),
    };
    if digits.is_empty() {
        bail!(expected());
    }
    let count = digits.parse::<u64>().ok().and_then(|count| count.checked_mul(millis));
    count.map(Duration::from_millis).with_context(|| format!("`{text}` is too long a time"))
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
