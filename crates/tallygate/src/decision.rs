//! The answer: what each check got, and what that means for the call.

use std::cmp::Ordering;
use std::time::Duration;

use crate::clock::Timestamp;
use crate::few::Few;
use crate::limit::Limit;

/// The answer to one check.
///
/// Small, because it is copied on its way out: no amount is above 10^9, and durations are microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Status {
    retry_after: u64,
    reset_after: u64,
    limit: u32,
    remaining: u32,
    allowed: bool,
}

/// The `retry_after` of a check that no wait will satisfy.
const NEVER: u64 = u64::MAX;

impl Status {
    /// Whether this check, taken alone, is satisfied.
    pub fn allowed(&self) -> bool {
        self.allowed
    }

    /// The most that can be had at one instant.
    pub fn limit(&self) -> u64 {
        u64::from(self.limit)
    }

    /// Units that can still be had at this instant, after the call was charged if it was.
    pub fn remaining(&self) -> u64 {
        u64::from(self.remaining)
    }

    /// How long to wait until the same check would be satisfied: exact, if nobody else takes units meanwhile. Zero if
    /// it is satisfied now; `None` if no wait will do.
    pub fn retry_after(&self) -> Option<Duration> {
        (self.retry_after != NEVER).then(|| Duration::from_micros(self.retry_after))
    }

    /// How long until nothing that was used counts any more.
    pub fn reset_after(&self) -> Duration {
        Duration::from_micros(self.reset_after)
    }

    /// A status as a store computed it; durations in microseconds.
    #[doc(hidden)]
    pub fn from_parts(limit: &Limit, allowed: bool, remaining: u64, retry_after: u64, reset_after: u64) -> Self {
        Self { retry_after, reset_after, limit: units(limit.capacity()), remaining: units(remaining), allowed }
    }

    /// The status of a check that was charged and then given back. Until when the rest counts is not known better than before,
    /// unless there is none.
    #[doc(hidden)]
    #[must_use]
    pub fn with_given_back(self, given: u64) -> Self {
        let remaining = units(self.remaining() + given).min(self.limit);
        let reset_after = if given > 0 && remaining == self.limit { 0 } else { self.reset_after };
        Self { remaining, reset_after, ..self }
    }

    /// The same numbers, with another outcome.
    pub(crate) fn as_allowed(self, allowed: bool) -> Self {
        Self { allowed, retry_after: if allowed { 0 } else { self.retry_after }, ..self }
    }

    /// The same numbers, denied, and no wait will change that.
    pub(crate) fn as_hopeless(self) -> Self {
        Self { allowed: false, retry_after: NEVER, ..self }
    }

    /// Nothing limits it.
    pub(crate) fn unlimited() -> Self {
        Self { retry_after: 0, reset_after: 0, limit: u32::MAX, remaining: u32::MAX, allowed: true }
    }

    /// Allowed, and nothing is known to be used.
    pub(crate) fn untouched(limit: &Limit) -> Self {
        let capacity = units(limit.capacity());
        Self { retry_after: 0, reset_after: 0, limit: capacity, remaining: capacity, allowed: true }
    }

    /// Which of two binds more: the denied one with the longer wait, or else the one with less left.
    pub(crate) fn tightness(&self, other: &Self) -> Ordering {
        let by_outcome = other.allowed.cmp(&self.allowed);
        let by_wait = self.retry_after.cmp(&other.retry_after);
        let by_rest = other.remaining.cmp(&self.remaining);
        by_outcome.then(by_wait).then(by_rest).then(self.reset_after.cmp(&other.reset_after))
    }

    /// Denied, and no wait will change that.
    pub(crate) fn never(limit: &Limit) -> Self {
        Self { retry_after: NEVER, reset_after: 0, limit: units(limit.capacity()), remaining: 0, allowed: false }
    }
}

/// No limit holds more than 10^9.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "capped just before")]
fn units(count: u64) -> u32 {
    count.min(u64::from(u32::MAX)) as u32
}

/// Where an answer came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Source {
    /// The store decided.
    Store,
    /// A limit of zero: nobody had to be asked.
    ZeroLimit,
    /// The store is full, and the key it does not know shares a state with others or is denied.
    Overflow,
    /// The store could not answer, and the policy allows what it cannot decide.
    OnErrorAllow,
    /// The store could not answer, and the policy denies what it cannot decide.
    OnErrorDeny,
    /// The store could not answer, and this process decided by itself.
    OnErrorLocal,
    /// More is asked than the limit can ever hold: nobody had to be asked.
    TooCostly,
    /// Nothing limits it.
    Unlimited,
}

impl Source {
    /// All of them.
    pub const ALL: &[Self] = &[
        Self::Store,
        Self::ZeroLimit,
        Self::Overflow,
        Self::OnErrorAllow,
        Self::OnErrorDeny,
        Self::OnErrorLocal,
        Self::TooCostly,
        Self::Unlimited,
    ];

    /// The word used in JSON, metrics and logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Store => "store",
            Self::ZeroLimit => "zero_limit",
            Self::Overflow => "overflow",
            Self::OnErrorAllow => "on_error_allow",
            Self::OnErrorDeny => "on_error_deny",
            Self::OnErrorLocal => "on_error_local",
            Self::TooCostly => "too_costly",
            Self::Unlimited => "unlimited",
        }
    }
}

/// The answer to a call of one or several checks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    statuses: Statuses,
    source: Source,
    decided_at: Timestamp,
    split: bool,
}

impl Decision {
    /// Folds the statuses of one call, in the order of its checks, of which there is at least one.
    pub fn from_statuses(statuses: Statuses, source: Source, decided_at: Timestamp) -> Self {
        Self { statuses, source, decided_at, split: false }
    }

    /// Marks that the checks were charged one after the other, and given back on denial.
    #[must_use]
    pub fn into_split(self) -> Self {
        Self { split: true, ..self }
    }

    /// Whether the call may proceed. If not, nothing was charged, or in a [`split`](Self::split) decision all of it was
    /// given back.
    pub fn allowed(&self) -> bool {
        self.statuses.iter().all(Status::allowed)
    }

    /// One status for each check, in order.
    pub fn statuses(&self) -> &[Status] {
        &self.statuses
    }

    /// Which check binds: the denied one with the longest wait, or else the one with least left.
    pub fn binding_index(&self) -> usize {
        let indexed = self.statuses.iter().enumerate();
        indexed.max_by(|(_, a), (_, b)| a.tightness(b)).map_or(0, |(index, _)| index)
    }

    /// The status of the check that binds.
    pub fn binding(&self) -> &Status {
        &self.statuses[self.binding_index()]
    }

    /// Where the answer came from.
    pub fn source(&self) -> Source {
        self.source
    }

    /// The instant, on the store's clock, as of which it was decided. A refund names it. It means nothing if
    /// no store had to be asked.
    pub fn decided_at(&self) -> Timestamp {
        self.decided_at
    }

    /// Whether the checks had to be charged one after the other because they live in different slots of a cluster.
    pub fn split(&self) -> bool {
        self.split
    }
}

/// The statuses of a call.
pub type Statuses = Few<Status>;
