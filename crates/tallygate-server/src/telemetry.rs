//! Log lines, and spans for a collector.

mod decision_log;
mod filter;
mod log_format;
#[cfg(feature = "otlp")]
mod otlp;
mod pseudonym;
#[cfg(test)]
mod tests;

use std::io::{IsTerminal, Write};
use std::time::SystemTime;

use tallygate::words::words;
use tracing_subscriber::layer::SubscriberExt;

#[cfg(feature = "otlp")]
pub use otlp::{OtlpError, SampleRatio, Traces};

use crate::decision_event::DecisionEvent;
use log_format::Lines;

/// Logs and traces what happened to a call.
pub(crate) fn observe(event: &DecisionEvent<'_>) {
    decision_log::observe(event);
    #[cfg(feature = "otlp")]
    otlp::observe(event);
}

words! {
    /// How a line looks.
    #[derive(Default)]
    pub enum Format, "log format" {
        /// For people.
        #[default]
        Text = "text",
        /// One object a line.
        Json = "json",
    }
}

/// Why the log cannot be set up.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TelemetryError {
    /// The filter is invalid.
    #[error(
        "unknown log level {written:?}{hint}; write off, error, warn, info, debug or trace, or target=level, \
         separated by commas"
    )]
    Filter {
        /// The unknown word.
        written: String,
        /// A suggestion.
        hint: String,
    },
    /// The process has a log already.
    #[error("the log of this process is set up already")]
    AlreadySet,
}

/// Sets up the log of the process, on stderr. The filter is a level, or levels by target, as in
/// `info,tallygate_server=debug`.
pub fn init(format: Format, filter: &str) -> Result<(), TelemetryError> {
    let filter = filter::parse(filter)?;
    let coloured = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let write = |line: &str| {
        // If stderr is closed, there is no place to report it.
        let _ = std::io::stderr().lock().write_all(line.as_bytes());
    };
    let lines = Lines { format, coloured, write };
    // For all layers, not for this one: otherwise `enabled!` may be true for events that are not written.
    let subscriber = tracing_subscriber::registry().with(lines).with(filter);
    tracing::subscriber::set_global_default(subscriber).map_err(|_| TelemetryError::AlreadySet)
}

/// The wall clock, for timestamps of log lines and spans. No decision depends on it.
#[expect(clippy::disallowed_methods, reason = "timestamps of log lines and spans; no decision depends on it")]
fn wall_clock() -> SystemTime {
    SystemTime::now()
}
