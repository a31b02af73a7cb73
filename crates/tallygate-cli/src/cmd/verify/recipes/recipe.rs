//! The shape of a recipe: what everybody writes, how it fails, and the calls that show it.

use redis::Cmd;
use tallygate::{Limit, LimitError};

pub(crate) struct Recipe {
    pub(crate) letter: &'static str,
    pub(crate) name: &'static str,
    /// How it fails.
    pub(crate) flaw: &'static str,
    /// What it means to enforce. Of several the last is judged.
    pub(crate) limits: &'static [&'static str],
    pub(crate) code: Code,
    pub(crate) drive: &'static [Step],
}

/// What a client runs for one call.
#[derive(Clone, Copy)]
pub(crate) enum Code {
    /// `KEYS[1]`; `ARGV`: amount, window in ms, cost, an id, capacity, µs of the clock, if the drive sets one.
    /// Answers `{ 1 or 0, seconds, µs }`.
    Script(&'static str),
    /// Commands, then what their numbers make of the call and which commands follow.
    Commands { first: fn(&Call) -> Vec<Cmd>, then: fn(&Call, &[i64]) -> (bool, Vec<Cmd>) },
}

/// One call, as the client of a recipe sees it.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    pub(crate) key: String,
    pub(crate) amounts: Vec<i64>,
    pub(crate) capacity: u64,
    pub(crate) window_ms: u64,
    pub(crate) cost: i64,
    /// What the clock of this client shows.
    pub(crate) client_us: u64,
    pub(crate) id: u64,
    /// Only the last of several limits is asked.
    pub(crate) last_only: bool,
}

/// What happens to the limiter, whoever wrote it.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Step {
    /// Calls of one unit, as fast as they go.
    Calls(usize),
    /// The same, of the last limit alone.
    LastOnly(usize),
    /// A call of this many units.
    Cost(i64),
    /// Calls of this many units, as fast as they go.
    Costs(usize, i64),
    /// Calls this many milliseconds apart.
    Paced(usize, u64),
    /// The client dies after its first command.
    Dies,
    /// Clients that stop after their first command, until `Resume`.
    Stall(usize),
    Resume,
    /// Milliseconds.
    Wait(u64),
    /// From here on the clock of the client is off by this many windows.
    WindowsAhead(u64),
    /// From here on the clock of the client says that this many milliseconds of the window of the first call are left.
    Rest(u64),
    /// For this many seconds: a burst of calls each second, on a clock that is this many seconds ahead every other time.
    Flap {
        seconds: u64,
        apart: u64,
        calls: usize,
    },
}

impl Recipe {
    pub(crate) fn limits(&self) -> Result<Vec<Limit>, LimitError> {
        self.limits.iter().map(|text| text.parse()).collect()
    }

    /// Whether it is asked under a clock of our own.
    pub(crate) fn flaps(&self) -> bool {
        self.drive.iter().any(|step| matches!(step, Step::Flap { .. }))
    }
}

/// A command in one line.
pub(crate) fn cmd(name: &str, args: &[&str]) -> Cmd {
    let mut cmd = redis::cmd(name);
    for arg in args {
        cmd.arg(*arg);
    }
    cmd
}
