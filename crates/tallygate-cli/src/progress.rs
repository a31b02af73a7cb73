//! A progress line on the terminal, erased at the end.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use tokio::time::Instant;

const BETWEEN: Duration = Duration::from_millis(100);

/// Shown on stderr, and only if that is a terminal.
#[derive(Debug)]
pub(crate) struct Progress {
    on: bool,
    shown: Option<Instant>,
}

impl Progress {
    pub(crate) fn new() -> Self {
        Self { on: io::stderr().is_terminal(), shown: None }
    }

    /// Replaces the line, at most ten times a second.
    pub(crate) fn show(&mut self, line: impl FnOnce() -> String) {
        if !self.on || self.shown.is_some_and(|shown| shown.elapsed() < BETWEEN) {
            return;
        }
        self.shown = Some(Instant::now());
        let _ = write!(io::stderr(), "\r\x1b[K{}", line());
        let _ = io::stderr().flush();
    }

    /// `[#####.....]`, twenty characters wide.
    pub(crate) fn bar(done: Duration, all: Duration) -> String {
        let full = (done.as_millis() * 20 / all.as_millis().max(1)).min(20);
        let full = usize::try_from(full).unwrap_or(20);
        format!("[{}{}]", "#".repeat(full), ".".repeat(20 - full))
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.shown.is_some() {
            let _ = write!(io::stderr(), "\r\x1b[K");
            let _ = io::stderr().flush();
        }
    }
}
