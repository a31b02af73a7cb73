//! The fields of a policy that relieve the store of hot keys.

use std::time::Duration;

use crate::fields::Fields;

/// The longest time that a denial may be repeated.
const LONGEST_CACHE: Duration = Duration::from_secs(60);

/// `true` for a second, `false`, or a time.
pub(super) fn cache_denials(fields: Fields<'_>) -> Option<Duration> {
    let (text, at) = fields.text("cache_denials")?;
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(split);
    let unit = match unit.trim() {
        "ms" => Some(1),
        "s" => Some(1000),
        "min" => Some(60_000),
        _ => None,
    };
    let span = unit.and_then(|unit| digits.parse::<u64>().ok()?.checked_mul(unit)).map(Duration::from_millis);
    match (text, span) {
        ("true" | "yes" | "on", _) => Some(Duration::from_secs(1)),
        ("false" | "no" | "off", _) => Some(Duration::ZERO),
        (_, Some(span)) if span <= LONGEST_CACHE => Some(span),
        (_, Some(_)) => {
            let message = "`cache_denials` is at most 60s: until then a refund by another instance is not seen";
            fields.findings.error(at, message);
            None
        }
        _ => {
            let message = format!("`cache_denials` must be `true`, `false` or a time, not `{text}`");
            fields.findings.error(at, message).help("for example `cache_denials: 500ms`; `true` is `1s`");
            None
        }
    }
}

/// Whether units are taken in advance.
pub(super) fn allotment(fields: Fields<'_>) -> Option<bool> {
    let (text, at) = fields.text("allotment")?;
    match text {
        "true" | "yes" | "on" => Some(true),
        "false" | "no" | "off" => Some(false),
        _ => {
            let message = format!("`allotment` must be `true` or `false`, not `{text}`");
            fields.findings.error(at, message).help("its size follows from how often the key is asked about");
            None
        }
    }
}
