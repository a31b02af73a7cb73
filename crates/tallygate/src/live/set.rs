//! All overrides of a store, and the rules by which they change.

use std::collections::HashSet;
use std::time::Duration;

use super::record::{self, RecordError};
use super::{Override, Reading, Target};
use crate::clock::Timestamp;
use crate::limit::Limit;
use crate::policy::{Policy, PolicySet};
use crate::words::nearest;

/// All overrides of a store, with the revision of the set. Those that were replaced or removed are in it until they have ended.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OverrideSet {
    revision: u64,
    overrides: Vec<Override>,
}

/// Why an override cannot be set, or not be removed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OverrideError {
    /// The policy does not exist.
    #[error("domain `{domain}` has no policy `{policy}`{}: an override is for a policy of the files", did_you_mean(.near))]
    UnknownPolicy {
        /// The domain.
        domain: String,
        /// The policy.
        policy: String,
        /// What was probably meant.
        near: Option<String>,
    },
    /// The limit has another algorithm than the policy.
    #[error(
        "the limit `{limit}` is a {of_limit}, and policy `{policy}` a {of_policy}: another algorithm has states of its own, so every \
         caller would begin anew; change the algorithm in the policy file instead"
    )]
    OtherAlgorithm {
        /// The limit.
        limit: String,
        /// Its algorithm.
        of_limit: &'static str,
        /// The policy.
        policy: String,
        /// Its algorithm.
        of_policy: &'static str,
    },
    /// A text is missing or too long.
    #[error("`{what}` has {length} bytes: write 1 to {most}")]
    Length {
        /// What it is.
        what: &'static str,
        /// Its length.
        length: usize,
        /// The most bytes.
        most: usize,
    },
    /// An entry is named twice, or there are too many.
    #[error("`match` has {0} different keys or names one twice: name each of at most {most} keys once", most = OverrideSet::MOST_ENTRIES)]
    Entries(usize),
    /// It ends before it begins.
    #[error("an override lasts at least {} ms, as it takes effect after {} ms: choose a later expiry", OverrideSet::SHORTEST.as_millis(), OverrideSet::NOTICE.as_millis())]
    TooShort,
    /// There are too many overrides.
    #[error(
        "there are {0} overrides or {1} bytes of them, the most that a store keeps: remove some, or give a plan to those callers"
    )]
    TooMany(usize, usize),
    /// The overrides of one policy match by too many combinations of keys.
    #[error("the overrides of policy `{0}` match by {most} combinations of keys, the most there may be: use one of these", most = OverrideSet::MOST_SHAPES)]
    TooManyShapes(String),
    /// There is no such override.
    #[error("there is no override for {0}: list them to see what there is")]
    NotFound(String),
}

fn did_you_mean(near: &Option<String>) -> String {
    near.as_ref().map_or(String::new(), |near| format!(" (did you mean `{near}`?)"))
}

impl OverrideSet {
    /// How long after it was made a change takes effect. Every instance reads the set several times meanwhile.
    pub const NOTICE: Duration = Duration::from_millis(800);
    /// How soon after the set was read it must be replaced. What is left of the notice is for the instances.
    const WRITTEN_WITHIN: Duration = Duration::from_millis(150);
    /// The shortest time from setting an override to its end.
    pub const SHORTEST: Duration = Duration::from_secs(1);
    /// The most overrides of one store.
    pub const MOST: usize = 10_000;
    /// The most bytes of them, as kept.
    pub const MOST_BYTES: usize = 4 << 20;
    /// The most entries of one.
    pub const MOST_ENTRIES: usize = 4;
    /// The most combinations of keys by which the overrides of one policy match. Each costs a look into a table per call.
    pub const MOST_SHAPES: usize = 8;
    /// The most bytes of a reason, and of the value of an entry.
    pub const LONGEST: usize = 256;
    /// The most bytes of an author, and of the key of an entry.
    pub const LONGEST_NAME: usize = 64;
    /// For how long the end of an override is kept, so that instances whose idea of the store's time is not exact see it too.
    const KEPT: u64 = 10_000_000;

    /// Reads a set.
    pub fn of_reading(reading: &Reading) -> Result<Self, RecordError> {
        let record = reading.record.as_deref().unwrap_or_default();
        Ok(Self { revision: reading.revision, overrides: record::decode(record)? })
    }

    /// The set as a store keeps it.
    ///
    /// # Errors
    /// If there are too many overrides.
    pub fn encode(&self) -> Result<Vec<u8>, OverrideError> {
        let record = record::encode(&self.overrides);
        if self.overrides.len() > Self::MOST || record.len() > Self::MOST_BYTES {
            return Err(OverrideError::TooMany(self.overrides.len(), record.len()));
        }
        Ok(record)
    }

    pub(super) fn with_revision(self, revision: u64) -> Self {
        Self { revision, ..self }
    }

    /// The revision; 0 if no override was ever set.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// All of them, in the order in which they were set, those included that have not begun, or have just ended.
    pub fn overrides(&self) -> &[Override] {
        &self.overrides
    }

    #[cfg(test)]
    pub(super) fn overrides_mut(&mut self) -> &mut Vec<Override> {
        &mut self.overrides
    }

    /// Those that have not ended and are not replaced, in the order in which they were set. One that was removed is listed until it
    /// has ended.
    pub fn listed(&self, now: Timestamp) -> Vec<&Override> {
        let mut later = HashSet::new();
        let last = self.overrides.iter().rev().filter(|one| later.insert(&one.target));
        let mut listed: Vec<&Override> = last.filter(|one| one.expires_at.is_none_or(|end| now < end)).collect();
        listed.reverse();
        listed
    }

    /// The set with an override in force, instead of one with the same target if there is one: to see what it would do.
    #[must_use]
    pub fn with_preview(mut self, new: Override) -> Self {
        let began = Timestamp::from_micros(0);
        self.overrides.retain(|one| one.target != new.target);
        self.overrides.push(Override { set_at: began, begins_at: began, expires_at: None, ..new });
        self
    }

    pub(super) fn latest_write(now: Timestamp) -> Timestamp {
        after(now, Self::WRITTEN_WITHIN)
    }

    /// Sets an override, instead of one with the same target if there is one. `lasts` is from now on. Whether its policy exists is up
    /// to [`check`](Self::check).
    pub fn put(&mut self, new: Override, lasts: Option<Duration>, now: Timestamp) -> Result<(), OverrideError> {
        validate(&new)?;
        if lasts.is_some_and(|lasts| lasts < Self::SHORTEST) {
            return Err(OverrideError::TooShort);
        }
        let begins_at = after(now, Self::NOTICE);
        self.end(&new.target, begins_at);
        let expires_at = lasts.map(|lasts| after(now, lasts));
        self.overrides.push(Override { set_at: now, begins_at, expires_at, ..new });
        let of_policy = |one: &&Override| {
            let (target, last) = (&one.target, &self.overrides[self.overrides.len() - 1].target);
            (&target.domain, &target.policy) == (&last.domain, &last.policy)
        };
        let shapes: HashSet<Vec<&str>> = self.overrides.iter().filter(of_policy).map(|one| keys(&one.target)).collect();
        if shapes.len() > Self::MOST_SHAPES {
            return Err(OverrideError::TooManyShapes(
                self.overrides.pop().map_or(String::new(), |one| one.target.policy),
            ));
        }
        Ok(())
    }

    /// Removes an override: it ends after the [notice](Self::NOTICE).
    pub fn remove(&mut self, target: &Target, now: Timestamp) -> Result<(), OverrideError> {
        if !self.listed(now).iter().any(|one| one.target == *target) {
            return Err(OverrideError::NotFound(target.to_string()));
        }
        self.end(target, after(now, Self::NOTICE));
        Ok(())
    }

    fn end(&mut self, target: &Target, at: Timestamp) {
        for one in self.overrides.iter_mut().filter(|one| one.target == *target) {
            one.expires_at = Some(one.expires_at.map_or(at, |end| end.min(at)));
        }
    }

    /// Forgets what has ended.
    pub(super) fn prune(&mut self, now: Timestamp) {
        self.overrides.retain(|one| one.expires_at.is_none_or(|end| end.as_micros() + Self::KEPT > now.as_micros()));
    }

    /// Whether an override fits the policies: the policy exists, and keeps its algorithm.
    pub fn check(new: &Override, policies: &PolicySet) -> Result<(), OverrideError> {
        fitting(new, policies).map(|_| ())
    }
}

/// The policy of an override, if the override fits it. What counts in flight is only reserved, so it does not even fit a policy
/// without a limit.
pub(super) fn fitting<'p>(one: &Override, policies: &'p PolicySet) -> Result<&'p Policy, OverrideError> {
    let policy = policy_of(&one.target, policies)?;
    let own = policy.limit().map(Limit::algorithm);
    match &one.limit {
        Some(limit) if own.map_or(limit.is_concurrency(), |own| own != limit.algorithm()) => {
            Err(OverrideError::OtherAlgorithm {
                limit: limit.to_string(),
                of_limit: limit.algorithm().name(),
                policy: policy.name().to_owned(),
                of_policy: own.map_or("policy without a limit", |own| own.name()),
            })
        }
        _ => Ok(policy),
    }
}

/// The policy that a target names.
pub(super) fn policy_of<'p>(target: &Target, policies: &'p PolicySet) -> Result<&'p Policy, OverrideError> {
    let Target { domain, policy, .. } = target;
    let known = policies.domain(domain).map(|domain| domain.policies()).unwrap_or_default();
    let found = known.iter().find(|known| known.name() == policy);
    found.map(|found| &**found).ok_or_else(|| {
        let names: Vec<&str> = known.iter().map(|known| known.name()).collect();
        let near = nearest(policy, &names).map(str::to_owned);
        OverrideError::UnknownPolicy { domain: domain.clone(), policy: policy.clone(), near }
    })
}

/// The keys of the entries of a target, which are in order.
pub(super) fn keys(target: &Target) -> Vec<&str> {
    target.entries.iter().map(|(key, _)| key.as_str()).collect()
}

fn after(now: Timestamp, span: Duration) -> Timestamp {
    let span = u64::try_from(span.as_micros()).unwrap_or(u64::MAX);
    // Later than any store keeps a state.
    Timestamp::from_micros(now.as_micros().saturating_add(span).min(1 << 52))
}

fn length(what: &'static str, text: &str, most: usize) -> Result<(), OverrideError> {
    match text.len() {
        1.. if text.len() <= most => Ok(()),
        length => Err(OverrideError::Length { what, length, most }),
    }
}

fn validate(new: &Override) -> Result<(), OverrideError> {
    length("reason", &new.reason, OverrideSet::LONGEST)?;
    length("author", &new.author, OverrideSet::LONGEST_NAME)?;
    validate_target(&new.target)
}

/// Whether there can be an override for a target.
pub(super) fn validate_target(target: &Target) -> Result<(), OverrideError> {
    let Target { domain, policy, entries } = target;
    length("domain", domain, OverrideSet::LONGEST)?;
    length("policy", policy, OverrideSet::LONGEST)?;
    let distinct: HashSet<&str> = entries.iter().map(|(key, _)| key.as_str()).collect();
    if distinct.len() != entries.len() || entries.len() > OverrideSet::MOST_ENTRIES {
        return Err(OverrideError::Entries(distinct.len()));
    }
    for (key, value) in entries {
        length("match", key, OverrideSet::LONGEST_NAME)?;
        length("match", value, OverrideSet::LONGEST)?;
    }
    Ok(())
}

/// The text of a limit as an override has it.
pub(crate) fn written(limit: Option<&Limit>) -> String {
    record::written(limit)
}
