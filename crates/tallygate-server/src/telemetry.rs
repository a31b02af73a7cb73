//! What the server says while it runs: lines for operators, and spans for a collector.

mod decision_log;
mod encode;
mod exporter;
mod filter;
mod http_client;
mod log_format;
mod log_throttle;
mod otlp;
mod propagate;
mod pseudonym;
#[cfg(test)]
mod tests;
mod trace_parent;
mod traces;

use std::io::{IsTerminal, Write};
use std::time::SystemTime;

use tallygate::words;
use tracing_subscriber::layer::SubscriberExt;

pub use otlp::{OtlpSettings, SampleRatio};
pub use trace_parent::TraceParent;
pub use traces::Traces;

use crate::decision_event::DecisionEvent;
use exporter::Exporter;
use log_format::Lines;

/// Logs and traces what happened to a call.
pub(crate) fn observe(event: &DecisionEvent<'_>) {
    decision_log::observe(event);
    propagate::observe(event);
}

/// What is written to stderr, and whether spans are sent.
#[derive(Debug, Clone)]
pub struct LogSettings {
    /// How a line looks.
    pub format: Format,
    /// What is written: a level, or levels by target, as in `info,tallygate_server=debug`.
    pub filter: String,
    /// Where spans go; `None` for nowhere.
    pub otlp: Option<OtlpSettings>,
}

impl Default for LogSettings {
    fn default() -> Self {
        Self { format: Format::default(), filter: "info".to_owned(), otlp: None }
    }
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

/// Why nothing can be written or sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TelemetryError {
    /// The filter cannot be read.
    #[error(
        "log filter (TALLYGATE_LOG): {written:?} is not a level{hint}; write off, error, warn, info, debug or trace, \
         or target=level, with commas between"
    )]
    Filter {
        /// The word at fault.
        written: String,
        /// What may have been meant.
        hint: String,
    },
    /// The collector's URL cannot be used.
    #[error("OTLP collector {url:?}: {reason}")]
    Endpoint {
        /// What was written.
        url: String,
        /// What is wrong, and what to write instead.
        reason: &'static str,
    },
    /// The share of calls to trace is none.
    #[error("OTLP ratio {written:?}: write a share from 0 to 1, or a percentage such as `1%`")]
    Ratio {
        /// What was written.
        written: String,
    },
    /// Spans are sent by a task.
    #[error("spans are sent from a tokio runtime, and none runs here")]
    NoRuntime,
    /// A process writes its log once.
    #[error("the log of this process is set up already")]
    AlreadySet,
}

/// Sets up the log of the process and, with [`LogSettings::otlp`], the task that sends spans: that needs a tokio runtime.
pub fn init(settings: LogSettings) -> Result<Guard, TelemetryError> {
    let filter = filter::parse(&settings.filter)?;
    let coloured = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let lines = Lines::new(settings.format, coloured, |line| {
        // Nobody is left to tell that stderr is gone.
        let _ = std::io::stderr().lock().write_all(line.as_bytes());
    });
    if settings.otlp.is_some() && tokio::runtime::Handle::try_current().is_err() {
        return Err(TelemetryError::NoRuntime);
    }
    // For all layers, not for this one alone: else `enabled!` may say yes to what is then not written.
    let subscriber = tracing_subscriber::registry().with(lines).with(filter);
    tracing::subscriber::set_global_default(subscriber).map_err(|_| TelemetryError::AlreadySet)?;
    Ok(Guard { exporter: settings.otlp.map(Exporter::start) })
}

/// Keeps spans flowing while it lives.
#[derive(Debug)]
#[must_use = "spans that wait are sent by `finish`"]
pub struct Guard {
    exporter: Option<Exporter>,
}

impl Guard {
    /// What calls are traced with; `None` without a collector.
    pub fn traces(&self) -> Option<Traces> {
        self.exporter.as_ref().map(Exporter::traces)
    }

    /// Sends the spans that still wait, for at most three seconds.
    pub async fn finish(self) {
        if let Some(exporter) = self.exporter {
            exporter.finish().await;
        }
    }
}

/// The wall clock, for what people and collectors compare with other machines. No decision depends on it.
#[expect(clippy::disallowed_methods, reason = "lines and spans tell when something happened; nothing is decided by it")]
fn wall_clock() -> SystemTime {
    SystemTime::now()
}
