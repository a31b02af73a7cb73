//! The answer: what each check got, and what that means for the call.

use std::cmp::Ordering;
use std::sync::Arc;
use std::time::Duration;

use crate::call::Call;
use crate::check::{Check, Cost, Receipt};
use crate::clock::Timestamp;
use crate::limit::Limit;
use crate::store::StoreError;
use crate::words::words;

/// The answer to one check.
///
/// Small, because it is copied on its way out: no amount is above 10^9, and durations are microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Status {
    retry_after: u64,
    reset_after: u64,
    limit: u32,
    remaining: u32,
    units: u32,
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

    /// The units that the call moved: charged by a check, given back by a refund. For a reset, 1 if there was a state.
    pub fn units(&self) -> u64 {
        u64::from(self.units)
    }

    /// How long to wait until the same check would be satisfied: exact, if nobody else takes units meanwhile. Zero if
    /// it is satisfied now; `None` if waiting does not help.
    pub fn retry_after(&self) -> Option<Duration> {
        (self.retry_after != NEVER).then(|| Duration::from_micros(self.retry_after))
    }

    /// How long until nothing that was used counts any more.
    pub fn reset_after(&self) -> Duration {
        Duration::from_micros(self.reset_after)
    }

    /// A status as a store computed it; durations in microseconds.
    #[doc(hidden)]
    #[inline(always)]
    pub fn from_parts(limit: &Limit, allowed: bool, remaining: u64, retry_after: u64, reset_after: u64) -> Self {
        let (limit, remaining) = (units(limit.capacity()), units(remaining));
        Self { retry_after, reset_after, limit, remaining, units: 0, allowed }
    }

    /// A status as the embedded store computed it: none of its numbers is above the capacity, which is at most 10^9.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "at most 10^9")]
    pub(crate) fn computed(limit: &Limit, allowed: bool, remaining: u64, units: u64, waits: (u64, u64)) -> Self {
        let (limit, remaining, units) = (limit.capacity() as u32, remaining as u32, units as u32);
        Self { retry_after: waits.0, reset_after: waits.1, limit, remaining, units, allowed }
    }

    /// The same, of a call that moved `moved` units.
    #[doc(hidden)]
    #[inline(always)]
    #[must_use]
    pub fn with_units(self, moved: u64) -> Self {
        Self { units: units(moved), ..self }
    }

    /// The status of a check that was charged and then given back. Until when the rest counts is not known better than before,
    /// unless there is none.
    #[doc(hidden)]
    #[must_use]
    pub fn with_refund(self, given: u64) -> Self {
        let remaining = units(self.remaining() + given).min(self.limit);
        let reset_after = if given > 0 && remaining == self.limit { 0 } else { self.reset_after };
        Self { remaining, reset_after, units: units(self.units().saturating_sub(given)), ..self }
    }

    /// What a refund of `given` units answers: it never denies.
    #[doc(hidden)]
    #[must_use]
    pub fn into_refund(self, given: u64) -> Self {
        Self { allowed: true, retry_after: 0, ..self }.with_units(given)
    }

    /// The same numbers, denied for good.
    #[doc(hidden)]
    #[must_use]
    pub fn into_never(self) -> Self {
        Self { allowed: false, retry_after: NEVER, ..self }
    }

    /// Nothing limits it.
    pub(crate) fn unlimited() -> Self {
        Self { retry_after: 0, reset_after: 0, limit: u32::MAX, remaining: u32::MAX, units: 0, allowed: true }
    }

    /// Allowed, and nothing is known to be used.
    #[doc(hidden)]
    pub fn untouched(limit: &Limit) -> Self {
        Self::from_parts(limit, true, limit.capacity(), 0, 0)
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
        Self::from_parts(limit, false, 0, NEVER, 0)
    }
}

/// No limit holds more than 10^9.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "capped just before")]
fn units(count: u64) -> u32 {
    count.min(u64::from(u32::MAX)) as u32
}

words! {
    /// Where an answer came from.
    #[non_exhaustive]
    pub enum Source {
        /// The store decided.
        Store = "store",
        /// A limit of zero: nobody had to be asked.
        ZeroLimit = "zero_limit",
        /// The store is full, and the key it does not know shares a state with others or is denied.
        Overflow = "overflow",
        /// The store could not answer, and the policy allows what it cannot decide.
        OnErrorAllow = "on_error_allow",
        /// The store could not answer, and the policy denies what it cannot decide.
        OnErrorDeny = "on_error_deny",
        /// The store could not answer, and this process decided by itself.
        OnErrorLocal = "on_error_local",
        /// More is asked than the limit can ever hold: nobody had to be asked.
        TooCostly = "too_costly",
        /// Nothing limits it.
        Unlimited = "unlimited",
    }
}

/// The answer to a call of one or several checks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    answers: Answers,
    decided_at: Timestamp,
    source: Source,
    allowed: bool,
    split: bool,
}

/// One status, or several elsewhere: a decision is copied on its way out, and nearly all are about one check.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Answers {
    One([Status; 1]),
    Many(Arc<(Vec<Status>, Vec<Failure>)>),
}

/// The place of a check, and why the store could not answer for it though it answered for the call.
type Failure = (usize, StoreError);

impl Decision {
    /// The answer to a call, from the statuses of its checks in order, of which there is at least one.
    #[inline(always)]
    pub fn new(allowed: bool, statuses: Vec<Status>, source: Source, decided_at: Timestamp) -> Self {
        let answers = Answers::Many(Arc::new((statuses, Vec::new())));
        Self { answers, decided_at, source, allowed, split: false }
    }

    /// The answer to a call of one check.
    #[inline(always)]
    pub fn of_one(status: Status, source: Source, decided_at: Timestamp) -> Self {
        Self { answers: Answers::One([status]), decided_at, source, allowed: status.allowed, split: false }
    }

    /// What a store need not be asked for.
    pub(crate) fn of_nothing() -> Self {
        Self::new(true, Vec::new(), Source::ZeroLimit, Timestamp::from_micros(0))
    }

    /// The answer of a store to `call`, and the answers to what the question has of limits of zero: nothing can be had of them,
    /// and nothing given back.
    pub(crate) fn with_zero(answer: Result<Self, StoreError>, call: &Call<'_>) -> Self {
        let (answered, error) = answer.map_or_else(|error| (None, Some(error)), |decision| (Some(decision), None));
        let allowed = !call.verb().decides();
        let retry_after = if allowed { 0 } else { NEVER };
        let zero = Status { retry_after, reset_after: 0, limit: 0, remaining: 0, units: 0, allowed };
        let (mut statuses, mut failures) = (Vec::new(), Vec::new());
        let mut asked = call.checks().iter().enumerate();
        for place in 0..call.count() {
            let rest = if call.is_zero(place) { None } else { asked.next() };
            statuses.push(match (rest, &answered) {
                (None, _) => zero,
                (Some((at, _)), Some(decision)) => decision.statuses()[at],
                (Some((_, check)), None) => Status::never(check.limit),
            });
            let failure =
                rest.and_then(|(at, _)| answered.as_ref()?.failure(at)).or(error.as_ref().filter(|_| rest.is_some()));
            failures.extend(failure.map(|error| (place, error.clone())));
        }
        let decided_at = answered.as_ref().map_or(Timestamp::from_micros(0), Self::decided_at);
        let allowed = !call.is_denied() && answered.as_ref().is_some_and(Self::allowed);
        let split = answered.as_ref().is_some_and(Self::split);
        let decision = Self::new(allowed, statuses, Source::ZeroLimit, decided_at);
        Self { split, ..decision }.with_failures(failures)
    }

    /// Marks checks that the store could not answer for.
    #[doc(hidden)]
    #[must_use]
    pub fn with_failures(mut self, failures: Vec<Failure>) -> Self {
        if let Answers::Many(many) = &mut self.answers {
            Arc::make_mut(many).1 = failures;
        }
        self
    }

    /// The same statuses, with another outcome.
    #[doc(hidden)]
    #[must_use]
    pub fn with_allowed(self, allowed: bool) -> Self {
        Self { allowed, ..self }
    }

    /// Marks that the checks were charged apart, and given back on denial.
    #[must_use]
    pub fn into_split(self) -> Self {
        Self { split: true, ..self }
    }

    /// Whether the call may proceed. If not, nothing was charged but what its checks drain, or in a [`split`](Self::split)
    /// decision all of it was given back.
    #[inline]
    pub fn allowed(&self) -> bool {
        self.allowed
    }

    /// Why the store could not answer for the check at `place`, if it could not. It can happen only to a check whose answer
    /// does not decide the call.
    #[inline]
    pub fn failure(&self, place: usize) -> Option<&StoreError> {
        match &self.answers {
            Answers::One(_) => None,
            Answers::Many(many) => many.1.iter().find(|(at, _)| *at == place).map(|(_, error)| error),
        }
    }

    /// Receipts for what was charged. `checks` are those of the call, in order.
    pub fn receipts<'c>(&self, checks: &[Check<'c>]) -> Vec<Receipt<'c>> {
        let charged = checks.iter().zip(self.statuses()).filter_map(|(check, status)| {
            Some(Receipt::new(*check, Cost::new(status.units()).ok()?, Some(self.decided_at)))
        });
        charged.collect()
    }

    /// One status for each check, in order.
    #[inline]
    pub fn statuses(&self) -> &[Status] {
        match &self.answers {
            Answers::One(one) => one,
            Answers::Many(many) => &many.0,
        }
    }

    /// Which check binds: the denied one with the longest wait, or else the one with least left.
    pub fn binding_index(&self) -> usize {
        let indexed = self.statuses().iter().enumerate();
        indexed.max_by(|(_, a), (_, b)| a.tightness(b)).map_or(0, |(index, _)| index)
    }

    /// The status of the check that binds.
    pub fn binding(&self) -> &Status {
        &self.statuses()[self.binding_index()]
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
