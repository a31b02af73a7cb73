//! All policies: immutable, replaced as a whole.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::{Descriptor, Domain, Policy, Reason};

/// All policies, by domain. Immutable: a reload creates a new set.
#[derive(Debug, Default)]
pub struct PolicySet {
    domains: Vec<Domain>,
    /// The position of each domain.
    places: HashMap<String, usize>,
}

/// The error of policies that cannot be in one set.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PolicySetError {
    /// Two domains have the same name.
    #[error("there are two domains named `{0}`: merge them, or rename one")]
    SameDomain(String),
    /// Two policies have the same name.
    #[error("domain `{domain}` has two policies named `{policy}`: rename one, because they would share their counts")]
    SamePolicy {
        /// The domain.
        domain: String,
        /// The policy.
        policy: String,
    },
}

impl PolicySet {
    /// Creates a set of these domains.
    pub fn new(domains: Vec<Domain>) -> Result<Self, PolicySetError> {
        let mut places = HashMap::new();
        for (at, domain) in domains.iter().enumerate() {
            if places.insert(domain.name().to_owned(), at).is_some() {
                return Err(PolicySetError::SameDomain(domain.name().to_owned()));
            }
            let mut names = HashSet::from([Domain::REQUESTED]);
            if let Some(twice) = domain.policies().iter().find(|policy| !names.insert(policy.name())) {
                let (domain, policy) = (domain.name().to_owned(), twice.name().to_owned());
                return Err(PolicySetError::SamePolicy { domain, policy });
            }
        }
        Ok(Self { domains, places })
    }

    /// The domain with this name.
    pub fn domain(&self, name: &str) -> Option<&Domain> {
        self.places.get(name).map(|at| &self.domains[*at])
    }

    /// All domains.
    pub fn domains(&self) -> &[Domain] {
        &self.domains
    }

    /// All policies, domain by domain.
    pub fn policies(&self) -> impl Iterator<Item = &Arc<Policy>> {
        self.domains.iter().flat_map(Domain::policies)
    }

    /// Explains, for display, whether each policy of `domain` applies, and why. Nothing is charged.
    pub fn explain(&self, domain: &str, descriptors: &[&Descriptor]) -> Vec<Reason> {
        self.domain(domain).map_or(Vec::new(), |domain| domain.matcher().explain(descriptors))
    }
}
