//! The interface between the limiter and the engine that keeps the states.

mod memory;

use std::future::Future;
use std::sync::Arc;

use crate::call::Call;
use crate::counter::{CounterError, CounterName, CounterOp, CounterValue};
use crate::decision::Decision;
pub use memory::{MemoryStore, MemoryStoreBuilder, Overflow};

/// Keeps states and answers calls about them. Each call is atomic: it takes effect as a whole or not at all, as of one
/// instant. A wrapper around a store needs one implementation for all verbs.
pub trait Store: Send + Sync {
    /// Answers a call. A future that is dropped before it is ready leaves nothing charged that was denied, and nothing
    /// half done.
    fn call(&self, call: &Call<'_>) -> impl Future<Output = Result<Decision, StoreError>> + Send;

    /// The same answer, if the store can give it without waiting. `None` means that nothing was done.
    fn call_now(&self, call: &Call<'_>) -> Option<Result<Decision, StoreError>> {
        let _ = call;
        None
    }
}

/// Keeps counters.
pub trait Counters: Send + Sync {
    /// Performs one operation on a counter. Returns its value, or for `Delete` the value it had.
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

/// The error of a store that could not answer. A denial is never an error: it is a value.
///
/// The variants differ in whether the call [may have been charged](StoreError::may_have_charged), which decides whether it
/// is safe to ask again. The cause is part of the message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The store is unreachable, or refused before running anything. Nothing was charged; it is safe to ask again.
    #[error("the store is unavailable: {reason}")]
    Unavailable {
        /// What happened.
        reason: String,
    },
    /// The call was sent and got no answer. It may have been charged: asking again could charge twice.
    #[error("the store did not answer ({reason}); the call may have been charged and was not repeated")]
    Ambiguous {
        /// What happened.
        reason: String,
    },
    /// Too many calls are in flight; this one was not sent. Nothing was charged.
    #[error("{in_flight} calls to the store are already in flight; this one was not sent")]
    Overloaded {
        /// The maximum number of calls in flight.
        in_flight: usize,
    },
    /// The store refuses such calls until its configuration changes: a wrong password, a missing ACL rule, memory
    /// exhausted. Nothing was charged, unless permissions were revoked while a script of several checks ran.
    #[error("the store refused: {reason}; {remedy}")]
    Refused {
        /// The reply of the store.
        reason: String,
        /// What to change.
        remedy: String,
    },
    /// A state was written by a newer version of Tallygate, in a format that this version cannot read. The state is
    /// unchanged, and nothing was charged.
    #[error("the store holds a state of a newer version of tallygate: {reason}; upgrade this instance")]
    NewerFormat {
        /// What was found.
        reason: String,
    },
    /// The store holds or answered something that Tallygate did not write, or stopped half way. Whether the call was
    /// charged is unknown.
    #[error("the store holds something tallygate did not write: {reason}")]
    Corrupt {
        /// What was found.
        reason: String,
    },
}

impl StoreError {
    /// All values of [`kind`](Self::kind).
    pub const KINDS: &[&str] = &["unavailable", "ambiguous", "overloaded", "refused", "newer_format", "corrupt"];

    /// The kind of the error, as a word for metrics and logs.
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

    /// Whether the call may have been charged: asking again could then charge twice. If false, nothing was charged, with
    /// the one exception that [`Refused`](Self::Refused) names.
    pub fn may_have_charged(&self) -> bool {
        match self {
            Self::Ambiguous { .. } | Self::Corrupt { .. } => true,
            Self::Unavailable { .. } | Self::Overloaded { .. } | Self::Refused { .. } | Self::NewerFormat { .. } => {
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_error_that_may_have_charged_forbids_asking_again() {
        let reason = || String::from("r");
        let errors = [
            (StoreError::Unavailable { reason: reason() }, false),
            (StoreError::Ambiguous { reason: reason() }, true),
            (StoreError::Overloaded { in_flight: 1 }, false),
            (StoreError::Refused { reason: reason(), remedy: reason() }, false),
            (StoreError::NewerFormat { reason: reason() }, false),
            (StoreError::Corrupt { reason: reason() }, true),
        ];
        assert_eq!(errors.each_ref().map(|(error, _)| error.kind())[..], *StoreError::KINDS);
        for (error, may_have_charged) in errors {
            assert_eq!(error.may_have_charged(), may_have_charged, "{error}");
        }
    }
}
