//! Where a call is decided: what was found, what the store says of it, and what it means if it says nothing.

use std::sync::Arc;

use super::super::{Excess, Mode, OnError, Policy, Ruling, Verdict};
use super::{Charge, Found};
use crate::check::{Check, Cost};
use crate::clock::Timestamp;
use crate::decision::{Decision, Source, Status};
use crate::limiter::{self, InvalidCheck, MAX_CHECKS};
use crate::store::{MemoryStore, Store, StoreError};

/// One state of a call: what to ask about it, and for whom.
#[derive(Debug, Clone)]
pub(super) struct Group<'f> {
    check: Check<'f>,
    policy: &'f Policy,
    members: Vec<usize>,
}

impl Group<'_> {
    fn too_costly(&self) -> bool {
        let capacity = self.check.limit.capacity();
        capacity > 0 && self.check.cost.get() > capacity
    }

    /// What is known without asking anybody: nothing is never enough, and neither is less than the cost.
    fn hopeless(&self) -> Option<Answer> {
        let source = match self.check.limit.amount() {
            0 => Source::ZeroLimit,
            _ if self.too_costly() => Source::TooCostly,
            _ => return None,
        };
        Some(Answer::new(Status::never(self.check.limit), source))
    }
}

#[derive(Debug, Clone, Copy)]
struct Answer {
    status: Status,
    source: Source,
    charged: u64,
    /// When, on the clock of whoever charged it.
    charged_at: Option<Timestamp>,
    given_back: u64,
}

impl Answer {
    fn new(status: Status, source: Source) -> Self {
        Self { status, source, charged: 0, charged_at: None, given_back: 0 }
    }
}

/// Where a call is decided: what was found, and the answers so far.
pub(super) struct Bench<'f, S> {
    store: &'f S,
    local: &'f MemoryStore,
    found: &'f [Found],
    answers: Vec<Option<Answer>>,
    decided_at: Option<Timestamp>,
    split: bool,
    store_error: Option<StoreError>,
}

impl<'f, S: Store> Bench<'f, S> {
    pub(super) fn new(store: &'f S, local: &'f MemoryStore, found: &'f [Found]) -> Self {
        let unlimited = |found: &Found| match found.limit() {
            Some(_) => None,
            None => Some(Answer::new(Status::unlimited(), Source::Unlimited)),
        };
        let answers = found.iter().map(unlimited).collect();
        Self { store, local, found, answers, decided_at: None, split: false, store_error: None }
    }

    /// The states of what is chosen; whoever meets one twice asks for the larger cost.
    pub(super) fn groups(&self, chosen: impl Fn(&Found) -> bool) -> Vec<Group<'f>> {
        let mut groups: Vec<Group<'f>> = Vec::new();
        for (at, found) in self.found.iter().enumerate().filter(|(_, found)| chosen(found)) {
            let Some(check) = found.check() else { continue };
            match groups.iter_mut().find(|group| group.check.key == check.key) {
                Some(group) => {
                    group.members.push(at);
                    if check.cost > group.check.cost {
                        group.check = group.check.cost(check.cost);
                    }
                }
                None => groups.push(Group { check, policy: &found.policy, members: vec![at] }),
            }
        }
        groups
    }

    /// Before anything is charged: what a store decides at once is bounded.
    pub(super) fn validate(&self) -> Result<(), InvalidCheck> {
        let enforced = self.found.iter().filter(|found| found.takes(Mode::Enforce)).count();
        // Only then is it worth while to find out how many of them are the same.
        let count =
            if enforced > MAX_CHECKS { self.groups(|found| found.takes(Mode::Enforce)).len() } else { enforced };
        if count > MAX_CHECKS { Err(InvalidCheck::Count { count }) } else { Ok(()) }
    }

    fn answer(&mut self, group: &Group<'_>, answer: Answer) {
        for &member in &group.members {
            self.answers[member] = Some(answer);
        }
    }

    fn status_of(&self, group: &Group<'_>) -> Option<Answer> {
        self.answers[group.members[0]]
    }

    fn note(&mut self, decision: &Decision) {
        self.decided_at = Some(self.decided_at.map_or(decision.decided_at(), |at| at.max(decision.decided_at())));
        self.split |= decision.split();
    }

    /// Whether a policy that enforces has denied the call. What quotas say together is known only once all of them are
    /// decided.
    fn refused(&self) -> bool {
        let denies = |(found, answer): (&Found, &Option<Answer>)| {
            found.policy.mode() == Mode::Enforce && answer.is_some_and(|answer| !answer.status.allowed())
        };
        self.found.iter().zip(&self.answers).any(denies)
    }

    /// Whether the call is denied, with all quotas decided.
    fn denied(&self) -> bool {
        let mut quotas = self.quotas().peekable();
        self.refused() || quotas.peek().is_some() && quotas.all(|answer| !answer.status.allowed())
    }

    fn quotas(&self) -> impl Iterator<Item = Answer> {
        let both = self.found.iter().zip(&self.answers);
        both.filter(|(found, _)| found.policy.mode() == Mode::Quota).filter_map(|(_, answer)| *answer)
    }

    /// Gives back, one after the other; then looks, so that the numbers are true. Giving back never denies.
    pub(super) async fn give_back(&mut self) {
        let groups = self.groups(|found| matches!(found.charge, Charge::GiveBack(..)));
        for group in &groups {
            let charged_at = match self.found[group.members[0]].charge {
                Charge::GiveBack(_, charged_at) => charged_at,
                Charge::Take(_) | Charge::Look => None,
            };
            let given = match group.check.limit.amount() {
                0 => Ok(0),
                _ => self.store.refund(&group.check, charged_at).await,
            };
            let given_back = given.unwrap_or_else(|error| {
                self.store_error = Some(error);
                0
            });
            self.look(std::slice::from_ref(group)).await;
            let Some(seen) = self.status_of(group) else { continue };
            self.answer(group, Answer { status: seen.status.as_allowed(true), given_back, ..seen });
        }
    }

    pub(super) async fn look_where_asked(&mut self) {
        let groups = self.groups(|found| found.charge == Charge::Look);
        self.look(&groups).await;
    }

    /// Each quota is charged alone: who fits one of them may pass.
    pub(super) async fn take_quotas(&mut self) {
        let groups = self.groups(|found| found.takes(Mode::Quota));
        if self.refused() {
            return self.look(&groups).await;
        }
        for group in &groups {
            self.take_alone(group).await;
        }
    }

    /// All or none; what quotas were charged is given back if it is none.
    pub(super) async fn take_enforced(&mut self) {
        let groups = self.groups(|found| found.takes(Mode::Enforce));
        if groups.is_empty() {
            return;
        }
        if self.denied() || groups.iter().any(|group| group.hopeless().is_some()) {
            self.look(&groups).await;
            for group in &groups {
                let Some(hopeless) = group.hopeless() else { continue };
                let seen = self
                    .status_of(group)
                    .filter(|seen| !matches!(seen.source, Source::OnErrorAllow | Source::OnErrorDeny));
                // More is asked than there ever is, but what is left is left.
                let status = seen.map_or(hopeless.status, |seen| seen.status.as_hopeless());
                self.answer(group, Answer { status, ..hopeless });
            }
        } else {
            self.take_together(&groups).await;
        }
        for group in &groups {
            let short = self.status_of(group).is_some_and(|answer| !answer.status.allowed());
            if short && group.policy.excess() == Excess::Drain {
                self.drain(group).await;
            }
        }
        if self.refused() {
            self.give_back_quotas().await;
        }
    }

    pub(super) async fn take_shadows(&mut self) {
        let groups = self.groups(|found| found.takes(Mode::Shadow));
        if self.denied() {
            return self.look(&groups).await;
        }
        for group in &groups {
            self.take_alone(group).await;
        }
    }

    async fn take_alone(&mut self, group: &Group<'f>) {
        match group.hopeless() {
            Some(answer) => self.answer(group, answer),
            None => self.take_together(std::slice::from_ref(group)).await,
        }
        let short = self.status_of(group).is_some_and(|answer| !answer.status.allowed());
        if short && group.policy.excess() == Excess::Drain {
            self.drain(group).await;
        }
    }

    async fn take_together(&mut self, groups: &[Group<'f>]) {
        let checks: Vec<Check<'_>> = groups.iter().map(|group| group.check).collect();
        match limiter::take(self.store, &checks).await {
            Ok(decision) => {
                self.note(&decision);
                self.record(groups, &decision, decision.source(), decision.allowed());
            }
            Err(error) => self.fall_back(groups, error, true).await,
        }
    }

    async fn look(&mut self, groups: &[Group<'f>]) {
        // A limit of zero is not put beside others: what they answer must not depend on it.
        let (zero, others): (Vec<_>, Vec<_>) =
            groups.iter().cloned().partition(|group| group.check.limit.amount() == 0);
        for group in &zero {
            self.answer(group, Answer::new(Status::never(group.check.limit), Source::ZeroLimit));
        }
        for groups in others.chunks(MAX_CHECKS) {
            // Nobody can be told how long to wait for more than there ever is.
            let checks: Vec<Check<'_>> = groups.iter().map(looked_at).collect();
            match limiter::look(self.store, &checks).await {
                Ok(decision) => {
                    self.note(&decision);
                    self.record(groups, &decision, decision.source(), false);
                }
                Err(error) => self.fall_back(groups, error, false).await,
            }
        }
    }

    fn record(&mut self, groups: &[Group<'f>], decision: &Decision, source: Source, charged: bool) {
        for (group, status) in groups.iter().zip(decision.statuses()) {
            let charged = if charged { group.check.cost.get() } else { 0 };
            let charged_at = Some(decision.decided_at());
            self.answer(group, Answer { charged, charged_at, ..Answer::new(*status, source) });
        }
    }

    /// The store cannot answer: each policy has said what to do then.
    pub(super) async fn fall_back(&mut self, groups: &[Group<'f>], error: StoreError, take: bool) {
        self.store_error = Some(error);
        let denies = |group: &Group<'_>| group.policy.on_error() == OnError::Deny;
        let refused = groups.iter().any(|group| denies(group) && group.policy.mode() == Mode::Enforce);
        let (mut locals, mut checks) = (Vec::new(), Vec::new());
        for group in groups {
            let limit = group.check.limit;
            match group.policy.on_error() {
                OnError::Allow => self.answer(group, Answer::new(Status::untouched(limit), Source::OnErrorAllow)),
                OnError::Deny => self.answer(group, Answer::new(Status::never(limit), Source::OnErrorDeny)),
                OnError::Local => {
                    checks.push(looked_at(group));
                    locals.push(group.clone());
                }
            }
        }
        if checks.is_empty() {
            return;
        }
        let charged = take && !refused;
        let decided = match charged {
            true => limiter::take(self.local, &checks).await,
            false => limiter::look(self.local, &checks).await,
        };
        if let Ok(decision) = decided {
            self.record(&locals, &decision, Source::OnErrorLocal, charged && decision.allowed());
        }
    }

    /// Takes what is left. Others may be taking too: a few tries will do, for what they leave behind is less each time.
    async fn drain(&mut self, group: &Group<'f>) {
        const TRIES: usize = 4;
        let Some(mut answer) = self.status_of(group) else { return };
        let local = match answer.source {
            Source::OnErrorAllow | Source::OnErrorDeny => return,
            Source::OnErrorLocal => true,
            _ => false,
        };
        let capacity = group.check.limit.capacity();
        let mut left = if answer.source == Source::TooCostly { capacity } else { answer.status.remaining() };
        for _ in 0..TRIES {
            let Ok(cost) = Cost::new(left.min(group.check.cost.get())) else { break };
            let rest = [group.check.cost(cost)];
            let taken =
                if local { limiter::take(self.local, &rest).await } else { limiter::take(self.store, &rest).await };
            let Ok(decision) = taken else { return };
            left = decision.binding().remaining();
            if decision.allowed() {
                (answer.charged, answer.charged_at) = (cost.get(), Some(decision.decided_at()));
                break;
            }
        }
        // What the caller is told is about the whole cost: how long until that would fit.
        let whole = [looked_at(group)];
        let seen =
            if local { limiter::look(self.local, &whole).await } else { limiter::look(self.store, &whole).await };
        let Ok(seen) = seen else { return self.answer(group, answer) };
        answer.source = if local { Source::OnErrorLocal } else { seen.source() };
        answer.status = match group.too_costly() {
            true => seen.binding().as_hopeless(),
            false => seen.binding().as_allowed(false),
        };
        self.answer(group, answer);
    }

    async fn give_back_quotas(&mut self) {
        for group in self.groups(|found| found.takes(Mode::Quota)) {
            let Some(answer) = self.status_of(&group) else { continue };
            // What was drained is less than the cost.
            let Ok(charged) = Cost::new(answer.charged) else { continue };
            let check = group.check.cost(charged);
            let given = match answer.source {
                Source::OnErrorLocal => self.local.refund(&check, answer.charged_at).await,
                _ => self.store.refund(&check, answer.charged_at).await,
            };
            let status = answer.status.with_given_back(given.unwrap_or(0));
            self.answer(&group, Answer { status, charged: 0, ..answer });
        }
    }

    pub(super) fn into_verdict(self) -> Verdict {
        let ruling = |(found, answer): (&Found, Option<Answer>)| {
            let answer = answer?;
            Some(Ruling {
                policy: Arc::clone(&found.policy),
                place: found.place,
                descriptor: found.descriptor,
                subject: found.subject.clone(),
                own: found.own.clone(),
                status: answer.status,
                source: answer.source,
                asked: if let Charge::Take(cost) = found.charge { cost.get() } else { 0 },
                charged: answer.charged,
                charged_at: answer.charged_at,
                given_back: answer.given_back,
            })
        };
        let Self { found, answers, decided_at, split, store_error, .. } = self;
        let store_error = store_error.map(Box::new);
        Verdict { rulings: found.iter().zip(answers).filter_map(ruling).collect(), decided_at, split, store_error }
    }
}

/// The check of a group, its cost cut to what there ever is.
fn looked_at<'f>(group: &Group<'f>) -> Check<'f> {
    let most = Cost::new(group.check.limit.capacity()).unwrap_or(Cost::ONE);
    group.check.cost(group.check.cost.min(most))
}
