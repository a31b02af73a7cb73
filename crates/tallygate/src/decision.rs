//! The answer to a call and to each of its checks.

mod status;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use crate::call::{Call, Verb, fund};
use crate::check::{Check, Cost, Receipt};
use crate::clock::Timestamp;
use crate::hold::HoldId;
use crate::limit::Limit;
use crate::store::StoreError;
use crate::words::words;

pub use status::Status;
use status::units;

words! {
    /// Where an answer came from.
    #[non_exhaustive]
    pub enum Source {
        /// The store decided.
        Store = "store",
        /// The limit is zero. The store was not asked.
        ZeroLimit = "zero_limit",
        /// The store is full. A new key shares a state with others, or is denied.
        Overflow = "overflow",
        /// The store could not answer, and the policy allows such calls (fail open).
        OnErrorAllow = "on_error_allow",
        /// The store could not answer, and the policy denies such calls (fail closed).
        OnErrorDeny = "on_error_deny",
        /// The store could not answer, and this process decided with its local store.
        OnErrorLocal = "on_error_local",
        /// This process is overloaded: the call waited here, or was shed. It is denied, whatever `on_error` says, because
        /// the store is not at fault.
        Shed = "shed",
        /// A recent denial was repeated without the store.
        DenyCache = "deny_cache",
        /// Units were spent that had been taken from the store in advance. `decided_at` is when the store was charged.
        Allotment = "allotment",
        /// The cost is above the capacity of the limit: waiting does not help.
        TooCostly = "too_costly",
        /// The limit is of concurrency, and the call did not reserve: nothing would say when the work is done. The call is denied, and the
        /// store was not asked about this limit.
        OnlyReserved = "only_reserved",
        /// More limits apply than one call may have. The call is denied, and nothing was charged.
        TooMany = "too_many",
        /// The call reserves, and nothing can be held of a policy with several payers. The call is denied, and nothing was charged.
        NotHeld = "not_held",
        /// No limit applies.
        Unlimited = "unlimited",
    }
}

impl Source {
    /// Whether no store and no limit was asked, so that the numbers of the status mean nothing.
    pub fn is_without_numbers(self) -> bool {
        matches!(
            self,
            Self::OnErrorAllow | Self::OnErrorDeny | Self::Shed | Self::TooMany | Self::NotHeld | Self::OnlyReserved
        )
    }

    /// Whether a denial says nothing about the limit: the store could not answer, or this process was overloaded. Nobody
    /// knows how long to wait.
    pub fn is_unavailable(self) -> bool {
        matches!(self, Self::OnErrorDeny | Self::Shed)
    }

    /// Whether the answer is not the store's, because it could not answer in time.
    pub fn is_on_error(self) -> bool {
        matches!(self, Self::OnErrorAllow | Self::OnErrorDeny | Self::OnErrorLocal | Self::Shed)
    }
}

/// The answer to a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    answers: Answers,
    decided_at: Timestamp,
    /// [`NO_GRANT`] for a call that does not take what is left.
    granted: u32,
    source: Source,
    allowed: bool,
    split: bool,
    repeat: Repeat,
}

/// What an answer has to do with an earlier one under the same id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Repeat {
    Nothing,
    Same,
    Conflict,
}

/// Above what any call may be granted.
const NO_GRANT: u32 = u32::MAX;

/// Nearly all decisions have one status; it is stored inline because decisions are copied.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Answers {
    One([Status; 1]),
    Many(Arc<(Vec<Status>, Vec<Failure>, Option<HoldId>)>),
}

/// The instant of a decision without a store.
const NOT_ASKED: Timestamp = Timestamp::from_micros(u64::MAX);

/// The position of a check, and the error of the store for this check alone.
type Failure = (usize, StoreError);

impl Decision {
    /// Creates a decision from the statuses of its checks, in order. There is at least one.
    #[inline(always)]
    pub fn new(allowed: bool, statuses: Vec<Status>, source: Source, decided_at: Timestamp) -> Self {
        let answers = Answers::Many(Arc::new((statuses, Vec::new(), None)));
        Self { answers, decided_at, granted: NO_GRANT, source, allowed, split: false, repeat: Repeat::Nothing }
    }

    /// Creates the decision of a call with one check.
    #[inline(always)]
    pub fn of_one(status: Status, source: Source, decided_at: Timestamp) -> Self {
        let answers = Answers::One([status]);
        let allowed = status.allowed();
        Self { answers, decided_at, granted: NO_GRANT, source, allowed, split: false, repeat: Repeat::Nothing }
    }

    /// The answer to a call with nothing to ask.
    pub(crate) fn of_nothing() -> Self {
        Self::new(true, Vec::new(), Source::ZeroLimit, NOT_ASKED)
    }

    /// Combines the store's answer to `call` with the answers for its limits of zero, from which nothing can be charged
    /// and to which nothing can be given back.
    pub(crate) fn with_zero(answer: Result<Self, StoreError>, call: &Call<'_>) -> Self {
        let (answered, error) = answer.map_or_else(|error| (None, Some(error)), |decision| (Some(decision), None));
        let allowed = !call.verb().decides();
        let zero = Status::without_numbers(allowed);
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
        let whole = |decision: Self| {
            let granted = decision.granted();
            let repeat = (decision.repeat, decision.first_hold());
            (decision.allowed && !call.is_denied(), decision.split, decision.decided_at, granted, repeat)
        };
        let nothing = (false, false, NOT_ASKED, None, (Repeat::Nothing, None));
        let (allowed, split, decided_at, granted, (repeat, hold)) = answered.map_or(nothing, whole);
        let granted = call.takes_at_most().map(|most| if allowed { granted.unwrap_or(most.get()) } else { 0 });
        let decision = Self::new(allowed, statuses, Source::ZeroLimit, decided_at).with_granted(granted);
        Self { split, repeat, ..decision }.with_first_hold(hold).with_failures(failures)
    }

    /// The same answer with other statuses. A call that looks is judged again by them.
    pub(crate) fn with_statuses(self, call: &Call<'_>, statuses: Vec<Status>) -> Self {
        let looks = call.verb() == Verb::Peek;
        let allowed = if looks { call.settle(|place| statuses[place].allowed()).allowed() } else { self.allowed };
        let failure = |place: usize| Some((place, self.failure(place)?.clone()));
        let failures = (0..statuses.len()).filter_map(failure).collect();
        let answers = Answers::Many(Arc::new((statuses, failures, self.first_hold())));
        Self { answers, allowed, ..self }
    }

    /// Sets the errors of checks that the store could not answer for.
    #[must_use]
    pub fn with_failures(mut self, failures: Vec<Failure>) -> Self {
        if let Answers::Many(many) = &mut self.answers {
            Arc::make_mut(many).1 = failures;
        }
        self
    }

    /// Marks an answer that was given before, to the same call under the same id.
    #[must_use]
    pub fn replay(self) -> Self {
        Self { repeat: Repeat::Same, ..self }
    }

    /// The answer to a call whose id belongs to another call: denied, and nothing was changed.
    pub fn of_conflict(call: &Call<'_>, decided_at: Timestamp) -> Self {
        Self::of_conflict_over(call.checks().iter().map(|check| check.limit), decided_at)
            .with_granted(call.takes_at_most().map(|_| 0))
    }

    /// The same, given the limits of the call.
    pub fn of_conflict_over<'l>(limits: impl Iterator<Item = &'l Limit>, decided_at: Timestamp) -> Self {
        let decision = Self::new(false, limits.map(Status::never).collect(), Source::Store, decided_at);
        Self { repeat: Repeat::Conflict, ..decision }
    }

    /// Sets the hold of an answer that was given before.
    #[must_use]
    pub fn with_first_hold(mut self, hold: Option<HoldId>) -> Self {
        if let (Answers::Many(many), Some(_)) = (&mut self.answers, hold) {
            Arc::make_mut(many).2 = hold;
        }
        self
    }

    /// The hold of an answer that was given before, if the call reserves.
    pub fn first_hold(&self) -> Option<HoldId> {
        match &self.answers {
            Answers::One(_) => None,
            Answers::Many(many) => many.2,
        }
    }

    /// Whether this is the first answer to a call under this id, given again: everything is as of then, and nothing was charged.
    pub fn replayed(&self) -> bool {
        self.repeat == Repeat::Same
    }

    /// Whether the id of the call belongs to another call. It is denied, whatever its limits have left, and nothing was charged. A
    /// [`Limiter`](crate::Limiter) makes an error of it.
    pub fn conflicts(&self) -> bool {
        self.repeat == Repeat::Conflict
    }

    /// Whether the store could not answer for some of the checks.
    pub(crate) fn is_partial(&self) -> bool {
        matches!(&self.answers, Answers::Many(many) if !many.1.is_empty())
    }

    /// The same statuses with another outcome.
    #[must_use]
    pub fn with_allowed(self, allowed: bool) -> Self {
        Self { allowed, ..self }
    }

    /// Marks that the checks were charged separately, and given back on denial.
    #[must_use]
    pub fn into_split(self) -> Self {
        Self { split: true, ..self }
    }

    /// Whether the call may proceed. If not, nothing was charged except what its checks drain; in a
    /// [`split`](Self::split) decision everything was given back.
    #[inline]
    pub fn allowed(&self) -> bool {
        self.allowed
    }

    /// How many units a call takes that takes what is left ([`Limiter::check_up_to`](crate::Limiter::check_up_to)): zero if it is
    /// denied. `None` for any other call.
    pub fn granted(&self) -> Option<u64> {
        (self.granted != NO_GRANT).then_some(u64::from(self.granted))
    }

    /// Sets how many units a call takes that takes what is left.
    #[must_use]
    pub fn with_granted(self, granted: Option<u64>) -> Self {
        Self { granted: granted.map_or(NO_GRANT, units), ..self }
    }

    /// Why the store could not answer for the check at `place` of the call, if it could not. Only a check that does not decide the
    /// call can fail this way.
    #[inline]
    pub fn failure(&self, place: usize) -> Option<&StoreError> {
        match &self.answers {
            Answers::One(_) => None,
            Answers::Many(many) => many.1.iter().find(|(at, _)| *at == place).map(|(_, error)| error),
        }
    }

    /// Returns receipts for what was charged. `checks` are those of the call, in order.
    pub fn receipts<'c>(&self, checks: &[Check<'c>]) -> Vec<Receipt<'c>> {
        let charged = checks.iter().zip(self.statuses()).filter_map(|(check, status)| {
            Some(Receipt::new(*check, Cost::new(status.units()).ok()?, self.decided_at()))
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

    /// The position of the binding check: the denied one with the longest wait, or else the one with the least left. Of a cost with
    /// several payers it is the first of them, and what is left is what they have together.
    pub fn binding_index(&self) -> usize {
        self.costs().max_by(|(_, a), (_, b)| a.tightness(b)).map_or(0, |(index, _)| index)
    }

    /// The status of the binding check: for a cost with several payers, that of all of them together.
    pub fn binding(&self) -> Status {
        let tightest = self.costs().max_by(|(_, a), (_, b)| a.tightness(b));
        tightest.map_or_else(Status::unlimited, |(_, status)| status)
    }

    /// One status for each cost, with the position of its first check: several payers of one cost are taken together.
    pub fn costs(&self) -> impl Iterator<Item = (usize, Status)> {
        let statuses = self.statuses();
        fund::each(statuses, Status::pays_rest).map(|fund| (fund.start, Status::of_payers(&statuses[fund])))
    }

    /// Where the answer came from.
    pub fn source(&self) -> Source {
        self.source
    }

    /// When the decision was made, on the store's clock. `None` if the store was not asked, because limits of zero decided.
    #[inline]
    pub fn decided_at(&self) -> Option<Timestamp> {
        (self.decided_at != NOT_ASKED).then_some(self.decided_at)
    }

    /// Whether the checks were charged one after the other because they are in different slots of a cluster.
    pub fn split(&self) -> bool {
        self.split
    }
}
