//! What a store is asked: a verb, its checks, and what belongs to the call as a whole.

pub mod fund;
mod invalid;
mod settlement;
mod up_to;

use std::borrow::Cow;
use std::future::poll_fn;
use std::task::Poll;
use std::time::{Duration, Instant};

use crate::check::{Check, Cost};
use crate::clock::Timestamp;
use crate::decision::Decision;
use crate::hold::{Hold, HoldTerms, Reservation};
use crate::policy::Mode;
use crate::request::{Request, RequestId};
use crate::store::{Store, StoreError};
use crate::words::words;

pub use invalid::InvalidCheck;
use invalid::validate;
pub(crate) use invalid::validate_hold;
pub use settlement::{Settlement, Taking};
pub use up_to::UpTo;

/// One call to a [`Store`], valid by construction: 1 to [`Call::MAX_CHECKS`] checks of distinct states, no cost above
/// the capacity of its limit, and no limit of zero. All of it takes effect as of one instant, or none of it.
#[derive(Debug, Clone)]
pub struct Call<'c> {
    verb: Verb,
    checks: Cow<'c, [Check<'c>]>,
    /// One bit for each check of the question whose limit is zero. These are answered without the store.
    zero: u32,
    denied: bool,
    partial: bool,
    /// The most units of a call that takes what is left. The costs of its checks are then the least.
    at_most: Option<Cost>,
    /// What a call asks for that reserves.
    reservation: Option<Reservation>,
    /// Boxed, as it is rare.
    request: Option<Box<Request>>,
    deadline: Option<Instant>,
}

words! {
    /// What a call does to the states of its checks.
    #[non_exhaustive]
    pub enum Verb {
        /// Charges all checks if all fit, and none otherwise.
        Check = "check",
        /// Answers as `Check` would, without charging.
        Peek = "peek",
        /// Gives back what was charged.
        Refund = "refund",
        /// Drops the states.
        Reset = "reset",
        /// Charges like `Check`, and holds what was charged until it is settled.
        Reserve = "reserve",
    }
}

/// What a verb may do to states. A wrapper around a store needs to know nothing else about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Effect {
    /// May charge. Repeating it could charge twice.
    Charges,
    /// Gives units back. Once begun it must finish, even if the caller is gone.
    GivesBack,
    /// Only reads.
    Reads,
}

impl Verb {
    /// What this verb may do to states.
    pub fn effect(self) -> Effect {
        match self {
            Self::Check | Self::Reserve => Effect::Charges,
            Self::Peek => Effect::Reads,
            Self::Refund | Self::Reset => Effect::GivesBack,
        }
    }

    /// Whether the answer depends on whether the cost fits the limit.
    pub(crate) fn decides(self) -> bool {
        self.effect() != Effect::GivesBack
    }
}

impl<'c> Call<'c> {
    /// The maximum number of checks in one call.
    pub const MAX_CHECKS: usize = 32;

    /// Creates a call, or reports what is wrong with the checks.
    #[inline]
    pub fn new(verb: Verb, checks: &'c [Check<'c>]) -> Result<Self, InvalidCheck> {
        Self::of_one(verb, checks).map_or_else(|| Self::validated(verb, checks), Ok)
    }

    /// The common case: one valid check that the store has to decide.
    #[inline(always)]
    pub(crate) fn of_one(verb: Verb, checks: &'c [Check<'c>]) -> Option<Self> {
        match checks {
            // A cost is at least one, so it does not fit a limit of zero either.
            [check] if check.is_checkable() && !check.pays_rest() => Some(Self::plain(verb, checks)),
            _ => None,
        }
    }

    #[inline(always)]
    fn plain(verb: Verb, checks: impl Into<Cow<'c, [Check<'c>]>>) -> Self {
        let (zero, denied, partial, at_most, request, deadline) = (0, false, false, None, None, None);
        // For a minute, unless the call says more.
        let reservation = (verb == Verb::Reserve).then(|| Reservation::new(Duration::from_secs(60)));
        Self { verb, checks: checks.into(), zero, denied, partial, at_most, reservation, request, deadline }
    }

    #[inline(never)]
    fn validated(verb: Verb, checks: &'c [Check<'c>]) -> Result<Self, InvalidCheck> {
        validate(verb, checks)?;
        Ok(Self::of_distinct(verb, checks))
    }

    /// Creates a call that takes what is left: the same number of units for every check, within `up_to`. The costs of the
    /// checks are ignored.
    pub fn check_up_to(checks: &[Check<'c>], up_to: UpTo) -> Result<Self, InvalidCheck> {
        let checks: Vec<Check<'c>> = checks.iter().map(|check| check.cost(up_to.least())).collect();
        validate(Verb::Check, &checks).map_err(|invalid| match invalid {
            InvalidCheck::CostAboveCapacity { policy, cost: at_least, capacity } => {
                InvalidCheck::AtLeastAboveCapacity { policy, at_least, capacity }
            }
            other => other,
        })?;
        let call = match checks.iter().any(Check::is_zero) {
            true => Self::without_zero(Verb::Check, &checks),
            false => Self::plain(Verb::Check, checks),
        };
        Ok(call.at_most(Some(up_to.most())))
    }

    /// Creates a call that reserves the costs of its checks.
    pub fn reserve(checks: &'c [Check<'c>], reservation: Reservation) -> Result<Self, InvalidCheck> {
        validate(Verb::Reserve, checks)?;
        checks.iter().try_for_each(|check| validate_hold(check, &reservation))?;
        let life = checks.iter().map(|check| check.terms().max_life()).min().unwrap_or(HoldTerms::LONGEST_LIFE);
        Ok(Self::of_distinct(Verb::Reserve, checks).reserving(Some(reservation.within(life))))
    }

    /// The same call, holding what it charges.
    #[must_use]
    pub(crate) fn reserving(self, reservation: Option<Reservation>) -> Self {
        Self { reservation: reservation.or(self.reservation), ..self }
    }

    /// Creates a call of 1 to 32 checks of distinct states, with costs within their capacities.
    #[inline]
    pub(crate) fn of_distinct(verb: Verb, checks: &'c [Check<'c>]) -> Self {
        if checks.iter().all(|check| check.limit.numbers().checkable > 0) || verb == Verb::Reset {
            return Self::plain(verb, checks);
        }
        Self::without_zero(verb, checks)
    }

    #[cold]
    fn without_zero(verb: Verb, checks: &[Check<'c>]) -> Self {
        let is_zero = |check: &Check<'c>| check.is_nothing(verb);
        let zero = checks.iter().enumerate().fold(0, |zero, (place, check)| zero | u32::from(is_zero(check)) << place);
        let rest: Vec<Check<'c>> = checks.iter().filter(|check| !is_zero(check)).copied().collect();
        let mut quotas = checks.iter().filter(|check| check.mode() == Mode::Quota).peekable();
        let hopeless = checks.iter().any(|check| is_zero(check) && check.mode() == Mode::Enforce)
            || quotas.peek().is_some() && quotas.all(is_zero);
        Self { zero, denied: hopeless && verb.decides(), ..Self::plain(verb, rest) }
    }

    /// The same call, content with what is left: each check takes the same number of units, at least its cost, which must be
    /// that of all others, and at most `at_most`.
    #[must_use]
    pub(crate) fn at_most(self, at_most: Option<Cost>) -> Self {
        Self { at_most, ..self }
    }

    /// The same call, known to be denied. Only checks that drain are still charged.
    #[must_use]
    pub(crate) fn denied(self, denied: bool) -> Self {
        Self { denied: self.denied || denied, ..self }
    }

    /// The same call, of a caller that knows what to do about checks that cannot be decided, even if they enforce.
    #[must_use]
    pub(crate) fn partial(self) -> Self {
        Self { partial: true, ..self }
    }

    /// The same call about some of its checks only.
    pub(crate) fn about<'d>(&self, checks: &'d [Check<'d>]) -> Call<'d> {
        let (partial, at_most, deadline) = (self.partial, self.at_most, self.deadline);
        Call { denied: self.denied, partial, at_most, deadline, ..Call::plain(self.verb, checks) }
    }

    /// The same call under an id, if there is one. Of what the call asks for, everything must be set before.
    #[must_use]
    pub fn with_request_id(self, id: Option<RequestId>) -> Self {
        // A call that is denied in any case has nothing to remember.
        let id = id.filter(|_| !self.denied && !self.checks.is_empty());
        let request = id.map(|id| Box::new(Request::new(id, &self)));
        Self { request, ..self }
    }

    /// A refund of what another call was charged, which is then forgotten with its answer.
    #[must_use]
    pub(crate) fn forgetting(self, request: Option<Box<Request>>) -> Self {
        Self { request, ..self }
    }

    /// The same call with a deadline. A call that is not answered by then is abandoned, and may have been charged.
    #[must_use]
    pub fn by(self, deadline: Option<Instant>) -> Self {
        Self { deadline, ..self }
    }

    /// The same call, under the limits that are in force at this instant of the store's clock.
    pub fn at(&self, now: Timestamp) -> Cow<'_, Self> {
        if self.checks.iter().all(|check| check.changes().is_none()) {
            return Cow::Borrowed(self);
        }
        let mut checks: Vec<Check<'c>> = self.checks.iter().map(|check| check.at(now)).collect();
        for range in fund::each(&self.checks, Check::pays_rest) {
            let checks = &mut checks[range];
            let capacity = fund::capacity(checks);
            for check in checks {
                // What can never be allowed is known only now.
                *check = match self.verb {
                    Verb::Reserve => check.within_holds(),
                    verb if verb.decides() => check.within(capacity),
                    _ => *check,
                };
            }
        }
        Cow::Owned(Self { checks: checks.into(), ..self.clone() })
    }

    /// What the call does.
    pub fn verb(&self) -> Verb {
        self.verb
    }

    /// The checks that a store has to decide. None has a limit of zero; if all limits are zero, this is empty.
    pub fn checks(&self) -> &[Check<'c>] {
        &self.checks
    }

    /// The check of the common call: one, to be charged if it fits.
    #[inline(always)]
    pub fn plain_check(&self) -> Option<&Check<'c>> {
        match &*self.checks {
            [check]
                if self.verb == Verb::Check
                    && check.is_plain()
                    && !self.denied
                    && self.at_most.is_none()
                    && self.request.is_none() =>
            {
                Some(check)
            }
            _ => None,
        }
    }

    /// The most units that each check takes, for a call that takes what is left: see [`Settlement::granted`]. `None` takes the
    /// costs of the checks. These are otherwise the fewest units.
    pub fn takes_at_most(&self) -> Option<Cost> {
        self.at_most
    }

    /// What a call asks for that reserves. `None` for any other.
    pub fn reservation(&self) -> Option<&Reservation> {
        self.reservation.as_ref()
    }

    /// What the store remembers an allowed answer by, if the call has an id. A repeat of the call changes nothing: see
    /// [`Decision::replay`] and [`Decision::of_conflict`]. That of a refund is forgotten with what is given back.
    /// A store that ignores this charges every repeat.
    pub fn request(&self) -> Option<&Request> {
        self.request.as_deref()
    }

    /// The hold of an answer, if it is allowed and the call reserves: the first one, if the answer was given before.
    pub fn hold_of(&self, decision: &Decision) -> Option<Hold> {
        let reservation = self.reservation.filter(|_| decision.allowed())?;
        Some(Hold::new(decision.first_hold().unwrap_or(reservation.id()), &self.checks))
    }

    /// The hold that a call reserves, if it is allowed.
    pub fn hold(&self) -> Option<Hold> {
        self.reservation.map(|reservation| Hold::new(reservation.id(), &self.checks))
    }

    /// The instant by which the call must be answered. `None` leaves it to the store.
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Whether the check at `place` of the question has a limit of zero.
    pub(crate) fn is_zero(&self, place: usize) -> bool {
        self.zero >> place & 1 == 1
    }

    /// The number of checks in the question, including limits of zero.
    pub(crate) fn count(&self) -> usize {
        self.checks.len() + self.zero.count_ones() as usize
    }

    /// Whether a store that can decide only some of the checks, because it is spread over several servers, may answer those,
    /// with [failures](Decision::with_failures) for the others. The others count as fitting, unless they
    /// [fail closed](Check::fails_closed). Without this, such a call is an error.
    pub fn takes_partial_answers(&self) -> bool {
        self.partial
    }

    /// Whether the call is known to be denied, whatever the store answers.
    pub fn is_denied(&self) -> bool {
        self.denied
    }

    /// Settles the call, given whether each of its checks fits on its own.
    pub fn settle(&self, fits: impl Fn(usize) -> bool) -> Settlement {
        Settlement::of(self.denied, self.checks.iter().enumerate().map(|(place, check)| (check.mode(), fits(place))))
    }

    /// Asks `store`, unless the answer is known without it.
    pub async fn ask<S: Store>(&self, store: &S) -> Result<Decision, StoreError> {
        match self.zero {
            0 => store.call(self).await,
            _ if self.checks.is_empty() => self.with_zero(Ok(Decision::of_nothing())),
            _ => self.with_zero(store.call(self).await),
        }
    }

    /// Asks `store` about several independent calls at once. The store finishes everything that the first poll has
    /// begun.
    pub(crate) async fn ask_all<S: Store>(calls: &[Self], store: &S) -> Vec<Result<Decision, StoreError>> {
        let mut asks: Vec<_> = calls.iter().map(|call| Box::pin(call.ask(store))).collect();
        let mut answers: Vec<_> = calls.iter().map(|_| None).collect();
        poll_fn(|context| {
            for (ask, answer) in asks.iter_mut().zip(&mut answers).filter(|(_, answer)| answer.is_none()) {
                if let Poll::Ready(ready) = ask.as_mut().poll(context) {
                    *answer = Some(ready);
                }
            }
            if answers.iter().all(Option::is_some) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        answers.into_iter().flatten().collect()
    }

    /// Like [`ask`](Self::ask), if `store` can answer without waiting.
    #[inline(always)]
    pub fn ask_now<S: Store>(&self, store: &S) -> Option<Result<Decision, StoreError>> {
        match self.zero {
            0 => store.call_now(self),
            _ if self.checks.is_empty() => Some(self.with_zero(Ok(Decision::of_nothing()))),
            _ => store.call_now(self).map(|answer| self.with_zero(answer)),
        }
    }

    /// The answer to the whole question. A limit of zero denies even if the store cannot answer for the others.
    #[cold]
    fn with_zero(&self, answer: Result<Decision, StoreError>) -> Result<Decision, StoreError> {
        match answer {
            Err(error) if !self.denied => Err(error),
            answer => Ok(Decision::with_zero(answer, self)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Key, Limit};

    #[test]
    fn a_call_has_1_to_32_checks_and_asks_for_whole_answers() {
        let limit: Limit = "9/s".parse().unwrap();
        let subjects: Vec<String> = (0..=Call::MAX_CHECKS).map(|at| at.to_string()).collect();
        let checks: Vec<Check<'_>> =
            subjects.iter().map(|subject| Check::new(Key::new("p", subject).unwrap(), &limit)).collect();
        for count in 0..checks.len() {
            let call = Call::new(Verb::Check, &checks[..count]);
            if count == 0 {
                assert_eq!(call.unwrap_err(), InvalidCheck::Count { count: 0 });
                continue;
            }
            let call = call.unwrap();
            assert_eq!((call.checks().len(), call.count()), (count, count));
            assert!(!call.takes_partial_answers() && !call.is_denied() && call.deadline().is_none());
        }
        assert_eq!(Call::new(Verb::Check, &checks).unwrap_err(), InvalidCheck::Count { count: 33 });
    }

    /// A limit of zero needs no store, unless a state from before it was zero is to be dropped.
    #[test]
    fn only_a_reset_asks_about_limits_of_zero() {
        let (zero, limit): (Limit, Limit) = ("0/s".parse().unwrap(), "9/s".parse().unwrap());
        let checks = ["a", "b"].map(|policy| Key::new(policy, "s").unwrap());
        let checks = [Check::new(checks[0], &zero), Check::new(checks[1], &limit)];
        for &verb in Verb::ALL {
            let call = Call::new(verb, &checks).unwrap();
            let asked: Vec<&str> = call.checks().iter().map(|check| check.key.policy()).collect();
            assert_eq!(asked, if verb == Verb::Reset { vec!["a", "b"] } else { vec!["b"] }, "{verb:?}");
            assert_eq!(call.is_denied(), verb.decides(), "{verb:?}");
        }
    }
}
