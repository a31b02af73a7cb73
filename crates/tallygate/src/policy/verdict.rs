//! The answer to a call under policies.

use std::sync::Arc;

use super::local::Local;
use super::{Action, CallerLimit, Mode, Payer, Policy, Stores, Subject};
use crate::algorithm::Algorithm;
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
    /// What each payer answered, if there are several. Boxed, as it is rare.
    pub(super) paid: Option<Box<[Paid]>>,
    pub(super) source: Source,
    /// When it was decided, on the clock of the store that decided it.
    pub(super) decided_at: Option<Timestamp>,
}

/// What one of several payers of a policy answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Paid {
    pub(super) limit: Limit,
    pub(super) status: Status,
}

impl Paid {
    /// The limit that applied.
    pub fn limit(&self) -> &Limit {
        &self.limit
    }

    /// Its own numbers: what it has left, and by [`Status::units`] what it has paid. All payers of a policy are allowed, or none is.
    pub fn status(&self) -> &Status {
        &self.status
    }
}

/// A state that was charged: the position of the ruling, and which of its payers it is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Charged {
    pub(super) ruling: usize,
    pub(super) payer: usize,
    pub(super) units: Cost,
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
        let chunks: Vec<&[Charged]> = shared.chunks(Call::MAX_CHECKS).collect();
        let receipts: Vec<_> = chunks.iter().map(|charged| self.receipts(charged)).collect();
        let calls: Vec<_> = receipts.iter().map(|receipts| Call::of_distinct(Verb::Refund, receipts)).collect();
        let answers = Call::ask_all(&calls, &stores.shared).await;
        for (places, given) in chunks.into_iter().zip(answers) {
            self.refunded(places, given, Some(&stores.local));
        }
        self
    }

    /// Like [`refund`](Self::refund), if the store can answer without waiting. Returns false if it cannot and nothing
    /// was done.
    pub fn refund_now<S: Store>(&mut self, stores: &Stores<S>) -> bool {
        let (local, shared) = self.charged();
        self.refund_now_from(&shared, &stores.shared) && self.refund_now_from(&local, &*stores.local.store)
    }

    fn refund_now_from<S: Store>(&mut self, charged: &[Charged], store: &S) -> bool {
        for charged in charged.chunks(Call::MAX_CHECKS) {
            let receipts = self.receipts(charged);
            let Some(given) = Call::of_distinct(Verb::Refund, &receipts).ask_now(store) else { return false };
            self.refunded(charged, given, None);
        }
        true
    }

    /// What was charged: by the local store, and by the shared one.
    fn charged(&self) -> (Vec<Charged>, Vec<Charged>) {
        let charged = self.members(|ruling| ruling.charged() > 0, 0);
        let charged = charged.into_iter().flat_map(|at| self.charged_of(at, u64::MAX));
        charged.partition(|charged| self.rulings[charged.ruling].source == Source::OnErrorLocal)
    }

    /// What each payer of a ruling was charged, of the last `units` of it.
    pub(super) fn charged_of(&self, ruling: usize, units: u64) -> Vec<Charged> {
        let known = &self.rulings[ruling];
        let mut left = units.min(known.charged());
        let mut charged = Vec::new();
        for payer in (0..known.width()).rev() {
            let paid = known.status_of(payer).units().min(left);
            left -= paid;
            charged.extend(Cost::new(paid).ok().map(|units| Charged { ruling, payer, units }));
        }
        charged
    }

    /// The first ruling of each state.
    fn distinct(&self) -> impl Iterator<Item = usize> {
        let rulings = &self.rulings;
        (0..rulings.len()).filter(|&at| !rulings[..at].iter().any(|other| other.is_same_state(&rulings[at])))
    }

    pub(super) fn receipts(&self, charged: &[Charged]) -> Vec<Check<'_>> {
        let receipt = |&Charged { ruling, payer, units }: &Charged| {
            let known = &self.rulings[ruling];
            let check = known.checks().nth(payer).expect("a payer that was charged");
            Receipt::new(check, units, known.decided_at).check()
        };
        charged.iter().map(receipt).collect()
    }

    /// Records what was given back. The local store `follows` what another has given.
    pub(super) fn refunded(
        &mut self,
        charged: &[Charged],
        given: Result<Decision, StoreError>,
        follows: Option<&Local>,
    ) {
        let Ok(given) = given else { return };
        for (&Charged { ruling, payer, .. }, status) in charged.iter().zip(given.statuses()) {
            let known = self.rulings[ruling].clone();
            if let Some(local) = follows {
                local.follow_refund(&known, payer, status.units());
            }
            let same = |ruling: &&mut Ruling| ruling.action.verb == known.action.verb && ruling.is_same_state(&known);
            for ruling in self.rulings.iter_mut().filter(same) {
                ruling.given_back(payer, status.units());
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

    /// What each payer answered, in order, with its name: the first is the limit of the policy, and has its name. Empty if the policy
    /// has no further payers, or they were not asked: then all is in [`status`](Self::status).
    pub fn payers(&self) -> impl ExactSizeIterator<Item = (&str, &Paid)> {
        let name = |(at, paid)| match at {
            0 => (self.policy.name(), paid),
            _ => (self.policy.payers()[at - 1].name(), paid),
        };
        self.paid.as_deref().unwrap_or_default().iter().enumerate().map(name)
    }

    /// How many states it is about: one, or one for each payer.
    #[inline]
    pub(super) fn width(&self) -> usize {
        1 + self.further().len()
    }

    /// The further payers that apply to the caller. One that is blocked has none.
    #[inline]
    pub(super) fn further(&self) -> &[Payer] {
        match self.policy.payers() {
            [] => &[],
            payers => match self.limit() {
                Some(limit) if limit.amount() > 0 && limit.algorithm() != Algorithm::Concurrency => payers,
                _ => &[],
            },
        }
    }

    /// Whether the store picks the limit.
    pub(super) fn is_changing(&self) -> bool {
        matches!(self.limit, CallerLimit::Changing(..))
    }

    /// The most units that can be had at once, if a limit applies.
    pub(super) fn capacity(&self) -> Option<u64> {
        let further: u64 = match &self.paid {
            Some(paid) => paid.iter().skip(1).map(|paid| paid.limit.capacity()).sum(),
            None => self.further().iter().map(|payer| payer.limit().capacity()).sum(),
        };
        Some(self.limit()?.capacity() + further)
    }

    fn status_of(&self, payer: usize) -> &Status {
        self.paid.as_ref().map_or(&self.status, |paid| &paid[payer].status)
    }

    fn given_back(&mut self, payer: usize, units: u64) {
        match &mut self.paid {
            None => self.status = self.status.with_refund(units),
            Some(paid) => {
                paid[payer].status = paid[payer].status.with_refund(units);
                self.status = Status::of_payers(&paid.iter().map(|paid| paid.status).collect::<Vec<_>>());
            }
        }
    }

    /// The checks for the store, one for each payer. Those of a local share are under the limits of the share.
    pub(super) fn checks(&self) -> impl Iterator<Item = Check<'_>> {
        let first = self.check();
        let further = self.further().iter().enumerate().filter_map(move |(at, payer)| {
            let limit = self.paid.as_ref().map_or(payer.limit(), |paid| &paid[at + 1].limit);
            let key = Key::new(payer.key_name(), &self.subject).expect("a policy and a subject make a key");
            Some(first?.of_key(key).under(limit).paying_rest())
        });
        first.into_iter().chain(further)
    }

    /// The same under the limit that is in force as far as this process knows: it takes a share of no other.
    pub(super) fn checks_now(&self) -> impl Iterator<Item = Check<'_>> {
        let now = self.limit();
        self.checks().enumerate().map(move |(payer, check)| match now {
            Some(limit) if payer == 0 => check.under(limit),
            _ => check,
        })
    }

    /// The check for the store, unless no limit applies.
    pub(super) fn check(&self) -> Option<Check<'_>> {
        let key = Key::new(self.policy.key_name(), &self.subject).expect("a policy and a subject make a key");
        let check = Check::new(key, self.limit()?);
        let check = check.cost(self.action.cost).with_charged_at(self.action.charged_at);
        let check = check.with_cache_denials(self.policy.cache_denials()).with_holds(self.policy.holds());
        let check = check.with_allotment(self.policy.allotment() && self.policy.payers().is_empty());
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
