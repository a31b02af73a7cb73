//! From a call to a verdict: which policies apply, what the store says, and what it means if it says nothing.

mod alone;

use std::sync::Arc;

use super::{Domain, Excess, Match, Mode, OnError, Policy, PolicySet, Ruling, Verdict, subject};
use crate::check::{Check, Cost};
use crate::clock::Timestamp;
use crate::decision::{Decision, Source, Status};
use crate::descriptor::Descriptor;
use crate::key::Key;
use crate::limit::Limit;
use crate::limiter::{self, InvalidCheck, MAX_CHECKS};
use crate::store::{MemoryStore, Store, StoreError};

/// One descriptor of a call, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ask {
    /// What is known of the request.
    pub descriptor: Descriptor,
    /// What to do.
    pub charge: Charge,
    /// A limit that the request brings along; it takes the place of all policies for this descriptor.
    pub limit: Option<Limit>,
}

/// What a call does to the limits it falls under.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Charge {
    /// Takes units.
    Take(Cost),
    /// Takes none: would one unit fit?
    Look,
    /// Gives units back that were charged at this instant, or just now.
    GiveBack(Cost, Option<Timestamp>),
}

impl Ask {
    /// Takes `cost` under the policies that `descriptor` falls under.
    pub fn new(descriptor: Descriptor, cost: Cost) -> Self {
        Self { descriptor, charge: Charge::Take(cost), limit: None }
    }
}

impl PolicySet {
    /// Decides a call under the policies of `domain` that its descriptors fall under. A domain that is not there has no
    /// limits.
    ///
    /// Policies that enforce are charged all or none. Shadows are charged one by one once the call is allowed, and
    /// only looked at otherwise. A policy that meets one subject in two descriptors counts it once, with the larger cost.
    /// If `store` fails, each policy's [`OnError`] answers, `Local` by means of `local`; so the error here is only
    /// about a question that makes no sense.
    pub async fn decide<S: Store>(
        &self,
        store: &S,
        local: &MemoryStore,
        domain: &str,
        asks: &[Ask],
    ) -> Result<Verdict, InvalidCheck> {
        let mut found = self.placed(domain).map_or_else(Vec::new, |(domain, first)| find(domain, first, asks));
        match (found.pop(), found.is_empty()) {
            (Some(only), true) => alone::decide(store, local, only).await,
            (last, _) => {
                found.extend(last);
                decide(store, local, found).await
            }
        }
    }

    /// Forgets the states that these descriptors fall under, and answers how many there were.
    pub async fn reset<S: Store>(&self, store: &S, domain: &str, asks: &[Ask]) -> Result<u64, StoreError> {
        let found = self.placed(domain).map_or_else(Vec::new, |(domain, first)| find(domain, first, asks));
        let mut forgotten = 0;
        for check in found.iter().filter_map(Found::check) {
            forgotten += u64::from(store.reset(&check).await?);
        }
        Ok(forgotten)
    }
}

impl Domain {
    /// Decides a call that falls under these policies of the domain, for those who match by themselves; otherwise as
    /// [`PolicySet::decide`]. A ruling then tells the place of its policy within the domain.
    pub async fn decide<S: Store>(
        &self,
        store: &S,
        local: &MemoryStore,
        matches: Vec<Match>,
        charge: Charge,
    ) -> Result<Verdict, InvalidCheck> {
        decide(store, local, matches.into_iter().map(|found| Found::new(self, 0, found, charge)).collect()).await
    }

    /// The same for a call that falls under one policy, in less time.
    pub fn decide_one<S: Store>(
        &self,
        store: &S,
        local: &MemoryStore,
        found: Match,
        charge: Charge,
    ) -> impl Future<Output = Result<Verdict, InvalidCheck>> {
        alone::decide(store, local, Found::new(self, 0, found, charge))
    }
}

async fn decide<S: Store>(store: &S, local: &MemoryStore, found: Vec<Found>) -> Result<Verdict, InvalidCheck> {
    let mut bench = Bench::new(store, local, &found);
    bench.validate()?;
    bench.give_back().await;
    bench.look_where_asked().await;
    bench.take_quotas().await;
    bench.take_enforced().await;
    bench.take_shadows().await;
    Ok(bench.into_verdict())
}

/// A policy that applies to a descriptor.
#[derive(Debug)]
struct Found {
    policy: Arc<Policy>,
    place: usize,
    descriptor: usize,
    subject: String,
    limit: Option<Limit>,
    charge: Charge,
}

impl Found {
    /// A policy of `domain`, whose first is the one of this place.
    fn new(domain: &Domain, first: usize, found: Match, charge: Charge) -> Self {
        let Match { policy: at, descriptor, subject, limit } = found;
        let policy = Arc::clone(&domain.policies()[at]);
        let limit = limit.unwrap_or_else(|| policy.limit().cloned());
        Self { place: first + at, policy, descriptor, subject, limit, charge }
    }

    /// What to ask of a store, unless nothing limits it.
    fn check(&self) -> Option<Check<'_>> {
        let key = Key::new(self.policy.key_name(), &self.subject).expect("a policy and a subject make a key");
        Some(Check::new(key, self.limit.as_ref()?).cost(self.cost()))
    }

    fn cost(&self) -> Cost {
        match self.charge {
            Charge::Take(cost) | Charge::GiveBack(cost, _) => cost,
            Charge::Look => Cost::ONE,
        }
    }

    fn takes(&self, mode: Mode) -> bool {
        matches!(self.charge, Charge::Take(_)) && self.policy.mode() == mode
    }
}

fn find(domain: &Domain, first: usize, asks: &[Ask]) -> Vec<Found> {
    let descriptors: Vec<&Descriptor> = asks.iter().map(|ask| &ask.descriptor).collect();
    let matches = domain.matcher().find(&descriptors).into_iter();
    let matches = matches.filter(|found| asks[found.descriptor].limit.is_none());
    let requested = asks.iter().enumerate().filter_map(|(descriptor, ask)| {
        let limit = ask.limit.clone()?;
        // Two limits that requests bring along for one caller are two states.
        let (name, text) = (String::from("limit"), limit.to_string());
        let entries = ask.descriptor.entries().iter().map(|(key, value)| (key.as_str(), value.as_str()));
        let subject = subject(entries.chain([(name.as_str(), text.as_str())]));
        Some(Match { policy: domain.requested(), descriptor, subject, limit: Some(Some(limit)) })
    });
    let found = matches.chain(requested).map(|found| {
        let charge = asks[found.descriptor].charge;
        Found::new(domain, first, found, charge)
    });
    found.collect()
}

/// One state of a call: what to ask about it, and for whom.
#[derive(Debug, Clone)]
struct Group<'f> {
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
struct Bench<'f, S> {
    store: &'f S,
    local: &'f MemoryStore,
    found: &'f [Found],
    answers: Vec<Option<Answer>>,
    decided_at: Option<Timestamp>,
    split: bool,
    store_error: Option<StoreError>,
}

impl<'f, S: Store> Bench<'f, S> {
    fn new(store: &'f S, local: &'f MemoryStore, found: &'f [Found]) -> Self {
        let unlimited = |found: &Found| match found.limit {
            Some(_) => None,
            None => Some(Answer::new(Status::unlimited(), Source::Unlimited)),
        };
        let answers = found.iter().map(unlimited).collect();
        Self { store, local, found, answers, decided_at: None, split: false, store_error: None }
    }

    /// The states of what is chosen; whoever meets one twice asks for the larger cost.
    fn groups(&self, chosen: impl Fn(&Found) -> bool) -> Vec<Group<'f>> {
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
    fn validate(&self) -> Result<(), InvalidCheck> {
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
    async fn give_back(&mut self) {
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

    async fn look_where_asked(&mut self) {
        let groups = self.groups(|found| found.charge == Charge::Look);
        self.look(&groups).await;
    }

    /// Each quota is charged alone: who fits one of them may pass.
    async fn take_quotas(&mut self) {
        let groups = self.groups(|found| found.takes(Mode::Quota));
        if self.refused() {
            return self.look(&groups).await;
        }
        for group in &groups {
            self.take_alone(group).await;
        }
    }

    /// All or none; what quotas were charged is given back if it is none.
    async fn take_enforced(&mut self) {
        let groups = self.groups(|found| found.takes(Mode::Enforce));
        if groups.is_empty() {
            return;
        }
        if self.denied() || groups.iter().any(|group| group.hopeless().is_some()) {
            self.look(&groups).await;
            for group in &groups {
                if let Some(answer) = group.hopeless() {
                    self.answer(group, answer);
                }
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

    async fn take_shadows(&mut self) {
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
    async fn fall_back(&mut self, groups: &[Group<'f>], error: StoreError, take: bool) {
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

    fn into_verdict(self) -> Verdict {
        let ruling = |(found, answer): (&Found, Option<Answer>)| {
            let answer = answer?;
            Some(Ruling {
                policy: Arc::clone(&found.policy),
                place: found.place,
                descriptor: found.descriptor,
                subject: found.subject.clone(),
                limit: found.limit.clone(),
                status: answer.status,
                source: answer.source,
                asked: if let Charge::Take(cost) = found.charge { cost.get() } else { 0 },
                charged: answer.charged,
                given_back: answer.given_back,
            })
        };
        let Self { found, answers, decided_at, split, store_error, .. } = self;
        Verdict { rulings: found.iter().zip(answers).filter_map(ruling).collect(), decided_at, split, store_error }
    }
}

/// The check of a group, its cost cut to what there ever is.
fn looked_at<'f>(group: &Group<'f>) -> Check<'f> {
    let most = Cost::new(group.check.limit.capacity()).unwrap_or(Cost::ONE);
    group.check.cost(group.check.cost.min(most))
}

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
