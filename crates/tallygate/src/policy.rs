//! A named rule: how much, how strictly, and what to answer when the store cannot.

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

/// A named rule: which limit holds, whether it refuses, and what to answer when the store cannot.
///
/// Which calls it is about is not in here: that is for the [`Matcher`] of its [`Domain`].
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

/// Why a policy cannot be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// It has no name.
    #[error("a policy needs a name, for example `per-user`")]
    NoName,
    /// It belongs nowhere.
    #[error("a policy needs a domain, for example `api`")]
    NoDomain,
}

/// How many percent of a limit are used when it counts as nearly reached, unless a policy says otherwise.
const NEAR: u8 = 80;

impl Policy {
    /// A policy that enforces `limit`, or never refuses if there is none.
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

    /// Whether it refuses. [`Mode::Enforce`] unless said.
    #[must_use]
    pub fn with_mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// What to answer when the store cannot. [`OnError::Local`] unless said.
    #[must_use]
    pub fn with_on_error(mut self, on_error: OnError) -> Self {
        self.on_error = on_error;
        self
    }

    /// What a cost does that is more than what is left. [`Excess::Refuse`] unless said.
    #[must_use]
    pub fn with_excess(mut self, excess: Excess) -> Self {
        self.excess = excess;
        self
    }

    /// From how many percent on it counts as nearly reached. 80 unless said.
    #[must_use]
    pub fn with_near(mut self, percent: u8) -> Self {
        self.near = percent.min(100);
        self
    }

    /// JSON text that is handed to those who ask by Envoy's protocol.
    #[must_use]
    pub fn with_metadata(mut self, json: Option<String>) -> Self {
        self.metadata = json;
        self
    }

    /// Its name within the domain.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The domain it belongs to.
    pub fn domain(&self) -> &str {
        &self.domain
    }

    /// The name under which its states are kept: `domain/name`, or a digest of it if that is long.
    pub fn key_name(&self) -> &str {
        &self.key_name
    }

    /// Its limit; `None` never refuses.
    pub fn limit(&self) -> Option<&Limit> {
        self.limit.as_ref()
    }

    /// The limit that holds for a caller: its own, if it has one, or else the policy's.
    fn limit_or<'l>(&'l self, own: Option<&'l Option<Limit>>) -> Option<&'l Limit> {
        own.unwrap_or(&self.limit).as_ref()
    }

    /// Whether it refuses.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// What it answers when the store cannot.
    pub fn on_error(&self) -> OnError {
        self.on_error
    }

    /// What a cost does that is more than what is left.
    pub fn excess(&self) -> Excess {
        self.excess
    }

    /// From how many percent on it counts as nearly reached.
    pub fn near(&self) -> u8 {
        self.near
    }

    /// JSON text for those who ask by Envoy's protocol.
    pub fn metadata(&self) -> Option<&str> {
        self.metadata.as_deref()
    }
}

/// A `/` in a domain is written twice, so that no two pairs meet in one name.
fn key_name(domain: &str, name: &str) -> String {
    let written = format!("{}/{name}", domain.replace('/', "//"));
    if written.len() <= Key::MAX_POLICY { written } else { digest(written.as_bytes(), 16) }
}

words! {
    /// Whether a policy refuses.
    #[derive(Default)]
    pub enum Mode, "mode" {
        /// A call that does not fit is denied.
        #[default]
        Enforce = "enforce",
        /// Evaluated and reported; never refuses, never keeps another policy from being charged.
        Shadow = "shadow",
        /// One of several quotas: a call is denied only if all of them are used up.
        Quota = "quota",
    }
}

words! {
    /// What to answer when the store cannot.
    #[derive(Default)]
    pub enum OnError, "on_error" {
        /// The call may proceed.
        Allow = "allow",
        /// The call may not.
        Deny = "deny",
        /// This process decides by itself, with states of its own, until the store is back.
        #[default]
        Local = "local",
    }
}

words! {
    /// What a cost does that is more than what is left.
    #[derive(Default)]
    pub enum Excess, "excess" {
        /// The call is denied and charged nothing.
        #[default]
        Refuse = "refuse",
        /// The call is denied and takes what is left: for costs that are told after the fact.
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
        assert_eq!("shadwo".parse::<Mode>().unwrap_err().to_string(), "`shadwo` is no mode: did you mean `shadow`?");
        assert_eq!(
            "perhaps".parse::<OnError>().unwrap_err().to_string(),
            "`perhaps` is no on_error: use one of allow, deny, local"
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
