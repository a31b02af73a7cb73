//! The seam between the front door and the engine that keeps the states.

mod memory;

use std::future::Future;
use std::sync::Arc;

use crate::call::Call;
use crate::counter::{CounterError, CounterName, CounterOp, CounterValue};
use crate::decision::Decision;
pub use memory::{MemoryStore, MemoryStoreBuilder, Overflow};

/// Keeps states and answers calls about them, each atomically: all of it or none, as of one instant. A store around another
/// store is written once for all verbs.
pub trait Store: Send + Sync {
    /// Answers a call. A future that is dropped before it is ready leaves nothing charged that was denied, and nothing half
    /// done.
    fn call(&self, call: &Call<'_>) -> impl Future<Output = Result<Decision, StoreError>> + Send;

    /// The same answer, if the store need not wait for it; `None` has done nothing.
    fn call_now(&self, call: &Call<'_>) -> Option<Result<Decision, StoreError>> {
        let _ = call;
        None
    }
}

/// Keeps counters.
pub trait Counters: Send + Sync {
    /// Does one thing to a counter; answers its value, or for `Delete` the value it had.
    fn count(
        &self,
        name: &CounterName,
        op: CounterOp,
    ) -> impl Future<Output = Result<CounterValue, CounterError>> + Send;
}

impl<S: Store> Store for Arc<S> {
    fn call(&self, call: &Call<'_>) -> impl Future<Output = Result<Decision, StoreError>> + Send {
        (**self).call(call)
    }

    #[inline(always)]
    fn call_now(&self, call: &Call<'_>) -> Option<Result<Decision, StoreError>> {
        (**self).call_now(call)
    }
}

impl<S: Counters> Counters for Arc<S> {
    fn count(
        &self,
        name: &CounterName,
        op: CounterOp,
    ) -> impl Future<Output = Result<CounterValue, CounterError>> + Send {
        (**self).count(name, op)
    }
}

/// Why a store could not answer. A denial is never an error: it is a value.
///
/// The variants say what the caller may conclude about the charge, because that decides whether asking again is safe.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The store was not reached, or it refused before running anything. Nothing was charged; asking again is safe.
    #[error("the store is unavailable: {reason}")]
    Unavailable {
        /// What happened, in words an operator can act on.
        reason: String,
    },
    /// The question was sent and the answer never came. It may have been charged: asking again could charge twice.
    #[error("the store did not answer ({reason}); the call may have been charged and was not repeated")]
    Ambiguous {
        /// What happened, in words an operator can act on.
        reason: String,
    },
    /// Too many questions are under way already; this one was not sent. Nothing was charged.
    #[error("{in_flight} calls to the store are under way already; this one was not sent")]
    Overloaded {
        /// The bound that was met.
        in_flight: usize,
    },
    /// The store answered and will go on answering so until someone changes its settings: a wrong password, a missing
    /// ACL rule, a full memory. Nothing was charged, unless rights were cut while a script of several checks ran.
    #[error("the store refused: {reason}; {remedy}")]
    Refused {
        /// What the store said.
        reason: String,
        /// What to change.
        remedy: String,
    },
    /// A state was written by a newer version of Tallygate, in a form this one cannot read. It was left as it is; nothing was
    /// charged.
    #[error("the store holds a state of a newer version of tallygate: {reason}; upgrade this instance")]
    NewerFormat {
        /// What was found.
        reason: String,
    },
    /// The store holds or answers something Tallygate did not write, or stopped half way. Whether the call was charged is
    /// unknown.
    #[error("the store holds something tallygate did not write: {reason}")]
    Corrupt {
        /// What was found.
        reason: String,
    },
}

impl StoreError {
    /// All words that [`kind`](Self::kind) answers.
    pub const KINDS: &[&str] = &["unavailable", "ambiguous", "overloaded", "refused", "newer_format", "corrupt"];

    /// What kind of error it is: the word used in metrics and logs.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Unavailable { .. } => "unavailable",
            Self::Ambiguous { .. } => "ambiguous",
            Self::Overloaded { .. } => "overloaded",
            Self::Refused { .. } => "refused",
            Self::NewerFormat { .. } => "newer_format",
            Self::Corrupt { .. } => "corrupt",
        }
    }
}
