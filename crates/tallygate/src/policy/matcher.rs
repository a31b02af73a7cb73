//! Which policies apply to a call: the interface between kinds of policy files.

use std::fmt::Debug;
use std::sync::Arc;

use super::{Excess, Policy, Subject};
use crate::descriptor::Descriptor;
use crate::limit::Limit;

/// Finds the policies of a domain that apply to a call.
///
/// Policies are identified by their position in the domain, descriptors by their position in the call.
pub trait Matcher: Send + Sync + Debug {
    /// Returns every policy that applies, with its subject.
    fn find(&self, descriptors: &[&Descriptor]) -> Vec<Match>;

    /// Explains, for display, whether each policy applies, and why.
    fn explain(&self, descriptors: &[&Descriptor]) -> Vec<Reason>;
}

/// A policy that applies to a descriptor of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Match {
    /// The position of the policy in the domain.
    pub policy: usize,
    /// The position of the descriptor in the call.
    pub descriptor: usize,
    /// The subject that is counted.
    pub subject: Subject,
    /// The override limit of this caller, if there is one. `Some(None)` means unlimited.
    pub limit: Option<Option<Limit>>,
}

/// Whether a policy applies to a descriptor, and why; for display.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reason {
    /// The position of the policy in the domain.
    pub policy: usize,
    /// The position of the descriptor in the call.
    pub descriptor: usize,
    /// Whether it applies.
    pub matched: bool,
    /// Why, or why not.
    pub because: String,
}

/// A namespace of policies.
#[derive(Debug)]
pub struct Domain {
    name: String,
    policies: Vec<Arc<Policy>>,
    matcher: Box<dyn Matcher>,
    /// The position of its first policy in the set.
    pub(super) first: usize,
}

impl Domain {
    /// The name of the policy for limits supplied by a request.
    pub const REQUESTED: &str = "requested";

    /// Creates a domain whose `policies` are found by `matcher`.
    ///
    /// One more policy is appended: [`Domain::REQUESTED`], for limits supplied by a request.
    ///
    /// # Panics
    /// If `name` is empty.
    pub fn new(name: impl Into<String>, policies: Vec<Policy>, matcher: Box<dyn Matcher>) -> Self {
        let name = name.into();
        let requested = Policy::new(Self::REQUESTED, &*name, None).expect("a domain has a name");
        let requested = requested.with_excess(Excess::Drain);
        let policies = policies.into_iter().chain([requested]).map(Arc::new).collect();
        Self { name, policies, matcher, first: 0 }
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The policies, in the order that the matcher refers to. The last is for limits supplied by a request.
    pub fn policies(&self) -> &[Arc<Policy>] {
        &self.policies
    }

    /// The matcher.
    pub fn matcher(&self) -> &dyn Matcher {
        &*self.matcher
    }

    /// The position of [`Domain::REQUESTED`].
    pub(super) fn requested(&self) -> usize {
        self.policies.len() - 1
    }
}
