//! Live limits: overrides for one subject or one plan, kept in the store beside the states, and obeyed by every instance.
//!
//! An [`Override`] gives some callers of one policy another limit, for a time or until it is removed. All overrides of a store are one
//! [`OverrideSet`] with a revision. Instances read it regularly ([`Overrides::read_overrides`]) and lay it over their policies
//! ([`PolicySet::with_overrides`](crate::policy::PolicySet::with_overrides)).
//!
//! A change takes effect [`OverrideSet::NOTICE`] after it was made, on the store's clock, so that every instance knows of it before. From
//! then on the store picks the numbers by its own clock ([`Changes`](crate::limit::Changes)): two sizes are never in use for one key.

mod overlay;
mod record;
mod set;

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use crate::clock::Timestamp;
use crate::limit::Limit;
use crate::policy::Subject;
use crate::store::StoreError;
pub use record::RecordError;
pub use set::{OverrideError, OverrideSet};

/// Another limit for some callers of one policy.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Override {
    /// Which callers of which policy.
    pub target: Target,
    /// The limit; `None` is unlimited.
    pub limit: Option<Limit>,
    /// Why.
    pub reason: String,
    /// Who set it.
    pub author: String,
    /// When it was set, on the store's clock, as all instants here.
    pub set_at: Timestamp,
    /// When it takes effect.
    pub begins_at: Timestamp,
    /// When it ends; `None` lasts until it is removed.
    pub expires_at: Option<Timestamp>,
}

/// Which callers of which policy an override is for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Target {
    /// The domain of the policy.
    pub domain: String,
    /// The policy.
    pub policy: String,
    /// The entries of a descriptor, with their values, in order of the keys. Without any, it is for every caller.
    pub entries: Vec<(String, String)>,
}

impl Target {
    /// The callers of a policy whose descriptors have these entries.
    pub fn new(
        domain: impl Into<String>,
        policy: impl Into<String>,
        entries: impl IntoIterator<Item = (String, String)>,
    ) -> Self {
        let mut entries: Vec<_> = entries.into_iter().collect();
        entries.sort();
        Self { domain: domain.into(), policy: policy.into(), entries }
    }

    /// Whether there can be an override for it: its texts have their lengths, and each key is named once.
    pub fn validate(&self) -> Result<(), OverrideError> {
        set::validate_target(self)
    }

    /// The entries as one text.
    pub fn subject(&self) -> Subject {
        Subject::new(self.entries.iter().map(|(key, value)| (key.as_str(), value.as_str())))
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of policy `{}` in domain `{}`", self.subject(), self.policy, self.domain)
    }
}

impl Override {
    /// An override as somebody asks for it. [`OverrideSet::put`] says when it begins.
    pub fn new(target: Target, limit: Option<Limit>) -> Self {
        let never = Timestamp::from_micros(0);
        let (reason, author) = (String::new(), String::new());
        Self { target, limit, reason, author, set_at: never, begins_at: never, expires_at: None }
    }

    /// Sets why. Needed.
    #[must_use]
    pub fn because(self, reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), ..self }
    }

    /// Sets who. Needed.
    #[must_use]
    pub fn by(self, author: impl Into<String>) -> Self {
        Self { author: author.into(), ..self }
    }

    /// Sets the limit; `None` is unlimited.
    #[must_use]
    pub fn with_limit(self, limit: Option<Limit>) -> Self {
        Self { limit, ..self }
    }

    /// Whether it is in force at this instant.
    pub fn is_in_force(&self, now: Timestamp) -> bool {
        self.begins_at <= now && self.expires_at.is_none_or(|end| now < end)
    }
}

/// What a store said about its overrides.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reading {
    /// The instant, on the store's clock.
    pub now: Timestamp,
    /// The revision, 0 if no override was ever set. Every change has a larger one.
    pub revision: u64,
    /// The [encoded](OverrideSet::encode) set, empty for revision 0. `None` if the revision is the one that the reader knows.
    pub record: Option<Vec<u8>>,
}

impl Reading {
    /// Creates a reading.
    pub fn new(now: Timestamp, revision: u64, record: Option<Vec<u8>>) -> Self {
        Self { now, revision, record }
    }
}

/// A set that replaces another.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Replacement {
    /// The revision that it replaces.
    pub of: u64,
    /// Until when, on the store's clock: what begins at a fixed instant must not be written just before it.
    pub not_after: Timestamp,
    /// The encoded set.
    pub record: Vec<u8>,
}

impl Replacement {
    /// Creates a replacement of the set of this revision.
    pub fn new(of: u64, not_after: Timestamp, record: Vec<u8>) -> Self {
        Self { of, not_after, record }
    }
}

/// What became of a [`Replacement`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Replaced {
    /// It is in the store, with this revision.
    Done(u64),
    /// Somebody else was faster, or it came too late; nothing was changed. Read again.
    NotDone,
}

/// Keeps the overrides of a store. Each call is atomic, as of one instant.
pub trait Overrides: Send + Sync {
    /// Reads the set, unless its revision is `known`.
    fn read_overrides(&self, known: Option<u64>) -> impl Future<Output = Result<Reading, StoreError>> + Send;

    /// Replaces the set, if it still has the revision that is replaced.
    fn replace_overrides(&self, replacement: Replacement) -> impl Future<Output = Result<Replaced, StoreError>> + Send;
}

impl<S: Overrides> Overrides for Arc<S> {
    fn read_overrides(&self, known: Option<u64>) -> impl Future<Output = Result<Reading, StoreError>> + Send {
        (**self).read_overrides(known)
    }

    fn replace_overrides(&self, replacement: Replacement) -> impl Future<Output = Result<Replaced, StoreError>> + Send {
        (**self).replace_overrides(replacement)
    }
}

/// Why overrides were not changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChangeError {
    /// The change is invalid.
    #[error(transparent)]
    Invalid(#[from] OverrideError),
    /// The set in the store cannot be read.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The store did not answer.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The set has another revision than the caller has seen.
    #[error(
        "the overrides were changed meanwhile: they have revision {is}, not {expected}; list them, and decide again"
    )]
    Conflict {
        /// The revision that the caller has seen.
        expected: u64,
        /// The revision.
        is: u64,
    },
    /// Others kept changing the set.
    #[error("the overrides were changed by others {0} times in a row; nothing was changed: retry")]
    Contended(u32),
}

/// How often a change is tried that others, or a slow network, get ahead of.
const ATTEMPTS: u32 = 8;

/// Changes the overrides of a store: reads them, applies `change`, and writes them back unless somebody else was faster; then it is
/// tried again. With `expected`, only a set of that revision is changed. Returns the set as it is now.
pub async fn change<S: Overrides>(
    store: &S,
    expected: Option<u64>,
    mut change: impl FnMut(&mut OverrideSet, Timestamp) -> Result<(), OverrideError> + Send,
) -> Result<OverrideSet, ChangeError> {
    for _ in 0..ATTEMPTS {
        let reading = store.read_overrides(None).await?;
        let now = reading.now;
        let mut set = OverrideSet::of_reading(&reading)?;
        if let Some(expected) = expected.filter(|expected| *expected != set.revision()) {
            return Err(ChangeError::Conflict { expected, is: set.revision() });
        }
        change(&mut set, now)?;
        set.prune(now);
        let record = set.encode()?;
        let replacement = Replacement::new(set.revision(), OverrideSet::latest_write(now), record);
        if let Replaced::Done(revision) = store.replace_overrides(replacement).await? {
            return Ok(set.with_revision(revision));
        }
    }
    Err(ChangeError::Contended(ATTEMPTS))
}
