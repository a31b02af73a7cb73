//! What is asked about a request.

use crate::call::Verb;
use crate::check::Cost;
use crate::clock::Timestamp;
use crate::descriptor::Descriptor;
use crate::limit::Limit;

/// One descriptor of a call, and what to do under the policies that match it.
#[derive(Debug, Clone, PartialEq, Eq)]
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
pub struct Action {
    /// What to do.
    pub verb: Verb,
    /// The number of units.
    pub cost: Cost,
    /// When the units of a refund were charged; `None` means just now.
    pub charged_at: Option<Timestamp>,
}

impl Ask {
    /// Charges `cost` under the policies that match `descriptor`.
    pub fn new(descriptor: Descriptor, cost: Cost) -> Self {
        Self { descriptor, action: Action::new(Verb::Check, cost), limit: None }
    }
}

impl Action {
    /// Creates an action.
    pub fn new(verb: Verb, cost: Cost) -> Self {
        Self { verb, cost, charged_at: None }
    }
}
