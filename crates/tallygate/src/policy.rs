//! A named rule: its limit, its mode, and what to answer when the store cannot.

mod ask;
mod evaluation;
mod matcher;
mod pattern;
mod rules;
mod set;
mod stores;
mod subject;
mod verdict;

use crate::key::{Key, digest};
use crate::limit::Limit;
use crate::words::words;
pub use ask::{Action, Ask};
pub use evaluation::Evaluation;
pub use matcher::{Domain, Match, Matcher, Reason};
pub use pattern::Pattern;
pub use rules::{Rule, Rules, Want};
pub use set::{PolicySet, PolicySetError};
pub use stores::Stores;
pub use subject::Subject;
pub use verdict::{Outcome, Ruling, Verdict};

/// A named rule: its limit, whether it refuses, and what to answer when the store cannot.
///
/// It does not say which calls it applies to: that is up to the [`Matcher`] of its [`Domain`].
///
/// ```
/// use tallygate::{Mode, Policy};
///
/// let policy = Policy::new("per-user", "api", Some("100/min".parse()?))?.with_mode(Mode::Shadow);
/// assert_eq!(policy.key_name(), "api/per-user");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    name: String,
    domain: String,
    key_name: String,
    limit: Option<Limit>,
    mode: Mode,
    on_error: OnError,
    excess: Excess,
    near: u8,
    metadata: Option<String>,
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
}

/// The default percentage of a limit at which it counts as nearly reached.
const NEAR: u8 = 80;

impl Policy {
    /// Creates a policy that enforces `limit`. Without a limit it never refuses.
    pub fn new(name: impl Into<String>, domain: impl Into<String>, limit: Option<Limit>) -> Result<Self, PolicyError> {
        let (name, domain) = (name.into(), domain.into());
        if name.is_empty() {
            return Err(PolicyError::NoName);
        }
        if domain.is_empty() {
            return Err(PolicyError::NoDomain);
        }
        let key_name = key_name(&domain, &name);
        let (mode, on_error, excess) = (Mode::default(), OnError::default(), Excess::default());
        Ok(Self { name, domain, key_name, limit, mode, on_error, excess, near: NEAR, metadata: None })
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
    fn limit_or<'l>(&'l self, own: Option<&'l Option<Limit>>) -> Option<&'l Limit> {
        own.unwrap_or(&self.limit).as_ref()
    }

    /// Whether it refuses.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// What to answer when the store cannot.
    pub fn on_error(&self) -> OnError {
        self.on_error
    }

    /// What happens to a cost that exceeds what is left.
    pub fn excess(&self) -> Excess {
        self.excess
    }

    /// The percentage of use above which it counts as nearly reached.
    pub fn near(&self) -> u8 {
        self.near
    }

    /// The JSON text for callers of Envoy's protocol.
    pub fn metadata(&self) -> Option<&str> {
        self.metadata.as_deref()
    }
}

/// A `/` in a domain is doubled, so that no two policies share a name.
fn key_name(domain: &str, name: &str) -> String {
    let written = format!("{}/{name}", domain.replace('/', "//"));
    if written.len() <= Key::MAX_POLICY { written } else { digest(written.as_bytes(), 16) }
}

words! {
    /// Whether a policy refuses.
    #[derive(Default)]
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
    pub enum OnError, "on_error" {
        /// Allow the call (fail open).
        Allow = "allow",
        /// Deny the call (fail closed).
        Deny = "deny",
        /// Decide with a local store in this process until the store is back.
        #[default]
        Local = "local",
    }
}

words! {
    /// What happens to a cost that exceeds what is left.
    #[derive(Default)]
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
        let name = |domain: &str, name: &str| Policy::new(name, domain, None).unwrap().key_name().to_owned();
        assert_ne!(name("a/b", "c"), name("a", "b/c"));
        let long = "x".repeat(200);
        assert!(name("a", &long).len() <= Key::MAX_POLICY);
        assert_ne!(name("a", &long), name("b", &long));
    }
}
