//! A recipe: a common limiter, its flaw, and the calls that show it.

use tallygate::Limit;
use tallygate::limit::LimitError;

pub(crate) struct Recipe {
    pub(crate) letter: &'static str,
    pub(crate) name: &'static str,
    pub(crate) flaw: &'static str,
    /// What it is meant to enforce. Of several the last is checked.
    pub(crate) limits: &'static [&'static str],
    pub(crate) code: Code,
    pub(crate) drive: &'static [Step],
}

impl Recipe {
    pub(crate) fn limits(&self) -> Result<Vec<Limit>, LimitError> {
        self.limits.iter().map(|text| text.parse()).collect()
    }
}

/// What a client runs for one call.
#[derive(Clone, Copy)]
pub(crate) enum Code {
    /// A script that sets `allowed`. It has the locals of `PRELUDE` in `server.rs`.
    Script(&'static str),
    /// Commands, their words separated by spaces, and commands that depend on the last number of the replies. The call is
    /// allowed if no number is above its amount, the last amount first.
    Commands { first: fn(&Call) -> Vec<String>, then: fn(&Call, i64) -> Vec<String> },
}

/// One call, as the client of a recipe sees it.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    pub(crate) key: String,
    pub(crate) amounts: Vec<i64>,
    pub(crate) capacity: u64,
    pub(crate) window_ms: u64,
    pub(crate) cost: i64,
    /// What the clock of this client shows, in microseconds.
    pub(crate) client_us: u64,
    pub(crate) id: u64,
    /// Only the last of several limits is asked.
    pub(crate) last_only: bool,
}

/// A step of the calls.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Step {
    /// Calls of one unit, as fast as possible.
    Calls(usize),
    /// The same, under the last limit only.
    LastOnly(usize),
    /// Calls of this many units, as fast as possible.
    Costs(usize, i64),
    /// Calls this many milliseconds apart.
    Paced(usize, u64),
    /// The client dies after its first commands.
    Dies,
    /// Clients that stop after their first commands, until `Resume`.
    Stall(usize),
    Resume,
    /// Milliseconds.
    Wait(u64),
    /// The next clients have clocks that are this many windows ahead.
    WindowsAhead(u64),
    /// The clocks of the next clients are this many milliseconds before the end of the first call's window.
    Rest(u64),
}
