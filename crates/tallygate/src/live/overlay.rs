//! The overrides of a store laid over the policies of files.

use std::collections::HashMap;
use std::sync::Arc;

use super::set::{fitting, keys};
use super::{Override, OverrideSet};
use crate::clock::Timestamp;
use crate::limit::{Changes, Limit};
use crate::policy::{CallerLimit, Description, Descriptor, Domain, Match, Matcher, Policy, PolicySet, Reason, Subject};

/// How long ago a change is still told to the store, and how long before it happens. The store's clock decides when it happens, and
/// this process knows that clock only about.
const BEHIND: u64 = 2_000_000;
const AHEAD: u64 = 10_000_000;

/// Finds what another matcher does, with the limits of overrides.
#[derive(Debug)]
pub(crate) struct Overlay {
    below: Arc<dyn Matcher>,
    /// As of when it was built, on the store's clock.
    now: Timestamp,
    /// By the name of the states of the policy.
    policies: HashMap<String, Vec<Shape>>,
}

/// The overrides of a policy that match by the same keys.
#[derive(Debug)]
struct Shape {
    keys: Vec<String>,
    /// Whether the keys are all that the policy counts by, so that one is for one subject.
    of_subject: bool,
    /// By the entries. In the order in which they were set, each with its place among all.
    overrides: HashMap<Subject, Vec<(usize, Override)>>,
}

impl Shape {
    fn found(&self, descriptor: &Descriptor) -> Option<&Vec<(usize, Override)>> {
        let entries: Option<Vec<(&str, &str)>> =
            self.keys.iter().map(|key| Some((key.as_str(), descriptor.get(key)?))).collect();
        self.overrides.get(&Subject::new(entries?))
    }
}

/// An override that matches a caller, and what it goes before others by: those for one subject first, then those with more entries,
/// then those that were set later.
#[derive(Clone, Copy)]
struct Found<'o> {
    rank: (bool, usize, usize),
    one: &'o Override,
}

impl Overlay {
    /// The overrides of a domain, as of an instant of the store's clock. `None` if there are none.
    fn new(domain: &Domain, set: &OverrideSet, policies: &PolicySet, now: Timestamp) -> Option<Self> {
        let of_this = |(_, one): &(usize, &Override)| one.target.domain == domain.name();
        if !set.overrides().iter().enumerate().any(|one| of_this(&one)) {
            return None;
        }
        let mut of_domain: HashMap<String, Vec<Shape>> = HashMap::new();
        let described = domain.matcher().describe();
        let partition = |policy: &Policy| {
            let found = described.iter().find(|(other, _)| other.key_name() == policy.key_name());
            found.map(|(_, description)| description.partition.as_slice()).unwrap_or_default()
        };
        for (place, one) in set.overrides().iter().enumerate().filter(of_this) {
            // The policy may have been removed from the files since, or have another algorithm there.
            let Ok(policy) = fitting(one, policies) else { continue };
            let shapes = of_domain.entry(policy.key_name().to_owned()).or_default();
            let keys = keys(&one.target);
            let known = shapes.iter().position(|shape| shape.keys == keys);
            let at = known.unwrap_or_else(|| {
                let partition = partition(policy);
                let of_subject = !partition.is_empty() && partition.iter().all(|key| keys.contains(&key.as_str()));
                let keys = keys.iter().map(|key| (*key).to_owned()).collect();
                shapes.push(Shape { keys, of_subject, overrides: HashMap::new() });
                shapes.len() - 1
            });
            shapes[at].overrides.entry(one.target.subject()).or_default().push((place, one.clone()));
        }
        if of_domain.is_empty() {
            return None;
        }
        Some(Self { below: domain.shared_matcher(), now, policies: of_domain })
    }

    fn found(&self, policy: &Policy, descriptor: &Descriptor) -> Vec<Found<'_>> {
        let shapes = self.policies.get(policy.key_name()).map(Vec::as_slice).unwrap_or_default();
        let of_shape = |shape: &'_ Shape| (shape.of_subject, shape.keys.len());
        let found = shapes.iter().filter_map(|shape| Some((of_shape(shape), shape.found(descriptor)?)));
        let found = found.flat_map(|((of_subject, entries), overrides)| {
            overrides.iter().map(move |(place, one)| Found { rank: (of_subject, entries, *place), one })
        });
        found.collect()
    }

    /// The limit of a caller, of whom `own` is what the files say.
    fn limit_of(&self, policy: &Policy, descriptor: &Descriptor, own: CallerLimit) -> CallerLimit {
        let found = self.found(policy, descriptor);
        if found.is_empty() {
            return own;
        }
        let below = policy.limit_of(&own).cloned();
        let at = |now: Timestamp| match in_force(&found, now) {
            Some(one) => one.limit.clone(),
            None => below.clone(),
        };
        let current = match in_force(&found, self.now) {
            Some(one) => one.limit.clone().map_or(CallerLimit::Unlimited, CallerLimit::Override),
            None => own,
        };
        let Some(limit) = policy.limit_of(&current).cloned() else { return current };
        match changes(&found, self.now, at) {
            Some(changes) => CallerLimit::Changing(limit, changes),
            None => current,
        }
    }
}

fn in_force<'o>(found: &[Found<'o>], now: Timestamp) -> Option<&'o Override> {
    let begun = found.iter().filter(|found| found.one.is_in_force(now));
    begun.max_by_key(|found| found.rank).map(|found| found.one)
}

/// What the limit changes to around `now`. `None` if nothing changes, or if the limits have no state in common: every instance then
/// changes by its own idea of the store's time.
fn changes(found: &[Found<'_>], now: Timestamp, at: impl Fn(Timestamp) -> Option<Limit>) -> Option<Changes> {
    let (from, until) = (now.as_micros().saturating_sub(BEHIND), now.as_micros() + AHEAD);
    let instants = found.iter().flat_map(|found| [Some(found.one.begins_at), found.one.expires_at]).flatten();
    let mut instants: Vec<Timestamp> = instants.filter(|at| (from..until).contains(&at.as_micros())).collect();
    instants.sort_unstable();
    instants.dedup();
    let first = at(Timestamp::from_micros(from.saturating_sub(1)))?;
    let then = instants.into_iter().map(|instant| Some((instant, at(instant)?))).collect::<Option<Vec<_>>>()?;
    Changes::new(first, then)
}

impl Matcher for Overlay {
    fn find(&self, descriptors: &[&Descriptor]) -> Vec<Match> {
        let mut found = self.below.find(descriptors);
        for one in &mut found {
            let own = std::mem::take(&mut one.limit);
            one.limit = self.limit_of(&one.policy, descriptors[one.descriptor], own);
        }
        found
    }

    fn explain(&self, descriptors: &[&Descriptor]) -> Vec<Reason> {
        let mut reasons = self.below.explain(descriptors);
        for reason in reasons.iter_mut().filter(|reason| reason.matched) {
            let found = self.found(&reason.policy, descriptors[reason.descriptor]);
            if let Some(one) = in_force(&found, self.now) {
                let (limit, author) = (super::set::written(one.limit.as_ref()), one.author.escape_debug());
                let (subject, why) = (one.target.subject(), one.reason.escape_debug());
                reason.because += &format!(
                    "; the live override of {} applies: {limit}, set by {author} ({why})",
                    subject.as_str().escape_debug()
                );
            }
        }
        reasons
    }

    fn describe(&self) -> Vec<(Arc<Policy>, Description)> {
        self.below.describe()
    }
}

impl PolicySet {
    /// These policies under the overrides of a store, as of an instant of its clock. Overrides go before everything that the files say,
    /// among them before `overrides` of the files. Those of unknown policies are left out.
    ///
    /// Of several that match a caller, one for all entries that the policy counts by goes first, then one with more entries, then the one
    /// that was set last. Build it anew when the set has changed, and when [`OverrideSet::is_due`] says so.
    #[must_use]
    pub fn with_overrides(&self, set: &OverrideSet, now: Timestamp) -> Self {
        self.with_domains(|domain| match Overlay::new(domain, set, self, now) {
            Some(overlay) => domain.under(Arc::new(overlay)),
            None => domain.clone(),
        })
    }
}

impl OverrideSet {
    /// Whether policies under these overrides that were built as of `built` have to be built anew at `now`, because one begins or ends.
    pub fn is_due(&self, built: Timestamp, now: Timestamp) -> bool {
        let instants = || self.overrides().iter().flat_map(|one| [Some(one.begins_at), one.expires_at]).flatten();
        let within = |from: u64, until: u64| instants().any(|at| (from + 1..=until).contains(&at.as_micros()));
        let [built, now] = [built, now].map(Timestamp::as_micros);
        let aged = now.saturating_sub(built) >= (AHEAD - BEHIND) / 2;
        now < built || within(built, now) || aged && within(built.saturating_sub(BEHIND), now + AHEAD)
    }

    /// How many are in force.
    pub fn in_force(&self, now: Timestamp) -> usize {
        self.overrides().iter().filter(|one| one.is_in_force(now)).count()
    }
}

#[cfg(test)]
mod tests;
