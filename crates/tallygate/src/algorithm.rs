//! The algorithms: one file each, the same verbs in each, and in `tallygate-redis/lua` a twin of the same name.
//!
//! They are pure: no clock, no store, no allocation on a decision but for the two that keep lists. The exact arithmetic
//! and the reasons for it are in `docs/algorithms.md`.

pub(crate) mod fixed_window;
pub(crate) mod sliding_counter;
pub(crate) mod sliding_log;
pub(crate) mod sliding_window;
pub(crate) mod token_bucket;

use std::fmt;
use std::str::FromStr;

use crate::limit::Limit;
use crate::words::nearest;

/// How a limit is enforced. What each promises is in `docs/guarantees.md`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Algorithm {
    /// Refills evenly; at most the burst at once. GCRA is the same limit in other notation.
    #[default]
    TokenBucket,
    /// Counts per window of the wall clock; up to twice the amount around a boundary.
    FixedWindow,
    /// Counts per window that the first call starts; up to twice the amount around a boundary.
    FixedWindowFromFirstCall,
    /// Counts per sub-window, the oldest whole; never more than the amount in any window.
    SlidingWindow,
    /// Weighs the previous window by what is left of it; an estimate.
    SlidingCounter,
    /// Remembers each admitted call; exact.
    SlidingLog,
}

impl Algorithm {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::TokenBucket,
        Self::FixedWindow,
        Self::FixedWindowFromFirstCall,
        Self::SlidingWindow,
        Self::SlidingCounter,
        Self::SlidingLog,
    ];

    /// The name used everywhere: `token_bucket`, `sliding_log`, …
    pub fn name(self) -> &'static str {
        match self {
            Self::TokenBucket => "token_bucket",
            Self::FixedWindow => "fixed_window",
            Self::FixedWindowFromFirstCall => "fixed_window_from_first_call",
            Self::SlidingWindow => "sliding_window",
            Self::SlidingCounter => "sliding_counter",
            Self::SlidingLog => "sliding_log",
        }
    }

    /// The two letters that end a state's key, so that two algorithms never meet in one key.
    pub fn kind(self) -> &'static str {
        match self {
            Self::TokenBucket => "tb",
            Self::FixedWindow | Self::FixedWindowFromFirstCall => "fw",
            Self::SlidingWindow => "sw",
            Self::SlidingCounter => "sc",
            Self::SlidingLog => "sl",
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// There is no algorithm of that name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{name}` is no algorithm{}: there are {}", did_you_mean(.name), names())]
pub struct UnknownAlgorithm {
    /// What was written.
    pub name: String,
}

impl FromStr for Algorithm {
    type Err = UnknownAlgorithm;

    fn from_str(name: &str) -> Result<Self, UnknownAlgorithm> {
        let found = Self::ALL.into_iter().find(|algorithm| algorithm.name() == name);
        found.ok_or_else(|| UnknownAlgorithm { name: name.to_owned() })
    }
}

fn names() -> String {
    Algorithm::ALL.map(|algorithm| format!("`{algorithm}`")).join(", ")
}

fn did_you_mean(name: &str) -> String {
    if name.eq_ignore_ascii_case("gcra") {
        return " of its own: it is the same limit as `token_bucket`".to_owned();
    }
    let words: Vec<&str> = Algorithm::ALL.map(Algorithm::name).into_iter().chain(["burst"]).collect();
    match nearest(name, &words) {
        Some(word) => format!(" (did you mean `{word}`?)"),
        None => String::new(),
    }
}

/// What a store remembers for one key. Instants and durations are microseconds.
///
/// Only `charge`, `refund` and `adopt` change a state: a denied check must leave no trace. A clock that stands before
/// the state's own time is held at that time: nothing is regained until it has caught up.
pub(crate) trait State: Sized + Clone {
    /// The state of a key nobody has used.
    fn fresh(limit: &Limit, now: u64) -> Self;

    /// Whether this state can be read under `limit` at `now`: it was written under the same numbers, and the clock has
    /// not gone back by more than the limit takes to forget.
    fn fits(&self, limit: &Limit, now: u64) -> bool;

    /// Makes a state that does not fit one that does: what was used stays used, as of now.
    fn adopt(&mut self, limit: &Limit, now: u64);

    /// Units that can be had now.
    fn free(&self, limit: &Limit, now: u64) -> u64;

    /// Takes `cost`, which must be free.
    fn charge(&mut self, limit: &Limit, now: u64, cost: u64);

    /// Gives back up to `units` of what was charged at `charged_at`; returns how many counted. If none did, nothing
    /// changes.
    fn refund(&mut self, limit: &Limit, now: u64, charged_at: u64, units: u64) -> u64;

    /// When `cost`, which is not free now, will be.
    fn retry_at(&self, limit: &Limit, now: u64, cost: u64) -> u64;

    /// From when on this state cannot be told from a fresh one.
    fn reset_at(&self, limit: &Limit, now: u64) -> u64;

    /// The limit this state was written under.
    fn limit(&self) -> &Limit;
}
