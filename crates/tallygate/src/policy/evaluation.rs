//! From a call to a verdict: the policies that apply, the store's answer, and what to do if there is none.

use std::iter;
use std::sync::Arc;
use std::time::Instant;

use super::local::Local;
use super::verdict::{Paid, Repeating, Reserving, outcome};
use super::{
    Action, Ask, CallerLimit, Descriptor, Domain, Excess, Match, Mode, OnError, Outcome, Policy, Ruling, Stores,
    Subject, Verdict,
};
use crate::call::{Call, Effect, InvalidCheck, UpTo, Verb};
use crate::check::{Check, Cost};
use crate::clock::Timestamp;
use crate::decision::{Decision, Source, Status};
use crate::few::Few;
use crate::hold::{Hold, HoldTerms, Reservation, is_named};
use crate::key::Key;
use crate::limit::Limit;
use crate::request::RequestId;
use crate::store::{Store, StoreError};

/// The policies that apply to a call, and the store's answers so far.
///
/// Enforcing policies are charged all or none. Quotas are charged where they fit, unless an enforcing policy denies the
/// call. Shadows are charged if the call is allowed. All of that is one call to the store, as of one instant. A policy
/// that matches one subject in two descriptors counts it once, with the larger cost. If the store fails, each policy's
/// [`OnError`] answers. There is always a verdict: what a request can influence must not become an error.
#[derive(Debug, Clone)]
pub struct Evaluation {
    /// The verdict so far.
    verdict: Verdict,
    phase: Phase,
}

/// The next call to a store. Nearly every question needs only one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Phase {
    /// The position of its verb in [`ORDER`].
    verb: usize,
    /// The first shadow that did not fit into one call with the policies that decide, once those were asked.
    shadows: Option<usize>,
}

impl Phase {
    const START: Self = Self { verb: 0, shadows: None };
    const DONE: Self = Self { verb: usize::MAX, shadows: None };
}

/// Verbs that give back come first. Those that charge come last, because they depend on the other answers.
const ORDER: [Effect; 3] = [Effect::GivesBack, Effect::Reads, Effect::Charges];

/// One call to a store.
pub(super) struct Step {
    pub(super) verb: Verb,
    /// The rulings that its checks are for, in order, one per state.
    pub(super) members: Few<usize>,
    /// Whether the call is already denied.
    pub(super) denied: bool,
}

impl Domain {
    /// Evaluates descriptors, each under the policies that match it.
    pub fn evaluate(&self, asks: &[Ask]) -> Evaluation {
        let descriptors: Vec<&Descriptor> = asks.iter().map(|ask| &ask.descriptor).collect();
        let matches = self.matcher().find(&descriptors).into_iter();
        let matches = matches.filter(|found| asks[found.descriptor].limit.is_none());
        let requested = asks.iter().enumerate().filter_map(|(descriptor, ask)| {
            let limit = ask.limit.clone()?;
            // Two limits supplied for one caller are two states.
            let (name, text) = (String::from("limit"), limit.to_string());
            let entries = ask.descriptor.entries().iter().map(|(key, value)| (key.as_str(), value.as_str()));
            let subject = Subject::new(entries.chain([(name.as_str(), text.as_str())]));
            let found = Match::new(Arc::clone(self.requested()), descriptor, subject);
            Some(found.with_limit(CallerLimit::Override(limit)))
        });
        let ruling = |found: Match| {
            let action = asks[found.descriptor].action;
            Ruling::new(found, action)
        };
        Evaluation::of(matches.chain(requested).map(ruling).collect())
    }
}

impl Policy {
    /// Makes the call of an evaluation of one enforcing policy, for a caller that needs no verdict, only the status of
    /// an allowed call. `None` means that nothing was charged and the request still has to be evaluated.
    #[inline(always)]
    pub fn check_now<S: Store>(&self, store: &S, subject: &Subject, cost: Cost) -> Option<Status> {
        let plain = self.mode() == Mode::Enforce && self.excess() == Excess::Refuse && self.payers().is_empty();
        let key = Key::new(self.key_name(), subject).expect("a policy and a subject make a key");
        let check = Check::new(key, self.limit().filter(|_| plain)?).cost(cost);
        let call = Call::of_one(Verb::Check, std::slice::from_ref(&check))?;
        let decision = store.call_now(&call)?.ok()?;
        decision.allowed().then(|| decision.statuses()[0])
    }
}

impl Evaluation {
    /// Evaluates policies that the caller has matched itself. Without any, the call is unlimited.
    #[inline]
    pub fn new(matches: impl IntoIterator<Item = Match>, action: Action) -> Self {
        Self::of(matches.into_iter().map(|found| Ruling::new(found, action)).collect())
    }

    #[inline]
    fn of(rulings: Few<Ruling>) -> Self {
        Self { verdict: Verdict::new(rulings), phase: Phase::START }
    }

    /// The evaluation of a call that no policy applies to.
    pub fn unlimited() -> Self {
        Self { verdict: Verdict::unlimited(), phase: Phase::START }
    }

    /// What applies to the call, not yet decided.
    pub fn rulings(&self) -> &[Ruling] {
        self.verdict.rulings()
    }

    /// The hold that deciding reserves, if the call is allowed: for callers that have to cancel it if they never get the answer.
    pub fn pending_hold(&self) -> Option<Hold> {
        let reservation = self.verdict.reservation(Verb::Reserve)?;
        let mut probe = self.clone();
        let step = iter::from_fn(|| probe.next()).find(|step| step.verb == Verb::Reserve)?;
        let checks = self.verdict.checks(&step);
        Call::of_distinct(Verb::Reserve, &checks).reserving(Some(reservation)).hold()
    }

    /// Lets the call take what is left: as many units as all policies have, the same number under each, within `up_to`. The costs of
    /// its checks are ignored. [`Verdict::granted`] says how many.
    #[must_use]
    pub fn up_to(mut self, up_to: UpTo) -> Self {
        for ruling in self.verdict.rulings.iter_mut().filter(|ruling| ruling.action.verb == Verb::Check) {
            ruling.action.cost = up_to.least();
        }
        self.verdict.at_most = Some(up_to.most());
        self
    }

    /// Lets the call reserve instead of check: what it is charged is held, and [`Verdict::hold`] is the hold. Units for single policies
    /// replace the costs of these.
    ///
    /// # Errors
    /// If a policy does not grant so long a hold.
    pub fn reserve(mut self, mut reservation: Reservation, units: &[(String, Cost)]) -> Result<Self, InvalidCheck> {
        for ruling in self.verdict.rulings.iter_mut().filter(|ruling| ruling.action.verb == Verb::Check) {
            if !ruling.further().is_empty() {
                return Err(InvalidCheck::HoldOverPayers { policy: ruling.policy.name().to_owned() });
            }
            let terms = ruling.policy.holds().unwrap_or(&HoldTerms::DEFAULT);
            reservation = reservation.within(terms.max_life());
            let (ttl, longest) = (reservation.ttl(), terms.longest());
            if !HoldTerms::accepts(ttl, longest) {
                return Err(InvalidCheck::HoldTtl { policy: ruling.policy.name().to_owned(), ttl, longest });
            }
            let named = units.iter().find(|(name, _)| is_named(ruling.policy.key_name(), name));
            ruling.action.cost = named.map_or(ruling.action.cost, |(_, units)| *units);
            ruling.action.verb = Verb::Reserve;
        }
        self.verdict.reserving = Some(Box::new(Reserving { reservation, hold: None }));
        Ok(self)
    }

    /// Denies the call without a store, for callers that must answer where [`reserve`](Self::reserve) is an error: nothing can be held of
    /// one of the policies, and nothing is charged.
    #[must_use]
    pub fn refuse_to_hold(mut self) -> Verdict {
        for ruling in self.verdict.rulings.iter_mut() {
            if let Some(limit) = ruling.limit().cloned() {
                (ruling.status, ruling.source) = (Status::never(&limit), Source::NotHeld);
            }
        }
        self.verdict
    }

    /// Lets the call be repeated: the same call under the same id is answered as before, and not charged again. See
    /// [`Verdict::replayed`] and [`Verdict::conflicts`].
    #[must_use]
    pub fn request_id(mut self, id: RequestId) -> Self {
        let (calls, replayed, conflicts) = (0, false, false);
        self.verdict.repeating = Some(Box::new(Repeating { id, calls, replayed, conflicts }));
        self
    }

    /// Decides, by the deadline if there is one.
    pub async fn decide<S: Store>(mut self, stores: &Stores<S>, deadline: Option<Instant>) -> Verdict {
        if self.verdict.rulings.len() > 1 {
            self.verdict.give_back(stores, deadline).await;
        }
        while let Some(step) = self.next() {
            let id = self.verdict.next_id(step.verb);
            let checks = self.verdict.checks(&step);
            let call = Call::of_distinct(step.verb, &checks).denied(step.denied).by(deadline);
            // What is held is held as a whole.
            let call = if step.verb == Verb::Reserve { call } else { call.partial() };
            let call = call.at_most(self.verdict.at_most.filter(|_| step.verb == Verb::Check));
            let call = call.reserving(self.verdict.reservation(step.verb)).with_request_id(id);
            let (answer, follows) = match call.ask_now(&stores.shared) {
                Some(answer) => (answer, false),
                None => (call.ask(&stores.shared).await, true),
            };
            let hold = answer.as_ref().ok().and_then(|decision| call.hold_of(decision));
            let request = call.request().cloned().map(Box::new);
            drop(checks);
            if let (Some(reserving), Some(hold)) = (&mut self.verdict.reserving, hold) {
                reserving.hold = Some(hold);
            }
            let partly = answer.as_ref().is_ok_and(|decision| decision.allowed() && decision.is_partial());
            self.verdict.record(&step, answer, &stores.local, follows);
            if partly {
                self.verdict.give_back_excess(&step, stores, deadline, request).await;
            }
        }
        self.verdict
    }

    /// Decides without waiting, if the store can. `None` means that nothing was done: use [`decide`](Self::decide).
    #[inline]
    pub fn decide_now<S: Store>(&mut self, stores: &Stores<S>) -> Option<Verdict> {
        loop {
            let Some(step) = self.next() else {
                return Some(std::mem::replace(&mut self.verdict, Verdict::unlimited()));
            };
            let id = self.verdict.next_id(step.verb);
            let checks = self.verdict.checks(&step);
            let call = Call::of_distinct(step.verb, &checks).denied(step.denied);
            let call = call.at_most(self.verdict.at_most.filter(|_| step.verb == Verb::Check));
            let call = call.reserving(self.verdict.reservation(step.verb)).with_request_id(id);
            let answer = call.ask_now(&stores.shared);
            let Some(answer) = answer else {
                self.phase = Phase::START;
                if let Some(repeating) = &mut self.verdict.repeating {
                    repeating.calls = 0;
                }
                return None;
            };
            let hold = answer.as_ref().ok().and_then(|decision| call.hold_of(decision));
            drop(checks);
            if let (Some(reserving), Some(hold)) = (&mut self.verdict.reserving, hold) {
                reserving.hold = Some(hold);
            }
            self.verdict.record(&step, answer, &stores.local, false);
        }
    }

    /// The next call to a store, if there is one.
    #[inline]
    fn next(&mut self) -> Option<Step> {
        if let [only] = &self.verdict.rulings[..] {
            let first = self.phase == Phase::START && only.limit().is_some();
            self.phase = Phase::DONE;
            let verb = only.action.verb;
            return first.then(|| Step { verb, members: Few::from(0), denied: false });
        }
        let in_order = |&effect: &Effect| Verb::ALL.iter().filter(move |verb| verb.effect() == effect);
        while let Some(&verb) = ORDER.iter().flat_map(in_order).nth(self.phase.verb) {
            let again = self.phase.shadows.is_some();
            let members = self.members_of(verb);
            // Shadows that found no room beside what was reserved are only charged: a hold is what one call has reserved.
            let verb = if verb == Verb::Reserve && again { Verb::Check } else { verb };
            if !members.is_empty() {
                return Some(Step { verb, members: Few::Many(members), denied: self.verdict.denied() });
            }
        }
        None
    }

    /// The rulings to ask about with a verb: all that decide, and as many shadows as fit. What gives back decides nothing,
    /// and is asked in as many calls as it takes.
    fn members_of(&mut self, verb: Verb) -> Vec<usize> {
        let Phase { verb: place, shadows: from } = self.phase;
        let asked = |ruling: &Ruling| ruling.action.verb == verb && ruling.source == Source::Unlimited;
        if verb.effect() == Effect::GivesBack {
            let mut members = self.verdict.members(asked, 0);
            let fit = self.verdict.within_a_call(&members);
            self.phase.verb += usize::from(members.len() == fit);
            members.truncate(fit);
            return members;
        }
        let decides = |ruling: &Ruling| ruling.mode() != Mode::Shadow && asked(ruling);
        let mut members = self.verdict.members(decides, 0);
        if self.verdict.within_a_call(&members) < members.len() {
            self.verdict.refuse_all(verb);
            return Vec::new();
        }
        let shadows = self.verdict.members(|ruling| ruling.mode() == Mode::Shadow && asked(ruling), from.unwrap_or(0));
        let decide = members.len();
        members.extend(&shadows);
        members.truncate(self.verdict.within_a_call(&members));
        let left_out = shadows.get(members.len() - decide).copied();
        self.phase = Phase { verb: place + usize::from(left_out.is_none()), shadows: left_out };
        members
    }
}

impl Verdict {
    /// Sends everything that gives back to the store at once: if the caller is gone, none of it is left undone.
    async fn give_back<S: Store>(&mut self, stores: &Stores<S>, deadline: Option<Instant>) {
        let mut steps = Vec::new();
        for &verb in Verb::ALL.iter().filter(|verb| verb.effect() == Effect::GivesBack) {
            let members = self.members(|ruling| ruling.action.verb == verb, 0);
            let step = |members: &[usize]| Step { verb, members: Few::Many(members.to_vec()), denied: false };
            let mut rest = &members[..];
            while !rest.is_empty() {
                let (members, later) = rest.split_at(self.within_a_call(rest));
                steps.push(step(members));
                rest = later;
            }
        }
        let checks: Vec<Few<Check<'_>>> = steps.iter().map(|step| self.checks(step)).collect();
        let calls = steps.iter().zip(&checks).map(|(step, checks)| Call::of_distinct(step.verb, checks).by(deadline));
        let calls: Vec<Call<'_>> = calls.collect();
        let answers = Call::ask_all(&calls, &stores.shared).await;
        for (step, answer) in steps.iter().zip(answers) {
            self.record(step, answer, &stores.local, true);
        }
    }

    /// How many of the first of these rulings have room in one call: each has a state, or one for each payer.
    fn within_a_call(&self, members: &[usize]) -> usize {
        let mut states = 0;
        let fits = |&&member: &&usize| {
            states += self.rulings[member].width();
            states <= Call::MAX_CHECKS
        };
        members.iter().take_while(fits).count()
    }

    /// More policies apply than one call may have. A denial, because an error would let the request pass some proxies.
    #[cold]
    fn refuse_all(&mut self, verb: Verb) {
        for ruling in self.rulings.iter_mut().filter(|ruling| ruling.action.verb == verb) {
            if let Some(limit) = ruling.limit().cloned() {
                (ruling.status, ruling.source) = (Status::never(&limit), Source::TooMany);
            }
        }
    }

    /// One ruling per state among the chosen ones.
    pub(super) fn members(&self, chosen: impl Fn(&Ruling) -> bool, from: usize) -> Vec<usize> {
        let mut members: Vec<usize> = Vec::new();
        for (at, ruling) in self.rulings.iter().enumerate().skip(from) {
            let limited = chosen(ruling) && ruling.limit().is_some();
            if limited && !members.iter().any(|&member| self.rulings[member].is_same_state(ruling)) {
                members.push(at);
            }
        }
        members
    }

    pub(super) fn denied(&self) -> bool {
        self.conflicts() || outcome(&self.rulings) != Outcome::Allowed
    }

    /// Whether a quota that was asked about, or has no limit, already lets the call pass.
    fn quota_passed(&self) -> bool {
        let passed = |ruling: &Ruling| {
            let answered = ruling.source != Source::Unlimited || ruling.limit().is_none();
            ruling.mode() == Mode::Quota && answered && ruling.status.allowed()
        };
        self.rulings.iter().any(passed)
    }

    #[inline]
    pub(super) fn checks<'c>(&'c self, step: &Step) -> Few<Check<'c>> {
        let quota_passed = self.quota_passed();
        let check = |member: usize, check: Check<'c>| {
            let ruling = &self.rulings[member];
            let cost = self.cost(step.verb, member);
            // One quota is enough: the others are charged where they fit, and decide nothing.
            let mode = if quota_passed && ruling.mode() == Mode::Quota { Mode::Shadow } else { ruling.mode() };
            let check = check.cost(cost).with_mode(mode).with_excess(ruling.policy.excess());
            let check = check.with_fails_closed(ruling.policy.on_error() == OnError::Deny);
            match step.verb {
                Verb::Reserve => check.within_holds(),
                // Which limit applies is known to the store only.
                verb if verb.decides() && !ruling.is_changing() => {
                    ruling.capacity().map_or(check, |capacity| check.within(capacity))
                }
                _ => check,
            }
        };
        if step.members.iter().all(|&member| self.rulings[member].width() == 1) {
            let only = |member: usize| self.rulings[member].check().expect("only limits are asked about");
            return step.members.map_ref(|&member| check(member, only(member)));
        }
        let checks = step.members.iter().flat_map(|&member| self.rulings[member].checks().map(move |of| (member, of)));
        Few::Many(checks.map(|(member, of)| check(member, of)).collect())
    }

    /// What a ruling costs: the most that any ruling of the same state does.
    #[inline]
    pub(super) fn cost(&self, verb: Verb, member: usize) -> Cost {
        let ruling = &self.rulings[member];
        let same = |other: &&Ruling| other.action.verb == verb && other.is_same_state(ruling);
        match self.rulings.len() {
            1 => ruling.action.cost,
            _ => self.rulings.iter().filter(same).map(|other| other.action.cost).max().unwrap_or(ruling.action.cost),
        }
    }

    /// Records the answer to a step. The local store `follows` a store that had to be waited for; one that answers at once
    /// is in this process, and does not fail, unless it spends what it took from another store.
    #[inline]
    fn record(&mut self, step: &Step, answer: Result<Decision, StoreError>, local: &Local, follows: bool) {
        match answer {
            Ok(decision) => {
                let decided_at = decision.decided_at();
                let follows = follows || decision.source() == Source::Allotment;
                self.decided_at = self.decided_at.max(decided_at);
                self.split |= decision.split();
                if let Some(repeating) = &mut self.repeating {
                    repeating.replayed |= decision.replayed();
                    repeating.conflicts |= decision.conflicts();
                }
                // What was charged before was followed before.
                let follows = follows && !decision.replayed() && !decision.conflicts();
                self.grant(&decision);
                let mut at = 0;
                let mut failed: Vec<(usize, &StoreError)> = Vec::new();
                for &member in step.members.iter() {
                    let places = at..at + self.rulings[member].width();
                    at = places.end;
                    // No payer answers for the others.
                    if let Some(error) = places.clone().find_map(|place| decision.failure(place)) {
                        failed.push((member, error));
                        continue;
                    }
                    let cost = self.cost(step.verb, member);
                    let (ruling, statuses) = (&mut self.rulings[member], &decision.statuses()[places]);
                    if follows {
                        local.follow(step.verb, ruling, statuses);
                    }
                    match statuses {
                        [status] => ruling.answered(*status, decision.source(), decided_at, cost),
                        _ => ruling.answered_by_payers(statuses, decision.source(), decided_at, cost),
                    }
                }
                if !failed.is_empty() {
                    let (members, errors): (Vec<usize>, Vec<_>) = failed.into_iter().unzip();
                    self.fall_back(&Step { members: Few::Many(members), ..*step }, &errors, local);
                }
            }
            Err(error) => self.fall_back(step, &vec![&error; step.members.len()], local),
        }
        if self.rulings.len() > 1 {
            self.spread(step);
        }
    }

    /// What one store has not granted, no other is asked for.
    pub(super) fn grant(&mut self, decision: &Decision) {
        let granted = decision.granted().and_then(|granted| Cost::new(granted).ok());
        self.at_most = granted.or(self.at_most);
    }

    /// Copies the answer of one ruling to all rulings of the same state.
    pub(super) fn spread(&mut self, step: &Step) {
        for &member in step.members.iter() {
            let known = self.rulings[member].clone();
            let same = |other: &&mut Ruling| other.action.verb == step.verb && other.is_same_state(&known);
            for other in self.rulings.iter_mut().filter(same) {
                (other.status, other.source, other.decided_at) = (known.status, known.source, known.decided_at);
                other.settle_limit();
                other.paid.clone_from(&known.paid);
                if known.source == Source::OnErrorLocal {
                    other.limit.clone_from(&known.limit);
                }
            }
        }
    }
}

impl Ruling {
    #[inline]
    fn new(found: Match, action: Action) -> Self {
        let Match { policy, descriptor, subject, limit } = found;
        let (status, source) = (Status::unlimited(), Source::Unlimited);
        Self { policy, descriptor, subject, limit, action, status, paid: None, source, decided_at: None }
    }

    /// The same for several payers.
    fn answered_by_payers(&mut self, paid: &[Status], source: Source, decided_at: Option<Timestamp>, cost: Cost) {
        self.answered(Status::of_payers(paid), source, decided_at, cost);
        let limits: Vec<Limit> = self.checks().map(|check| check.limit.clone()).collect();
        self.paid_by(paid, &limits);
    }

    /// Keeps what each payer answered, if there are several.
    pub(super) fn paid_by(&mut self, paid: &[Status], limits: &[Limit]) {
        let paid = || paid.iter().zip(limits).map(|(status, limit)| Paid { limit: limit.clone(), status: *status });
        self.paid = (limits.len() > 1).then(|| paid().collect());
    }

    /// Of a limit that changes, keeps what was in force when the store decided.
    #[inline]
    fn settle_limit(&mut self) {
        if let (CallerLimit::Changing(_, changes), Some(decided_at)) = (&self.limit, self.decided_at) {
            self.limit = CallerLimit::Override(changes.limit_at(decided_at).clone());
        }
    }

    /// Records the answer of a store or of `on_error`. A cost above the capacity and a limit of zero are denied in
    /// either case.
    #[inline]
    pub(super) fn answered(&mut self, status: Status, source: Source, decided_at: Option<Timestamp>, cost: Cost) {
        (self.status, self.source, self.decided_at) = (status, source, decided_at);
        self.settle_limit();
        let Some((amount, capacity)) = self.limit().map(Limit::amount).zip(self.capacity()) else { return };
        if cost.get() > capacity && self.action.verb.decides() {
            self.source = match (amount, self.policy.excess()) {
                (0, _) => Source::ZeroLimit,
                (_, Excess::Drain) => source,
                (_, Excess::Refuse) => Source::TooCostly,
            };
            if source.is_without_numbers() {
                self.status = Status::never(self.limit().expect("the limit was checked above"));
            }
        } else if source == Source::ZeroLimit {
            // Another limit of the call is zero; this one was asked about, unless it can only be reserved.
            self.source = Source::Store;
            if let Some(limit) = self.limit().filter(|limit| limit.is_concurrency() && self.action.verb == Verb::Check)
            {
                (self.status, self.source) = (Status::never(limit), Source::OnlyReserved);
            }
        }
    }
}
