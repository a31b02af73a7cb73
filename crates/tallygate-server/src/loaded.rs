//! A policy set in force, and the counters of its policies.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use tallygate::call::{Effect, Verb};
use tallygate::clock::Timestamp;
use tallygate::decision::Source;
use tallygate::hold::{Hold, Learned, Resolve, Resolved, Units};
use tallygate::live::OverrideSet;
use tallygate::policy::{Domain, Mode, OnError, Policy, PolicySet, Ruling};
use tallygate::words::words;
use tallygate::{Cost, Limit};

use crate::decision_event::{CallOutcome, DecisionEvent};
use crate::hold_counters::HoldCounters;

/// A policy set and its counters. The next set takes over the counters of policies with the same name.
#[derive(Debug)]
pub(crate) struct Loaded {
    /// What decides: the policies of the files, under the overrides of the store.
    pub(crate) set: PolicySet,
    pub(crate) files: Arc<PolicySet>,
    pub(crate) generation: u64,
    /// By [`Policy::key_name`].
    counters: Arc<Counters>,
    /// What policies with `estimate` have learned, likewise. Another first estimate begins anew.
    learned: Arc<Learners>,
    /// What each payer of policies with several has paid, by the name of its states.
    paid: Arc<HashMap<String, Arc<AtomicU64>>>,
}

type Learners = HashMap<String, (u64, Arc<Learned>)>;

type Counters = HashMap<String, (Arc<Policy>, Arc<PolicyCounters>)>;

words! {
    /// The outcome of a ruling.
    pub(crate) enum RulingOutcome {
        Allowed = "allowed",
        Denied = "denied",
        ShadowAllowed = "shadow_allowed",
        ShadowDenied = "shadow_denied",
    }
}

impl RulingOutcome {
    fn of(ruling: &Ruling) -> Self {
        match (ruling.mode() == Mode::Shadow, ruling.status().allowed()) {
            (false, true) => Self::Allowed,
            (false, false) => Self::Denied,
            (true, true) => Self::ShadowAllowed,
            (true, false) => Self::ShadowDenied,
        }
    }

    fn allows(self) -> bool {
        matches!(self, Self::Allowed | Self::ShadowAllowed)
    }

    fn is_shadow(self) -> bool {
        matches!(self, Self::ShadowAllowed | Self::ShadowDenied)
    }
}

const OUTCOMES: usize = RulingOutcome::ALL.len();
const SOURCES: usize = Source::ALL.len();

#[derive(Debug, Default)]
pub(crate) struct PolicyCounters {
    decisions: [[AtomicU64; SOURCES]; OUTCOMES],
    units: [AtomicU64; OUTCOMES],
    pub(crate) near: AtomicU64,
    pub(crate) refunded: AtomicU64,
    pub(crate) holds: HoldCounters,
}

impl Loaded {
    /// `set`, which replaces `before`.
    pub(crate) fn new(set: PolicySet, before: Option<&Self>) -> Self {
        let counters = all_policies(&set).map(|policy| {
            let known = before.and_then(|before| before.counters.get(policy.key_name()));
            let known = known.map(|(_, counters)| Arc::clone(counters)).unwrap_or_default();
            (policy.key_name().to_owned(), (Arc::clone(policy), known))
        });
        let counters = Arc::new(counters.collect());
        let learned = all_policies(&set).filter_map(|policy| {
            // Of what is in flight nothing is used up.
            let policy = Some(policy).filter(|policy| !policy.limit().is_some_and(Limit::is_concurrency))?;
            let first = policy.holds()?.learns_from()?;
            let known = before.and_then(|before| before.learned.get(policy.key_name()));
            let known = known.filter(|(from, _)| *from == first).map(|(_, learned)| Arc::clone(learned));
            let learned = known.unwrap_or_else(|| Arc::new(Learned::from(first)));
            Some((policy.key_name().to_owned(), (first, learned)))
        });
        let (learned, files) = (Arc::new(learned.collect()), Arc::new(set.clone()));
        let payers = set.policies().flat_map(|policy| payers_of(policy).map(|(key_name, _)| key_name.to_owned()));
        let paid = payers.map(|key_name| {
            let known = before.and_then(|before| before.paid.get(&key_name)).cloned();
            (key_name, known.unwrap_or_default())
        });
        let paid = Arc::new(paid.collect());
        Self { set, files, counters, learned, paid, generation: before.map_or(1, |before| before.generation + 1) }
    }

    /// The same policies under the overrides of the store.
    pub(crate) fn under(&self, overrides: &OverrideSet, now: Timestamp) -> Self {
        let (set, files) = (self.files.with_overrides(overrides, now), Arc::clone(&self.files));
        let (counters, learned, paid) = (Arc::clone(&self.counters), Arc::clone(&self.learned), Arc::clone(&self.paid));
        Self { set, files, counters, learned, paid, generation: self.generation }
    }

    pub(crate) fn observe(&self, event: &DecisionEvent<'_>) {
        let allowed = event.outcome == CallOutcome::Allowed;
        let verdict = event.asked.and_then(|asked| asked.verdict());
        // A repeated call was counted the first time.
        let Some(verdict) = verdict.filter(|verdict| !verdict.replayed()) else { return };
        for ruling in verdict.states() {
            if let Some((_, counters)) = self.counters.get(ruling.policy().key_name()) {
                counters.count(ruling, allowed, verdict.granted());
            }
            if allowed && ruling.charged() > 0 {
                for ((key_name, _), (_, payer)) in payers_of(ruling.policy()).zip(ruling.payers()) {
                    self.paid.get(key_name).map(|paid| paid.fetch_add(payer.status().units(), Relaxed));
                }
            }
        }
    }

    /// Counts a hold that has ended, and one that had expired.
    pub(crate) fn observe_end(&self, hold: &Hold, resolve: &Resolve, resolved: &Resolved) {
        for ((key, _), part) in hold.places().zip(&resolved.parts) {
            if resolved.done
                && part.reserved > 0
                && says_what_was_used(resolve, key.policy())
                && let Some((_, learned)) = self.learned.get(key.policy())
            {
                learned.observe(part.reserved, part.settled.saturating_add(part.unpaid));
            }
            if let Some((_, counters)) = self.counters.get(key.policy()).filter(|_| part.reserved > 0) {
                counters.holds.end(resolved, part);
            }
        }
    }

    /// How many units a reservation that does not say so holds of a ruling, if its policy learns that.
    pub(crate) fn estimate(&self, ruling: &Ruling) -> Option<(String, Cost)> {
        let name = ruling.policy().key_name();
        let (_, learned) = self.learned.get(name)?;
        let most = ruling.policy().holds()?.most_units(ruling.limit()?.capacity());
        Some((name.to_owned(), Cost::new(learned.estimate().min(most)).ok()?))
    }

    /// What the policy whose states have this name has learned.
    pub(crate) fn learned(&self, key_name: &str) -> Option<&Learned> {
        self.learned.get(key_name).map(|(_, learned)| &**learned)
    }

    /// The policy whose states have this name.
    pub(crate) fn policy(&self, key_name: &str) -> Option<&Arc<Policy>> {
        self.counters.get(key_name).map(|(policy, _)| policy)
    }

    /// The name that the answers use for the policy of a key: that within its domain.
    pub(crate) fn name_of<'n>(&'n self, key_name: &'n str) -> &'n str {
        self.policy(key_name).map_or_else(|| tallygate::policy::name_within_domain(key_name), |policy| policy.name())
    }

    /// What a reload to this set changes, for the log.
    pub(crate) fn changes_since(&self, before: &Self) -> Changes {
        let by_name = |set: &Self| -> BTreeMap<String, Arc<Policy>> {
            let named = |policy: &Arc<Policy>| (format!("{}/{}", policy.domain(), policy.name()), Arc::clone(policy));
            set.files.policies().map(named).collect()
        };
        let (old, new) = (by_name(before), by_name(self));
        let changed = |(name, policy): &(&String, &Arc<Policy>)| old.get(*name).is_some_and(|old| old != *policy);
        let changed: Vec<&String> = new.iter().filter(changed).map(|(name, _)| name).collect();
        // A matcher does not say what it does with a policy, so a domain is compared whole, if its policies are the same.
        let rematched = self.files.domains().iter().filter(|domain| {
            let same = |other: &&Domain| other.policies() == domain.policies();
            let old = before.files.domain(domain.name()).filter(same);
            old.is_some_and(|old| format!("{:?}", old.matcher()) != format!("{:?}", domain.matcher()))
        });
        Changes {
            added: listed(new.keys().filter(|name| !old.contains_key(*name))),
            removed: listed(old.keys().filter(|name| !new.contains_key(*name))),
            changed: listed(changed),
            rematched: listed(rematched.map(Domain::name)),
        }
    }

    /// What each payer of policies with several has paid: the policy, the name of the payer, and the units.
    pub(crate) fn paid(&self) -> impl Iterator<Item = (&Arc<Policy>, &str, u64)> {
        self.set.policies().flat_map(|policy| {
            let units = |key_name| self.paid.get(key_name).map_or(0, |paid| paid.load(Relaxed));
            payers_of(policy).map(move |(key_name, name)| (policy, name, units(key_name)))
        })
    }

    /// The policies with their counters. Those for limits that requests carry are listed once they are used.
    pub(crate) fn counted(&self) -> impl Iterator<Item = (&Arc<Policy>, &PolicyCounters)> {
        let counted = all_policies(&self.set).map(|policy| (policy, &*self.counters[policy.key_name()].1));
        counted.filter(|(policy, counters)| policy.name() != Domain::REQUESTED || counters.is_used())
    }
}

/// Whether a settlement ends a hold and says what was used under a policy. All that was reserved is no measurement.
fn says_what_was_used(resolve: &Resolve, policy: &str) -> bool {
    match resolve {
        Resolve::Settle(Units::Same(_)) => true,
        Resolve::Settle(Units::Each(each)) => each.iter().any(|(name, _)| name == policy),
        _ => false,
    }
}

/// The payers of a policy that has several, its own limit first: the name of their states, and theirs.
fn payers_of(policy: &Policy) -> impl Iterator<Item = (&str, &str)> {
    let first = (!policy.payers().is_empty()).then_some((policy.key_name(), policy.name()));
    first.into_iter().chain(policy.payers().iter().map(|payer| (payer.key_name(), payer.name())))
}

/// The policies of the files, and of each domain the one for limits that requests carry.
fn all_policies(set: &PolicySet) -> impl Iterator<Item = &Arc<Policy>> {
    set.domains().iter().flat_map(|domain| domain.policies().iter().chain([domain.requested()]))
}

/// What a reload changed: names with commas between them, or `None`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Changes {
    pub(crate) added: Option<String>,
    pub(crate) removed: Option<String>,
    /// Another limit, mode, `on_error`, `cache_denials`, `allotment`, `excess`, `near` or metadata.
    pub(crate) changed: Option<String>,
    /// Domains with the same policies, but another `match`, `partition` or `overrides`.
    pub(crate) rematched: Option<String>,
}

fn listed<T: AsRef<str>>(names: impl IntoIterator<Item = T>) -> Option<String> {
    const MOST: usize = 20;
    let names: Vec<T> = names.into_iter().collect();
    let shown: Vec<&str> = names.iter().take(MOST).map(AsRef::as_ref).collect();
    let more = names.len().saturating_sub(MOST);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    (!names.is_empty()).then(|| shown.join(", ") + &more)
}

impl PolicyCounters {
    /// `allowed` is the outcome of the whole call, `granted` what it takes if it takes what is left.
    fn count(&self, ruling: &Ruling, allowed: bool, granted: Option<u64>) {
        if ruling.refunded() > 0 {
            self.refunded.fetch_add(ruling.refunded(), Relaxed);
        }
        // Peeks and refunds are not decisions.
        if ruling.action().verb.effect() != Effect::Charges {
            return;
        }
        if ruling.action().verb == Verb::Reserve && allowed && ruling.charged() > 0 && ruling.source() == Source::Store
        {
            self.holds.begin(ruling.charged());
        }
        let outcome = RulingOutcome::of(ruling);
        let source = Source::ALL.iter().position(|source| *source == ruling.source()).unwrap_or(0);
        self.decisions[outcome as usize][source].fetch_add(1, Relaxed);
        // What another policy denied was not charged here.
        if outcome.allows() && !allowed {
            return;
        }
        let units = granted.filter(|_| allowed).unwrap_or(ruling.action().cost.get());
        self.units[outcome as usize].fetch_add(units, Relaxed);
        if is_near(ruling) {
            self.near.fetch_add(1, Relaxed);
        }
    }

    /// Decisions by outcome and source: those that can happen under `policy` as it is, and those that have happened.
    pub(crate) fn decisions(&self, policy: &Policy) -> impl Iterator<Item = (RulingOutcome, Source, u64)> {
        let pairs =
            RulingOutcome::ALL.iter().flat_map(|outcome| Source::ALL.iter().map(move |source| (*outcome, *source)));
        let counts = self.decisions.iter().flatten().map(|count| count.load(Relaxed));
        let counted = pairs.zip(counts).map(|((outcome, source), count)| (outcome, source, count));
        counted.filter(move |(outcome, source, count)| *count > 0 || is_usual(policy, *outcome, *source))
    }

    /// Units by outcome: those that can happen under `policy` as it is, and those that have happened.
    pub(crate) fn units(&self, policy: &Policy) -> impl Iterator<Item = (RulingOutcome, u64)> {
        let counts = self.units.iter().map(|count| count.load(Relaxed));
        let shadow = policy.mode() == Mode::Shadow;
        let counted = RulingOutcome::ALL.iter().copied().zip(counts);
        counted.filter(move |(outcome, count)| *count > 0 || outcome.is_shadow() == shadow)
    }

    fn is_used(&self) -> bool {
        self.decisions.iter().flatten().chain([&self.refunded]).any(|count| count.load(Relaxed) > 0)
    }
}

/// Whether a series exists before the first such decision: `rate()` does not see the first increase of a new series.
fn is_usual(policy: &Policy, outcome: RulingOutcome, source: Source) -> bool {
    let possible = match (source, policy.on_error()) {
        (Source::Store, _) => policy.limit().is_some(),
        (Source::Unlimited, _) => policy.limit().is_none() && outcome.allows(),
        (Source::OnErrorAllow, OnError::Allow) => policy.limit().is_some() && outcome.allows(),
        (Source::OnErrorDeny, OnError::Deny) => policy.limit().is_some() && !outcome.allows(),
        (Source::OnErrorLocal, OnError::Local) => policy.limit().is_some(),
        (Source::Shed, OnError::Allow | OnError::Deny) => policy.limit().is_some() && !outcome.allows(),
        (Source::Allotment, _) => {
            policy.allotment() && policy.limit().is_some() && outcome.allows() && !outcome.is_shadow()
        }
        (Source::DenyCache, _) => policy.cache_denials().is_some_and(|span| !span.is_zero()) && !outcome.allows(),
        _ => false,
    };
    possible && outcome.is_shadow() == (policy.mode() == Mode::Shadow)
}

/// Whether an allowed call has used at least `near` percent of the limit.
fn is_near(ruling: &Ruling) -> bool {
    let status = ruling.status();
    let used = status.limit().saturating_sub(status.remaining());
    let reached = u128::from(used) * 100 >= u128::from(status.limit()) * u128::from(ruling.policy().near());
    ruling.limit().is_some() && status.allowed() && reached
}

#[cfg(test)]
mod tests {
    use tallygate::policy::Rule;

    use super::*;

    fn loaded(policies: &[(&str, &str, &str)]) -> Loaded {
        let rule = |&(name, limit, partition): &(&str, &str, &str)| {
            (Policy::new(name, "api", limit).unwrap(), Rule::new().partition(partition))
        };
        let domain = Domain::new("api", policies.iter().map(rule)).unwrap();
        Loaded::new(PolicySet::new(vec![domain]).unwrap(), None)
    }

    /// The log said only that something had changed.
    #[test]
    fn a_reload_names_the_policies_that_changed() {
        let before = loaded(&[("stays", "1/s", "user"), ("gone", "1/s", "user"), ("changes", "1/s", "user")]);
        let after = loaded(&[("stays", "1/s", "user"), ("changes", "2/s", "user"), ("new", "1/s", "user")]);
        let [added, removed, changed] = ["api/new", "api/gone", "api/changes"].map(|name| Some(name.to_owned()));
        assert_eq!(after.changes_since(&before), Changes { added, removed, changed, rematched: None });
        let moved = loaded(&[("stays", "1/s", "address"), ("changes", "2/s", "user"), ("new", "1/s", "user")]);
        let rematched = Some("api".to_owned());
        assert_eq!(moved.changes_since(&after), Changes { added: None, removed: None, changed: None, rematched });
    }

    #[test]
    fn a_long_list_of_changes_is_cut() {
        let names: Vec<String> = (0..22).map(|number| number.to_string()).collect();
        assert!(listed(&names).unwrap().ends_with("18, 19 and 2 more"));
        assert_eq!(listed(Vec::<String>::new()), None);
    }
}
