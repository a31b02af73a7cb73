//! Which policies a call falls under: the seam between kinds of policy files.

use std::fmt::Debug;
use std::sync::Arc;

use super::{Excess, Policy, Subject};
use crate::descriptor::Descriptor;
use crate::limit::Limit;

/// Finds the policies of a domain that a call falls under.
///
/// Policies are named by their place in the domain, descriptors by their place in the call.
pub trait Matcher: Send + Sync + Debug {
    /// Every policy that applies, and whom it counts.
    fn find(&self, descriptors: &[&Descriptor]) -> Vec<Match>;

    /// For people: what became of each policy, and why.
    fn explain(&self, descriptors: &[&Descriptor]) -> Vec<Reason>;
}

/// A policy that applies to a descriptor of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Match {
    /// Which policy of the domain.
    pub policy: usize,
    /// To which descriptor of the call.
    pub descriptor: usize,
    /// Whom it counts.
    pub subject: Subject,
    /// The limit of this caller, if it is not the policy's own. `Some(None)` is none at all.
    pub limit: Option<Option<Limit>>,
}

/// What became of a policy for a descriptor, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reason {
    /// Which policy of the domain.
    pub policy: usize,
    /// Which descriptor of the call.
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
    /// The place of its first policy among all of its set.
    pub(super) first: usize,
}

impl Domain {
    /// The policy of limits that a request brings along.
    pub const REQUESTED: &str = "requested";

    /// A domain whose `policies` are found by `matcher`.
    ///
    /// One more is added, last: [`Domain::REQUESTED`], for limits that a request brings along.
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

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its policies; a matcher names them by their place here. The last is for limits that a request brings along.
    pub fn policies(&self) -> &[Arc<Policy>] {
        &self.policies
    }

    /// What finds them.
    pub fn matcher(&self) -> &dyn Matcher {
        &*self.matcher
    }

    /// The place of [`Domain::REQUESTED`].
    pub(super) fn requested(&self) -> usize {
        self.policies.len() - 1
    }
}
