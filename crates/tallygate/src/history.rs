//! The promise held against what happened: checks the recorded answers for one key.
//!
//! [`bound`] asks the least: was more admitted than the limit allows, in any span? It needs only instants, costs and
//! outcomes, so it judges other people's limiters too. [`replay`] asks everything: is each answer, to the microsecond
//! and the unit, what the algorithm says?
//!
//! ```
//! use std::time::Duration;
//! use tallygate::{Check, Cost, Key, Limit, Limiter, MemoryStore, history};
//!
//! let limiter = Limiter::new(MemoryStore::new());
//! let limit: Limit = "3/min".parse()?;
//! let check = Check::new(Key::new("login", "alice")?, &limit);
//! let mut records = Vec::new();
//! for _ in 0..5 {
//!     records.push(history::Record::new(Cost::ONE, &limiter.check_now(check)?));
//! }
//! assert!(history::bound(&limit, &records).holds());
//! assert!(history::replay(&limit, &records, Duration::ZERO).is_empty());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod bound;
mod replay;
#[cfg(test)]
mod tests;

use std::time::Duration;

use crate::check::Cost;
use crate::clock::Timestamp;
use crate::decision::{Decision, Status};

pub(crate) use bound::{Admitted, any_window, estimate, one_window, refill};
pub use bound::{Bound, Rule, Span, bound};
pub use replay::{Mismatch, SERVER_STEP_BACK, replay};

/// What one call was answered. What a limiter does not tell is `None`, and is then not judged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The instant, on the clock that decided, as of which it was decided.
    pub decided_at: Timestamp,
    /// The units asked for.
    pub cost: u64,
    /// Whether they were given.
    pub allowed: bool,
    /// Units left at that instant.
    pub remaining: Option<u64>,
    /// How long the caller was told to wait.
    pub retry_after: Option<Duration>,
    /// How long until nothing used would count any more.
    pub reset_after: Option<Duration>,
}

impl Record {
    /// The answer to a call of a single check. (Of several checks, one that is satisfied is still not charged if another
    /// is denied: such an answer is no record of its key.)
    pub fn new(cost: Cost, decision: &Decision) -> Self {
        Self::of(cost, decision, decision.binding())
    }

    /// What a call says of one of its checks.
    pub fn of(cost: Cost, decision: &Decision, status: &Status) -> Self {
        Self {
            decided_at: decision.decided_at(),
            cost: cost.get(),
            allowed: decision.allowed(),
            remaining: Some(status.remaining()),
            retry_after: status.retry_after(),
            reset_after: Some(status.reset_after()),
        }
    }

    /// The answer of a limiter that says no more than yes or no.
    pub fn bare(decided_at: Timestamp, cost: u64, allowed: bool) -> Self {
        Self { decided_at, cost, allowed, remaining: None, retry_after: None, reset_after: None }
    }
}
