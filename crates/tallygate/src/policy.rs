//! A named rule: its limit, its mode, and what to answer when the store cannot.

mod ask;
mod descriptor;
mod evaluation;
mod local;
mod matcher;
mod on_error;
mod pattern;
mod payer;
mod rules;
mod set;
mod stores;
mod subject;
mod verdict;

use std::time::Duration;

use crate::hold::HoldTerms;
use crate::key::{Key, digest};
use crate::limit::{IntoLimit, Limit, LimitError};
use crate::words::words;
pub use ask::{Action, Ask};
pub use descriptor::Descriptor;
pub use evaluation::Evaluation;
pub use local::{Instances, Share, ShareError};
pub use matcher::{CallerLimit, Description, Domain, Match, Matcher, Reason};
pub use pattern::Pattern;
pub use payer::Payer;
pub use rules::{Rule, Want};
pub use set::{PolicySet, PolicySetError};
pub use stores::Stores;
pub use subject::Subject;
pub use verdict::{Outcome, Paid, Ruling, Verdict};

/// A named rule: its limit, whether it refuses, and what to answer when the store cannot.
///
/// It does not say which calls it applies to: that is up to the [`Matcher`] of its [`Domain`].
///
/// ```
/// use tallygate::policy::{Mode, Policy};
///
/// let policy = Policy::new("per-user", "api", "100/min")?.with_mode(Mode::Shadow);
/// assert_eq!(policy.key_name(), "api/per-user");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    name: String,
    domain: String,
    key_name: String,
    limit: Option<Limit>,
    /// Further payers.
    payers: Vec<Payer>,
    mode: Mode,
    on_error: OnError,
    share: Option<Share>,
    cache_denials: Option<Duration>,
    holds: Option<HoldTerms>,
    allotment: bool,
    excess: Excess,
    near: u8,
    metadata: Option<String>,
    reported_name: Option<String>,
}

/// The error of an invalid policy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// The name is empty.
    #[error("a policy needs a name, for example `per-user`")]
    NoName,
    /// The domain is empty.
    #[error("a policy needs a domain, for example `api`")]
    NoDomain,
    /// The limit is invalid.
    #[error(transparent)]
    Limit(#[from] LimitError),
    /// A payer has no name of its own.
    #[error(
        "policy `{policy}` has a payer named `{payer}`: give each payer a name of its own, without `/`, that is not that of the policy"
    )]
    PayerName {
        /// The policy.
        policy: String,
        /// The payer.
        payer: String,
    },
    /// The payers are too many.
    #[error(
        "policy `{policy}` has too many payers: its own limit and the further ones are at most {}",
        Policy::MAX_PAYERS
    )]
    TooManyPayers {
        /// The policy.
        policy: String,
    },
    /// The policy never refuses, so nothing is left to pay.
    #[error(
        "policy `{policy}` never refuses, so its further payers would never pay: give it a limit, or leave them out"
    )]
    PayersOfUnlimited {
        /// The policy.
        policy: String,
    },
    /// A payer never pays, or all of them together hold more than a limit may.
    #[error(
        "the payers of policy `{policy}` have limits of at least 1, and together at most {}, units: leave out what never pays, or lower the others",
        crate::Cost::MAX
    )]
    PayersCapacity {
        /// The policy.
        policy: String,
    },
    /// What is in flight is held, and nothing can be held of several payers.
    #[error(
        "policy `{policy}` has several payers, and one of them limits what is in flight: give that a policy of its own"
    )]
    PayersInFlight {
        /// The policy.
        policy: String,
    },
    /// Units would be taken in advance of one payer, and nobody could say of which.
    #[error("policy `{policy}` has several payers, and so no `allotment`: leave out one of them")]
    PayersInAdvance {
        /// The policy.
        policy: String,
    },
    /// The policy is of another domain than the one it was put into.
    #[error("policy `{policy}` is of domain `{domain}`, not of `{expected}`")]
    OtherDomain {
        /// The policy.
        policy: String,
        /// Its domain.
        domain: String,
        /// The domain it was put into.
        expected: String,
    },
}

/// The default percentage of a limit at which it counts as nearly reached.
const NEAR: u8 = 80;

impl Policy {
    /// Creates a policy that enforces `limit`: a [`Limit`] or its text.
    pub fn new(name: impl Into<String>, domain: impl Into<String>, limit: impl IntoLimit) -> Result<Self, PolicyError> {
        Ok(Self { limit: Some(limit.into_limit()?), ..Self::unlimited(name, domain)? })
    }

    /// Creates a policy without a limit: it never refuses.
    pub fn unlimited(name: impl Into<String>, domain: impl Into<String>) -> Result<Self, PolicyError> {
        let (name, domain) = (name.into(), domain.into());
        if name.is_empty() {
            return Err(PolicyError::NoName);
        }
        if domain.is_empty() {
            return Err(PolicyError::NoDomain);
        }
        let key_name = key_name(&domain, &name);
        let (mode, on_error, excess) = (Mode::default(), OnError::default(), Excess::default());
        Ok(Self {
            name,
            domain,
            key_name,
            limit: None,
            payers: Vec::new(),
            mode,
            on_error,
            share: None,
            cache_denials: None,
            holds: None,
            allotment: false,
            excess,
            near: NEAR,
            metadata: None,
            reported_name: None,
        })
    }

    /// Sets whether it refuses. Defaults to [`Mode::Enforce`].
    #[must_use]
    pub fn with_mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// Sets what to answer when the store cannot. Defaults to [`OnError::Local`].
    #[must_use]
    pub fn with_on_error(mut self, on_error: OnError) -> Self {
        self.on_error = on_error;
        self
    }

    /// Sets the share of the limit that this process may admit on its own, with [`OnError::Local`]. `None`, the default,
    /// divides the limit by the number of [`Instances`].
    #[must_use]
    pub fn with_share(mut self, share: Option<Share>) -> Self {
        self.share = share;
        self
    }

    /// Sets how long a denial may be repeated without the store, where a [`DenyCache`](crate::store::DenyCache) is used;
    /// zero is never. `None`, the default, leaves it to the cache. A refund by another process takes effect only after
    /// this time.
    #[must_use]
    pub fn with_cache_denials(mut self, at_most: Option<Duration>) -> Self {
        self.cache_denials = at_most;
        self
    }

    /// Sets what it grants to holds. `None`, the default, grants [`HoldTerms::DEFAULT`]. Give it to a policy that is reserved from: a
    /// shared store is then asked once about it, and otherwise twice while units are held.
    #[must_use]
    pub fn with_holds(mut self, terms: Option<HoldTerms>) -> Self {
        self.holds = terms;
        self
    }

    /// Sets whether units may be taken in advance and spent without the store while a key is hot, where
    /// [`Allotments`](crate::store::Allotments) is used. Defaults to false.
    #[must_use]
    pub fn with_allotment(mut self, allotment: bool) -> Self {
        self.allotment = allotment;
        self
    }

    /// Sets what happens to a cost that exceeds what is left. Defaults to [`Excess::Refuse`].
    #[must_use]
    pub fn with_excess(mut self, excess: Excess) -> Self {
        self.excess = excess;
        self
    }

    /// Sets the percentage of use above which it counts as nearly reached. Defaults to 80.
    #[must_use]
    pub fn with_near(mut self, percent: u8) -> Self {
        self.near = percent.min(100);
        self
    }

    /// Sets the JSON text that is returned to callers of Envoy's protocol.
    #[must_use]
    pub fn with_metadata(mut self, json: Option<String>) -> Self {
        self.metadata = json;
        self
    }

    /// Sets the name that callers of Envoy's protocol are shown, which need not be unique and may be empty. Defaults to
    /// [`name`](Self::name).
    #[must_use]
    pub fn with_reported_name(mut self, name: impl Into<String>) -> Self {
        self.reported_name = Some(name.into());
        self
    }

    /// The name within the domain.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The domain.
    pub fn domain(&self) -> &str {
        &self.domain
    }

    /// The name of its states in a store: `domain/name`, or a digest if that is too long.
    pub fn key_name(&self) -> &str {
        &self.key_name
    }

    /// The limit; without one it never refuses.
    pub fn limit(&self) -> Option<&Limit> {
        self.limit.as_ref()
    }

    /// The limit that applies to a caller: its override if there is one, or else the policy's.
    pub(crate) fn limit_of<'l>(&'l self, caller: &'l CallerLimit) -> Option<&'l Limit> {
        match caller {
            CallerLimit::OfPolicy => self.limit.as_ref(),
            CallerLimit::Override(limit) => Some(limit),
            CallerLimit::Changing(limit, _) => Some(limit),
            CallerLimit::Unlimited => None,
        }
    }

    /// Whether it refuses.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// What to answer when the store cannot.
    pub fn on_error(&self) -> OnError {
        self.on_error
    }

    /// The fixed share of the limit that this process may admit on its own, if there is one.
    pub fn share(&self) -> Option<Share> {
        self.share
    }

    /// How long a denial may be repeated without the store; `None` leaves it to the cache.
    pub fn cache_denials(&self) -> Option<Duration> {
        self.cache_denials
    }

    /// What it grants to holds, if that was said.
    pub fn holds(&self) -> Option<&HoldTerms> {
        self.holds.as_ref()
    }

    /// Whether units may be taken in advance and spent without the store.
    pub fn allotment(&self) -> bool {
        self.allotment
    }

    /// What happens to a cost that exceeds what is left.
    pub fn excess(&self) -> Excess {
        self.excess
    }

    /// The percentage of use above which it counts as nearly reached.
    pub fn near(&self) -> u8 {
        self.near
    }

    /// The name that callers of Envoy's protocol are shown.
    pub fn reported_name(&self) -> &str {
        self.reported_name.as_deref().unwrap_or(&self.name)
    }

    /// The JSON text for callers of Envoy's protocol.
    pub fn metadata(&self) -> Option<&str> {
        self.metadata.as_deref()
    }
}

/// The name of the states of a policy. A `/` in a domain is doubled, so that no two policies share a name.
pub fn key_name(domain: &str, name: &str) -> String {
    let written = format!("{}/{name}", domain.replace('/', "//"));
    if written.len() <= Key::MAX_POLICY { written } else { digest(written.as_bytes(), 16) }
}

/// The name of a policy within its domain, given the name of its states. A digest is returned as it is.
pub fn name_within_domain(key_name: &str) -> &str {
    let mut rest = key_name;
    while let Some((_, after)) = rest.split_once('/') {
        match after.strip_prefix('/') {
            Some(after) => rest = after,
            None => return after,
        }
    }
    key_name
}

words! {
    /// Whether a policy refuses.
    #[derive(Default)]
    #[non_exhaustive]
    pub enum Mode, "mode" {
        /// Denies calls that do not fit.
        #[default]
        Enforce = "enforce",
        /// Evaluated and reported, but never refuses and never affects other policies.
        Shadow = "shadow",
        /// One of several quotas: a call is denied only if all of them are used up.
        Quota = "quota",
    }
}

words! {
    /// What to answer when the store cannot.
    #[derive(Default)]
    #[non_exhaustive]
    pub enum OnError, "on_error" {
        /// Allow the call (fail open).
        Allow = "allow",
        /// Deny the call (fail closed).
        Deny = "deny",
        /// Decide in this process with a share of the limit until the store is back.
        #[default]
        Local = "local",
    }
}

words! {
    /// What happens to a cost that exceeds what is left.
    #[derive(Default)]
    #[non_exhaustive]
    pub enum Excess, "excess" {
        /// The call is denied, and nothing is charged.
        #[default]
        Refuse = "refuse",
        /// The call is denied, and what is left is charged: for costs that are known only afterwards.
        Drain = "drain",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read_as_they_are_written() {
        for mode in Mode::ALL {
            assert_eq!(mode.name().parse::<Mode>().unwrap(), *mode);
        }
        assert_eq!("shadwo".parse::<Mode>().unwrap_err().to_string(), "unknown mode `shadwo`: did you mean `shadow`?");
        assert_eq!(
            "perhaps".parse::<OnError>().unwrap_err().to_string(),
            "unknown on_error `perhaps`: use one of allow, deny, local"
        );
    }

    #[test]
    fn no_two_policies_share_a_key_name() {
        let name = |domain: &str, name: &str| Policy::unlimited(name, domain).unwrap().key_name().to_owned();
        assert_ne!(name("a/b", "c"), name("a", "b/c"));
        let long = "x".repeat(200);
        assert_eq!(name("a", &long).len(), 33, "a digest of 128 bits");
        assert_ne!(name("a", &long), name("b", &long));
        let longest = "x".repeat(Key::MAX_POLICY - 2);
        assert_eq!(name("a", &longest), format!("a/{longest}"));
        assert!(name("ab", &longest).starts_with('#'));
    }

    #[test]
    fn a_policy_has_a_name_and_a_domain() {
        assert_eq!(Policy::unlimited("", "d"), Err(PolicyError::NoName));
        assert_eq!(Policy::unlimited("p", ""), Err(PolicyError::NoDomain));
        assert!(matches!(Policy::new("p", "d", "1 a second"), Err(PolicyError::Limit(_))));
    }

    #[test]
    fn a_policy_keeps_what_it_is_told() {
        let plain = Policy::new("p", "d", "1/s").unwrap();
        assert_eq!((plain.near(), plain.share(), plain.cache_denials()), (80, None, None));
        assert_eq!((plain.reported_name(), plain.metadata()), ("p", None));
        assert!(!plain.allotment() && plain.clone().with_allotment(true).allotment());
        assert_eq!([0, 79, 100, 101].map(|near| plain.clone().with_near(near).near()), [0, 79, 100, 100]);
        let (share, second) = (Share::percent(25), Some(Duration::from_secs(1)));
        let told = plain.with_share(share).with_cache_denials(second).with_metadata(Some("{}".to_owned()));
        let told = told.with_reported_name("");
        assert_eq!((told.share(), told.cache_denials()), (share, second));
        assert_eq!((told.reported_name(), told.metadata()), ("", Some("{}")));
    }
}
