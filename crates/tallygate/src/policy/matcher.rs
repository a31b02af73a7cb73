//! Which policies apply to a call: the interface between kinds of policy files.

use std::fmt::Debug;
use std::sync::Arc;

use super::rules::Rules;
use super::{Descriptor, Excess, Policy, PolicyError, Rule, Subject};
use crate::limit::{Changes, Limit};

/// Finds the policies of a domain that apply to a call.
pub trait Matcher: Send + Sync + Debug {
    /// Returns every policy that applies, with its subject, in the order of the policies.
    fn find(&self, descriptors: &[&Descriptor]) -> Vec<Match>;

    /// Explains, for display, whether each policy applies, and why.
    fn explain(&self, descriptors: &[&Descriptor]) -> Vec<Reason>;

    /// Describes, for display, which calls each policy applies to.
    fn describe(&self) -> Vec<(Arc<Policy>, Description)>;
}

/// A policy that applies to a descriptor of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Match {
    /// The policy.
    pub policy: Arc<Policy>,
    /// The position of the descriptor in the call.
    pub descriptor: usize,
    /// The subject that is counted.
    pub subject: Subject,
    /// The limit of this caller.
    pub limit: CallerLimit,
}

/// The limit of one caller under a policy.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum CallerLimit {
    /// The limit of the policy.
    #[default]
    OfPolicy,
    /// A limit of its own.
    Override(Limit),
    /// A limit of its own, which is about to change, or has just changed: what is in force as far as this process knows, and what the
    /// store picks from.
    Changing(Limit, Changes),
    /// None: it is never refused.
    Unlimited,
}

/// Whether a policy applies to a descriptor, and why; for display.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reason {
    /// The policy.
    pub policy: Arc<Policy>,
    /// The position of the descriptor in the call.
    pub descriptor: usize,
    /// Whether it applies.
    pub matched: bool,
    /// Why, or why not.
    pub because: String,
}

/// Which calls a policy applies to, what it counts by, and which callers have another limit; for display.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Description {
    /// The conditions, all of which must be met.
    pub conditions: Vec<String>,
    /// The entries whose values are counted separately. If there are none, all calls are counted together.
    pub partition: Vec<String>,
    /// The conditions of each override with its limit; `None` is unlimited. The first that matches applies.
    pub overrides: Vec<(Vec<String>, Option<Limit>)>,
}

impl Match {
    /// `policy` applies to the descriptor at this position of the call, and counts `subject`.
    #[inline]
    pub fn new(policy: Arc<Policy>, descriptor: usize, subject: Subject) -> Self {
        Self { policy, descriptor, subject, limit: CallerLimit::OfPolicy }
    }

    /// Sets the limit of this caller. Defaults to the limit of the policy.
    #[inline]
    #[must_use]
    pub fn with_limit(self, limit: CallerLimit) -> Self {
        Self { limit, ..self }
    }
}

impl Reason {
    /// `policy` applies to the descriptor at this position of the call, or does not, `because`.
    pub fn new(policy: Arc<Policy>, descriptor: usize, matched: bool, because: String) -> Self {
        Self { policy, descriptor, matched, because }
    }
}

impl Description {
    /// Describes a policy that applies to calls that meet these conditions, and counts by these entries.
    pub fn new(conditions: Vec<String>, partition: Vec<String>) -> Self {
        Self { conditions, partition, overrides: Vec::new() }
    }
}

/// A namespace of policies. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Domain {
    name: String,
    policies: Vec<Arc<Policy>>,
    matcher: Arc<dyn Matcher>,
    requested: Arc<Policy>,
}

impl Domain {
    /// The name of the policy for limits supplied by a request. No other policy of a domain can have it.
    pub const REQUESTED: &str = "requested";

    /// Creates a domain of policies, each with the rule that says which calls it applies to.
    ///
    /// ```
    /// use tallygate::policy::{Domain, Policy, Rule};
    ///
    /// let policy = Policy::new("per-user", "api", "100/min")?;
    /// let domain = Domain::new("api", [(policy, Rule::new().partition("user"))])?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// If the name is empty, or a policy is of another domain.
    pub fn new(
        name: impl Into<String>,
        policies: impl IntoIterator<Item = (Policy, Rule)>,
    ) -> Result<Self, PolicyError> {
        let rules: Vec<_> = policies.into_iter().map(|(policy, rule)| (Arc::new(policy), rule)).collect();
        let policies = rules.iter().map(|(policy, _)| Arc::clone(policy)).collect();
        Self::with_matcher(name, policies, Box::new(Rules(rules)))
    }

    /// Creates a domain of `policies` that are found by `matcher`.
    ///
    /// # Errors
    /// If the name is empty, or a policy is of another domain.
    pub fn with_matcher(
        name: impl Into<String>,
        policies: Vec<Arc<Policy>>,
        matcher: Box<dyn Matcher>,
    ) -> Result<Self, PolicyError> {
        let name = name.into();
        let requested = Arc::new(Policy::unlimited(Self::REQUESTED, &*name)?.with_excess(Excess::Drain));
        if let Some(other) = policies.iter().find(|policy| policy.domain() != name) {
            let (policy, domain) = (other.name().to_owned(), other.domain().to_owned());
            return Err(PolicyError::OtherDomain { policy, domain, expected: name });
        }
        Ok(Self { name, policies, matcher: matcher.into(), requested })
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The policies, in order.
    pub fn policies(&self) -> &[Arc<Policy>] {
        &self.policies
    }

    /// The policy for limits supplied by a request: see [`Ask::with_limit`](super::Ask::with_limit).
    pub fn requested(&self) -> &Arc<Policy> {
        &self.requested
    }

    pub(crate) fn shared_matcher(&self) -> Arc<dyn Matcher> {
        Arc::clone(&self.matcher)
    }

    /// The same policies, found by another matcher.
    pub(crate) fn under(&self, matcher: Arc<dyn Matcher>) -> Self {
        Self { matcher, ..self.clone() }
    }

    /// The matcher.
    pub fn matcher(&self) -> &dyn Matcher {
        &*self.matcher
    }
}
