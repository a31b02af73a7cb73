//! The answer to a call under policies.

use std::sync::Arc;

use super::{Action, CallerLimit, Mode, Policy, Stores, Subject};
use crate::call::{Call, Effect, Verb};
use crate::check::{Check, Cost, Receipt};
use crate::clock::Timestamp;
use crate::decision::{Decision, Source, Status};
use crate::few::Few;
use crate::hold::{Hold, Reservation};
use crate::key::Key;
use crate::limit::Limit;
use crate::request::RequestId;
use crate::store::{Store, StoreError};

/// The answer to a call under policies: the outcome, and one ruling for each policy that applied to a descriptor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    pub(super) rulings: Few<Ruling>,
    pub(super) decided_at: Option<Timestamp>,
    pub(super) split: bool,
    /// The most units of a call that takes what is left: what it asked for, and then what it was granted.
    pub(super) at_most: Option<Cost>,
    /// What a call asked for that reserves, and what it got.
    pub(super) reserving: Option<Box<Reserving>>,
    /// What is known of the id of the call, if it has one.
    pub(super) repeating: Option<Box<Repeating>>,
    /// Boxed, as it is rare and large.
    pub(super) store_error: Option<Box<StoreError>>,
}

/// A call with an id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Repeating {
    pub(super) id: RequestId,
    /// The calls to the store that may have charged so far.
    pub(super) calls: u8,
    pub(super) replayed: bool,
    pub(super) conflicts: bool,
}

/// A call that reserves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Reserving {
    pub(super) reservation: Reservation,
    /// What the store has reserved.
    pub(super) hold: Option<Hold>,
}

/// The outcome of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Outcome {
    /// The call may proceed.
    Allowed,
    /// The call is over a limit.
    Denied,
    /// The store cannot answer, and a policy denies such calls (fail closed); or this process is overloaded.
    Unavailable,
}

/// What one policy says about one descriptor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ruling {
    pub(super) policy: Arc<Policy>,
    pub(super) descriptor: usize,
    pub(super) subject: Subject,
    pub(super) limit: CallerLimit,
    pub(super) action: Action,
    pub(super) status: Status,
    pub(super) source: Source,
    /// When it was decided, on the clock of the store that decided it.
    pub(super) decided_at: Option<Timestamp>,
}

/// The outcome of rulings together.
pub(super) fn outcome(rulings: &[Ruling]) -> Outcome {
    let of = |mode: Mode| rulings.iter().filter(move |ruling| ruling.mode() == mode);
    let denied = |ruling: &Ruling| !ruling.status.allowed();
    let by = if of(Mode::Enforce).any(denied) {
        Mode::Enforce
    } else if of(Mode::Quota).next().is_some() && of(Mode::Quota).all(denied) {
        Mode::Quota
    } else {
        return Outcome::Allowed;
    };
    let by_limit = of(by).any(|ruling| denied(ruling) && !ruling.source.is_unavailable());
    if by_limit { Outcome::Denied } else { Outcome::Unavailable }
}

impl Verdict {
    /// The verdict of a call that no policy applies to.
    #[inline]
    pub fn unlimited() -> Self {
        Self::new(Few::Many(Vec::new()))
    }

    #[inline]
    pub(super) fn new(rulings: Few<Ruling>) -> Self {
        let (at_most, reserving, repeating) = (None, None, None);
        Self { rulings, decided_at: None, split: false, at_most, reserving, repeating, store_error: None }
    }

    /// The outcome of the call.
    pub fn outcome(&self) -> Outcome {
        if self.conflicts() { Outcome::Denied } else { outcome(&self.rulings) }
    }

    /// Whether the call may proceed.
    pub fn allowed(&self) -> bool {
        self.outcome() == Outcome::Allowed
    }

    /// The hold of an allowed call that reserved. It is empty if no store was charged: no limit applied, or `on_error` answered.
    pub fn hold(&self) -> Option<Hold> {
        let reserving = self.reserving.as_ref().filter(|_| self.allowed())?;
        Some(reserving.hold.clone().unwrap_or_else(Hold::of_nothing))
    }

    /// Whether the store has given this answer before, to the same call under the same id. Everything is as of then, and nothing was
    /// charged this time.
    pub fn replayed(&self) -> bool {
        self.repeating.as_ref().is_some_and(|repeating| repeating.replayed)
    }

    /// Whether the id of the call belongs to another call. This one is denied, whatever its limits have left, and nothing was charged:
    /// tell the caller that the id is wrong, not that a limit is reached.
    pub fn conflicts(&self) -> bool {
        self.repeating.as_ref().is_some_and(|repeating| repeating.conflicts)
    }

    /// The id of the next call to the store. One question may take several.
    pub(super) fn next_id(&mut self, verb: Verb) -> Option<RequestId> {
        let repeating = self.repeating.as_mut().filter(|_| verb.effect() == Effect::Charges)?;
        repeating.calls = repeating.calls.saturating_add(1);
        Some(repeating.id.of_call(repeating.calls - 1))
    }

    /// What a call asked for that reserves.
    pub(super) fn reservation(&self, verb: Verb) -> Option<Reservation> {
        self.reserving.as_ref().filter(|_| verb == Verb::Reserve).map(|reserving| reserving.reservation)
    }

    /// One ruling for each policy that applied, ordered by policy and descriptor.
    pub fn rulings(&self) -> &[Ruling] {
        &self.rulings
    }

    /// The binding ruling: of those that can refuse, the denied one with the longest wait, or else the one with the
    /// least left. `None` if no limit applied.
    pub fn binding(&self) -> Option<&Ruling> {
        let limits = self.rulings.iter().filter(|ruling| ruling.mode() != Mode::Shadow && ruling.limit().is_some());
        let outcome = self.outcome();
        let binds = |ruling: &&Ruling| match outcome {
            // A used-up quota binds only if the call is denied.
            Outcome::Allowed => ruling.status.allowed(),
            // The wait of a policy that could not be evaluated is unknown.
            Outcome::Denied => !ruling.source.is_unavailable(),
            Outcome::Unavailable => true,
        };
        limits.clone().filter(binds).max_by(|a, b| a.status.tightness(&b.status)).or_else(|| limits.clone().next())
    }

    /// Gives back what the call was charged, for callers that learn only afterwards whether it counts. Returns the
    /// updated verdict. What cannot be given back stays charged. Once polled, the refund completes even if the future
    /// is dropped.
    pub async fn refund<S: Store>(mut self, stores: &Stores<S>) -> Self {
        let (local, shared) = self.charged();
        // Before the first await, after which the future may be dropped.
        self.refund_now_from(&local, &*stores.local.store);
        let chunks: Vec<&[usize]> = shared.chunks(Call::MAX_CHECKS).collect();
        let receipts: Vec<_> = chunks.iter().map(|places| self.receipts(places)).collect();
        let calls: Vec<_> = receipts.iter().map(|receipts| Call::of_distinct(Verb::Refund, receipts)).collect();
        let answers = Call::ask_all(&calls, &stores.shared).await;
        for (places, given) in chunks.into_iter().zip(answers) {
            for (&at, status) in given.iter().flat_map(|given| places.iter().zip(given.statuses())) {
                stores.local.follow_refund(&self.rulings[at], status.units());
            }
            self.refunded(places, given);
        }
        self
    }

    /// Like [`refund`](Self::refund), if the store can answer without waiting. Returns false if it cannot and nothing
    /// was done.
    pub fn refund_now<S: Store>(&mut self, stores: &Stores<S>) -> bool {
        let (local, shared) = self.charged();
        self.refund_now_from(&shared, &stores.shared) && self.refund_now_from(&local, &*stores.local.store)
    }

    fn refund_now_from<S: Store>(&mut self, places: &[usize], store: &S) -> bool {
        for places in places.chunks(Call::MAX_CHECKS) {
            let receipts = self.receipts(places);
            let Some(given) = Call::of_distinct(Verb::Refund, &receipts).ask_now(store) else { return false };
            self.refunded(places, given);
        }
        true
    }

    /// The rulings whose units were charged, one per state: by the local store, and by the shared one.
    fn charged(&self) -> (Vec<usize>, Vec<usize>) {
        let charged = self.members(|ruling| ruling.charged() > 0, 0);
        charged.into_iter().partition(|&at| self.rulings[at].source == Source::OnErrorLocal)
    }

    /// The first ruling of each state.
    fn distinct(&self) -> impl Iterator<Item = usize> {
        let rulings = &self.rulings;
        (0..rulings.len()).filter(|&at| !rulings[..at].iter().any(|other| other.is_same_state(&rulings[at])))
    }

    pub(super) fn receipts(&self, places: &[usize]) -> Vec<Check<'_>> {
        let receipts = places.iter().filter_map(|&at| self.rulings[at].receipt());
        receipts.map(|receipt| receipt.check()).collect()
    }

    pub(super) fn refunded(&mut self, places: &[usize], given: Result<Decision, StoreError>) {
        let Ok(given) = given else { return };
        for (&at, status) in places.iter().zip(given.statuses()) {
            let known = self.rulings[at].clone();
            let charged =
                |ruling: &&mut Ruling| ruling.action.verb == known.action.verb && ruling.is_same_state(&known);
            for ruling in self.rulings.iter_mut().filter(charged) {
                ruling.status = ruling.status.with_refund(status.units());
            }
        }
    }

    /// The rulings of distinct states, for totals: a state that matched in several descriptors was charged once.
    pub fn states(&self) -> impl Iterator<Item = &Ruling> {
        self.distinct().map(|at| &self.rulings[at])
    }

    /// How many units a call takes that takes what is left ([`Evaluation::up_to`](super::Evaluation::up_to)): zero if it is denied,
    /// and all that it asked for where no limit applies. `None` for any other call.
    pub fn granted(&self) -> Option<u64> {
        self.at_most.map(|most| if self.allowed() { most.get() } else { 0 })
    }

    /// When the decision was made, on the store's clock, if a store was asked.
    pub fn decided_at(&self) -> Option<Timestamp> {
        self.decided_at
    }

    /// Whether limits in different slots of a cluster were charged one after the other.
    pub fn split(&self) -> bool {
        self.split
    }

    /// Why the store could not answer, if it could not.
    pub fn store_error(&self) -> Option<&StoreError> {
        self.store_error.as_deref()
    }
}

impl Ruling {
    /// The policy.
    pub fn policy(&self) -> &Arc<Policy> {
        &self.policy
    }

    /// The position of the descriptor in the call.
    pub fn descriptor(&self) -> usize {
        self.descriptor
    }

    /// The subject that was counted.
    pub fn subject(&self) -> &str {
        self.subject.as_str()
    }

    /// The limit that applied: the caller's override or the policy's, or the share of it that this process admits while the
    /// store cannot answer. `None` never refuses.
    pub fn limit(&self) -> Option<&Limit> {
        self.policy.limit_of(&self.limit)
    }

    /// The status of the limit.
    pub fn status(&self) -> &Status {
        &self.status
    }

    /// Where the status came from.
    pub fn source(&self) -> Source {
        self.source
    }

    /// The mode of the policy.
    pub fn mode(&self) -> Mode {
        self.policy.mode()
    }

    /// What the call asked for.
    pub fn action(&self) -> Action {
        self.action
    }

    /// The units charged.
    pub fn charged(&self) -> u64 {
        if self.action.verb.effect() == Effect::Charges { self.status.units() } else { 0 }
    }

    /// The units given back by a refund.
    pub fn refunded(&self) -> u64 {
        if self.action.verb == Verb::Refund { self.status.units() } else { 0 }
    }

    /// The receipt of what was charged, if anything was.
    pub fn receipt(&self) -> Option<Receipt<'_>> {
        Some(Receipt::new(self.check()?, Cost::new(self.charged()).ok()?, self.decided_at))
    }

    /// The check for the store, unless no limit applies.
    pub(super) fn check(&self) -> Option<Check<'_>> {
        let key = Key::new(self.policy.key_name(), &self.subject).expect("a policy and a subject make a key");
        let check = Check::new(key, self.limit()?);
        let check = check.cost(self.action.cost).with_charged_at(self.action.charged_at);
        let check = check.with_cache_denials(self.policy.cache_denials()).with_holds(self.policy.holds());
        let check = check.with_allotment(self.policy.allotment());
        Some(match &self.limit {
            CallerLimit::Changing(_, changes) => check.with_changes(Some(changes)),
            _ => check,
        })
    }

    /// Whether both are about the same state.
    pub(super) fn is_same_state(&self, other: &Self) -> bool {
        // A matcher may hold a policy twice.
        let same = || self.policy.key_name() == other.policy.key_name();
        (Arc::ptr_eq(&self.policy, &other.policy) || same()) && self.subject == other.subject
    }

    /// Whether the limit is nearly reached, as the policy defines it.
    pub fn near(&self) -> bool {
        let (limit, used) =
            (self.status.limit(), self.status.limit() - self.status.remaining().min(self.status.limit()));
        self.status.allowed() && used * 100 > limit * u64::from(self.policy.near())
    }
}
