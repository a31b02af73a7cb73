//! The seam between the front door and the engine that keeps the states.

use std::fmt;

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
    /// ACL rule, a full memory. Nothing was charged.
    Refused {
        /// What the store said.
        reason: String,
        /// What to change.
        remedy: String,
    },
    /// The store holds or answers something Tollgate did not write. Nothing was charged.
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
            Self::Corrupt { reason } => write!(f, "the store holds something tollgate did not write: {reason}"),
        }
    }
}

impl std::error::Error for StoreError {}
