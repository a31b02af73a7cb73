//! From a call to a verdict: which policies apply, what the store says, and what it means if it says nothing.

mod alone;
mod bench;

use std::sync::Arc;

use super::{Domain, Match, Mode, Policy, PolicySet, Subject, Verdict};
use crate::check::{Check, Cost};
use crate::clock::Timestamp;
use crate::decision::Status;
use crate::descriptor::Descriptor;
use crate::key::Key;
use crate::limit::Limit;
use crate::limiter::InvalidCheck;
use crate::store::{MemoryStore, Store, StoreError};
use bench::Bench;

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
    /// If `store` fails, each policy's [`OnError`](super::OnError) answers, `Local` by means of `local`; so the error here is only
    /// about a question that makes no sense.
    pub async fn decide<S: Store>(
        &self,
        store: &S,
        local: &MemoryStore,
        domain: &str,
        asks: &[Ask],
    ) -> Result<Verdict, InvalidCheck> {
        let found = self.placed(domain).map_or_else(Vec::new, |(domain, first)| find(domain, first, asks));
        decide(store, local, found).await
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

    /// The shortcut for a call that falls under one policy, on the embedded store, where nobody wants to know more than the
    /// status: takes the cost if the policy allows it. `None` has taken nothing, and leaves the call to be decided.
    #[inline(always)]
    pub fn take_now(&self, store: &MemoryStore, policy: usize, subject: &Subject, cost: Cost) -> Option<Status> {
        let policy = &self.policies()[policy];
        let limit = policy.limit().filter(|_| policy.mode() == Mode::Enforce)?;
        // No store is asked about a limit of zero, nor about more than there ever is.
        if cost.get() > limit.capacity() {
            return None;
        }
        let key = Key::new(policy.key_name(), subject).expect("a policy and a subject make a key");
        let decision = store.check_now(&Check::new(key, limit).cost(cost));
        decision.statuses().first().filter(|status| status.allowed()).copied()
    }
}

async fn decide<S: Store>(store: &S, local: &MemoryStore, mut found: Vec<Found>) -> Result<Verdict, InvalidCheck> {
    match (found.pop(), found.is_empty()) {
        (Some(only), true) => alone::decide(store, local, only).await,
        (last, _) => {
            found.extend(last);
            together(store, local, found).await
        }
    }
}

async fn together<S: Store>(store: &S, local: &MemoryStore, found: Vec<Found>) -> Result<Verdict, InvalidCheck> {
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
    subject: Subject,
    /// The limit of this caller, if it is not the policy's own.
    own: Option<Option<Limit>>,
    charge: Charge,
}

impl Found {
    /// A policy of `domain`, whose first is the one of this place.
    fn new(domain: &Domain, first: usize, found: Match, charge: Charge) -> Self {
        let Match { policy: at, descriptor, subject, limit: own } = found;
        let policy = Arc::clone(&domain.policies()[at]);
        Self { place: first + at, policy, descriptor, subject, own, charge }
    }

    /// The limit that holds, if any.
    fn limit(&self) -> Option<&Limit> {
        self.policy.limit_or(self.own.as_ref())
    }

    /// What to ask of a store, unless nothing limits it.
    fn check(&self) -> Option<Check<'_>> {
        let key = Key::new(self.policy.key_name(), &self.subject).expect("a policy and a subject make a key");
        Some(Check::new(key, self.limit()?).cost(self.cost()))
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
        let subject = Subject::new(entries.chain([(name.as_str(), text.as_str())]));
        Some(Match { policy: domain.requested(), descriptor, subject, limit: Some(Some(limit)) })
    });
    let found = matches.chain(requested).map(|found| {
        let charge = asks[found.descriptor].charge;
        Found::new(domain, first, found, charge)
    });
    found.collect()
}

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
