//! What is wrong with a calendar.

use super::{Month, rule};
use crate::words::nearest;

/// The error of a calendar that does not exist.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CalendarError {
    /// The database has no such time zone.
    #[error("unknown time zone `{zone}`{}: use a name of the IANA database, for example `Europe/Berlin` or `UTC`", did_you_mean(.zone))]
    UnknownZone {
        /// The unknown name.
        zone: String,
    },
    /// No month has such a day.
    #[error("no month has a day {day}: use 1 to 31; a shorter month then begins on its last day")]
    NoDayOfMonth {
        /// The day.
        day: u8,
    },
    /// The month never has such a day.
    #[error("{month} has no day {day}: use 1 to {last}")]
    NoDayOfYear {
        /// The month.
        month: Month,
        /// The day.
        day: u8,
        /// The last day of the month, in a leap year.
        last: u8,
    },
    /// The rules of a time zone cannot be read.
    #[doc(hidden)]
    #[error("invalid rules of a time zone: `{rules}`")]
    InvalidRules {
        /// The rules.
        rules: String,
    },
}

fn did_you_mean(zone: &str) -> String {
    let names = rule::zone_names();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    match nearest(zone, &names) {
        Some(name) => format!(" (did you mean `{name}`?)"),
        None => String::new(),
    }
}
