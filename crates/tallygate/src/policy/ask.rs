//! What is asked about a request.

use super::Descriptor;
use crate::call::Verb;
use crate::check::Cost;
use crate::clock::Timestamp;
use crate::limit::{IntoLimit, Limit, LimitError};

/// One descriptor of a call, and what to do under the policies that match it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Ask {
    /// What is known about the request.
    pub descriptor: Descriptor,
    /// What to do.
    pub action: Action,
    /// A limit supplied by the request; it replaces all policies for this descriptor.
    pub limit: Option<Limit>,
}

/// A verb and its parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Action {
    /// What to do.
    pub verb: Verb,
    /// The number of units.
    pub cost: Cost,
    /// When the units of a refund were charged; `None` means just now.
    pub charged_at: Option<Timestamp>,
}

impl Ask {
    /// Acts under the policies that match `descriptor`.
    pub fn new(descriptor: Descriptor, action: Action) -> Self {
        Self { descriptor, action, limit: None }
    }

    /// Charges `cost` under the policies that match `descriptor`.
    pub fn check(descriptor: Descriptor, cost: Cost) -> Self {
        Self::new(descriptor, Action::new(Verb::Check, cost))
    }

    /// Replaces all policies for this descriptor by a limit: a [`Limit`] or its text.
    ///
    /// # Errors
    /// If the text is not a limit.
    pub fn with_limit(self, limit: impl IntoLimit) -> Result<Self, LimitError> {
        Ok(Self { limit: Some(limit.into_limit()?), ..self })
    }
}

impl Action {
    /// Creates an action.
    pub fn new(verb: Verb, cost: Cost) -> Self {
        Self { verb, cost, charged_at: None }
    }

    /// Sets when the units of a refund were charged. Defaults to just now.
    #[must_use]
    pub fn with_charged_at(self, charged_at: Option<Timestamp>) -> Self {
        Self { charged_at, ..self }
    }
}
