//! All policies: immutable, replaced as a whole.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::{Descriptor, Domain, Policy, Reason, name_within_domain};

/// All policies, by domain. Immutable: a reload creates a new set.
#[derive(Debug, Clone, Default)]
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
    /// A payer and another policy would share their counts.
    #[error(
        "domain `{domain}` has a policy named `{policy}`, and so are the counts of a payer of another: rename one of them"
    )]
    SamePayer {
        /// The domain.
        domain: String,
        /// The policy.
        policy: String,
    },
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
            let mut keys: HashSet<&str> = domain.policies().iter().map(|policy| policy.key_name()).collect();
            let mut payers = domain.policies().iter().flat_map(|policy| policy.payers());
            if let Some(payer) = payers.find(|payer| !keys.insert(payer.key_name())) {
                let (domain, policy) = (domain.name().to_owned(), name_within_domain(payer.key_name()).to_owned());
                return Err(PolicySetError::SamePayer { domain, policy });
            }
        }
        Ok(Self { domains, places })
    }

    /// The same set with other domains of the same names.
    pub(crate) fn with_domains(&self, other: impl FnMut(&Domain) -> Domain) -> Self {
        Self { domains: self.domains.iter().map(other).collect(), places: self.places.clone() }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{PolicyError, Rule};

    fn domain(name: &str, policies: &[&str]) -> Domain {
        Domain::new(name, policies.iter().map(|policy| (Policy::unlimited(*policy, name).unwrap(), Rule::new())))
            .unwrap()
    }

    #[test]
    fn names_are_unique() {
        let set = |domains: Vec<Domain>| PolicySet::new(domains).map(|_| ()).map_err(|error| error.to_string());
        assert_eq!(set(vec![domain("a", &["p", "q"]), domain("b", &["p"])]), Ok(()));
        let same = set(vec![domain("a", &[]), domain("b", &[]), domain("a", &[])]).unwrap_err();
        assert_eq!(same, "there are two domains named `a`: merge them, or rename one");
        for (policies, twice) in [(["p", "p"], "p"), (["p", "requested"], "requested")] {
            assert!(set(vec![domain("a", &policies)]).unwrap_err().contains(&format!("two policies named `{twice}`")));
        }
    }

    #[test]
    fn a_payer_is_not_counted_with_another_policy() {
        let policy = |name: &str| Policy::new(name, "a", "5/s").unwrap();
        let paid = policy("p").with_payers([crate::policy::Payer::new("q", "1/s").unwrap()]).unwrap();
        let set = |policies: [Policy; 2]| {
            PolicySet::new(vec![Domain::new("a", policies.map(|policy| (policy, Rule::new()))).unwrap()]).map(drop)
        };
        assert_eq!(set([paid.clone(), policy("q")]), Ok(()));
        assert!(set([paid, policy("p/q")]).unwrap_err().to_string().contains("a policy named `p/q`"));
    }

    #[test]
    fn policies_are_found_by_their_domain() {
        let set = PolicySet::new(vec![domain("a", &["p", "q"]), domain("b", &["r"])]).unwrap();
        let explained = |domain: &str| -> Vec<String> {
            let reasons = set.explain(domain, &[&Descriptor::new()]);
            reasons.iter().map(|reason| reason.policy.name().to_owned()).collect()
        };
        assert_eq!(
            (explained("a"), explained("b"), explained("c")),
            (vec!["p".into(), "q".into()], vec!["r".into()], vec![])
        );
        assert_eq!(set.policies().map(|policy| policy.name()).collect::<Vec<_>>(), ["p", "q", "r"]);
        assert_eq!((set.domain("b").map(Domain::name), set.domain("c").map(Domain::name)), (Some("b"), None));
    }

    #[test]
    fn a_domain_has_only_policies_of_its_own() {
        let other = Domain::new("a", [(Policy::unlimited("p", "b").unwrap(), Rule::new())]).unwrap_err();
        let (policy, domain, expected) = ("p".to_owned(), "b".to_owned(), "a".to_owned());
        assert_eq!(other, PolicyError::OtherDomain { policy, domain, expected });
        assert_eq!(Domain::new("", []).unwrap_err(), PolicyError::NoDomain);
    }
}
