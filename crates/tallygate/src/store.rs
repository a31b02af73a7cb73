//! The seam between the front door and the engine that keeps the states.

mod memory;

use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use crate::check::Check;
use crate::clock::Timestamp;
use crate::counter::{CounterError, CounterName, CounterOp, CounterValue};
use crate::decision::Decision;
pub use memory::{MemoryStore, MemoryStoreBuilder, Overflow};

/// Keeps states and decides on them atomically. The [`Limiter`](crate::Limiter) in front has checked the questions: no
/// limit is zero, no cost is above its capacity, no two checks of a call share a key.
pub trait Store: Send + Sync {
    /// Decides every check as of one instant, and charges all of them or none.
    fn check(&self, checks: &[Check<'_>]) -> impl Future<Output = Result<Decision, StoreError>> + Send;

    /// Answers as `check` would, and changes nothing.
    fn peek(&self, checks: &[Check<'_>]) -> impl Future<Output = Result<Decision, StoreError>> + Send;

    /// Gives back the cost of `check`, charged at `charged_at` or just now; answers how many units counted.
    fn refund(
        &self,
        check: &Check<'_>,
        charged_at: Option<Timestamp>,
    ) -> impl Future<Output = Result<u64, StoreError>> + Send;

    /// Drops the state of `check`; answers whether there was one.
    fn reset(&self, check: &Check<'_>) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// The embedded store, if that is what it is: one that never waits and never fails, and need not be asked by futures. A
    /// store around another has to answer by itself, so it does not pass this on.
    fn embedded(&self) -> Option<&MemoryStore> {
        None
    }

    /// Does one thing to a counter; answers its value, or for `Delete` the value it had.
    fn count(
        &self,
        name: &CounterName,
        op: CounterOp,
    ) -> impl Future<Output = Result<CounterValue, CounterError>> + Send;
}

/// The value of a future that waits for nothing but the embedded store, which never waits.
///
/// # Panics
/// If it waits.
#[doc(hidden)]
#[inline(always)]
pub fn at_once<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("the embedded store does not wait"),
    }
}

/// Why a store could not answer. A denial is never an error: it is a value.
///
/// The variants say what the caller may conclude about the charge, because that decides whether asking again is safe.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreError {
    /// The store was not reached, or it refused before running anything. Nothing was charged; asking again is safe.
    Unavailable {
        /// What happened, in words an operator can act on.
        reason: String,
    },
    /// The question was sent and the answer never came. It may have been charged: asking again could charge twice.
    Ambiguous {
        /// What happened, in words an operator can act on.
        reason: String,
    },
    /// Too many questions are under way already; this one was not sent. Nothing was charged.
    Overloaded {
        /// The bound that was met.
        in_flight: usize,
    },
    /// The store answered and will go on answering so until someone changes its settings: a wrong password, a missing
    /// ACL rule, a full memory. Nothing was charged, unless rights were cut while a script of several checks ran.
    Refused {
        /// What the store said.
        reason: String,
        /// What to change.
        remedy: String,
    },
    /// The store holds or answers something Tallygate did not write, or stopped half way. Whether the call was charged is
    /// unknown.
    Corrupt {
        /// What was found.
        reason: String,
    },
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unavailable { reason } => write!(f, "the store is unavailable: {reason}"),
            Self::Ambiguous { reason } => {
                write!(f, "the store did not answer ({reason}); the call may have been charged and was not repeated")
            }
            Self::Overloaded { in_flight } => {
                write!(f, "{in_flight} calls to the store are under way already; this one was not sent")
            }
            Self::Refused { reason, remedy } => write!(f, "the store refused: {reason}; {remedy}"),
            Self::Corrupt { reason } => write!(f, "the store holds something tallygate did not write: {reason}"),
        }
    }
}

impl std::error::Error for StoreError {}
