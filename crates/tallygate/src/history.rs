//! Verifies recorded answers for one key against the guarantees.
//!
//! [`bound`] asks the minimum: was more admitted than the limit allows, in any span? It needs only instants, costs and
//! outcomes, so it can also judge other limiters. [`replay`] asks everything: is each answer exactly what the algorithm
//! says, to the microsecond and the unit?
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

/// The answer to one call. Fields that a limiter does not report are `None` and are not judged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// When the decision was made, on the clock that made it.
    pub decided_at: Timestamp,
    /// The units requested.
    pub cost: u64,
    /// Whether the call was allowed.
    pub allowed: bool,
    /// Units left at that instant.
    pub remaining: Option<u64>,
    /// The reported wait.
    pub retry_after: Option<Duration>,
    /// The reported time until the limit is completely unused again.
    pub reset_after: Option<Duration>,
}

impl Record {
    /// Records the answer to a call with a single check. With several checks, one that fits is not charged if another
    /// is denied, so such an answer does not describe its key.
    pub fn new(cost: Cost, decision: &Decision) -> Self {
        Self::of(cost, decision, &decision.binding())
    }

    /// Records the answer to one check of a call.
    pub fn of(cost: Cost, decision: &Decision, status: &Status) -> Self {
        Self {
            decided_at: decision.decided_at().unwrap_or(Timestamp::from_micros(0)),
            cost: cost.get(),
            allowed: decision.allowed(),
            remaining: Some(status.remaining()),
            retry_after: status.retry_after(),
            reset_after: Some(status.reset_after()),
        }
    }

    /// Records the answer of a limiter that reports only allowed or denied.
    pub fn bare(decided_at: Timestamp, cost: u64, allowed: bool) -> Self {
        Self { decided_at, cost, allowed, remaining: None, retry_after: None, reset_after: None }
    }
}
