//! Random policies and calls against a simple model.

use std::collections::HashMap;

use proptest::prelude::*;
use tallygate::Store;
use tallygate::call::Effect;

use super::*;

/// A policy: its mode, its excess, its limit (`None`: unlimited), and whether it counts callers separately.
#[derive(Debug, Clone)]
struct Written {
    mode: Mode,
    excess: Excess,
    amount: Option<u64>,
    partitioned: bool,
}

impl Written {
    fn policy(&self, at: usize) -> Policy {
        let name = format!("p{at}");
        let policy = match self.amount {
            Some(amount) => Policy::new(name, "d", format!("{amount}/h fixed_window")),
            None => Policy::unlimited(name, "d"),
        };
        policy.unwrap().with_mode(self.mode).with_excess(self.excess)
    }

    fn rule(&self) -> Rule {
        if self.partitioned { Rule::new().partition("user") } else { Rule::new() }
    }
}

/// The caller, and the action.
type Request = (usize, Action);

fn policies() -> impl Strategy<Value = Vec<Written>> {
    let mode = prop::sample::select(Mode::ALL);
    let excess = prop::sample::select(Excess::ALL);
    let amount = prop_oneof![1 => Just(None), 1 => Just(Some(0)), 8 => (1..9_u64).prop_map(Some)];
    let policy = (mode, excess, amount, any::<bool>());
    let policy = policy.prop_map(|(mode, excess, amount, partitioned)| Written { mode, excess, amount, partitioned });
    prop::collection::vec(policy, 1..5)
}

fn calls() -> impl Strategy<Value = Vec<Vec<Request>>> {
    let cost = || (1..7_u64).prop_map(|units| Cost::new(units).unwrap());
    let charge = prop_oneof![
        6 => cost().prop_map(|cost| Action::new(Verb::Check, cost)),
        1 => cost().prop_map(|cost| Action::new(Verb::Peek, cost)),
        1 => cost().prop_map(|cost| Action::new(Verb::Refund, cost)),
    ];
    prop::collection::vec(prop::collection::vec((0..2_usize, charge), 1..4), 1..12)
}

/// The used units, by policy and subject.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Model(HashMap<(usize, usize), u64>);

impl Model {
    fn used(&self, key: (usize, usize)) -> u64 {
        self.0.get(&key).copied().unwrap_or(0)
    }

    fn add(&mut self, key: (usize, usize), units: u64) {
        *self.0.entry(key).or_default() += units;
    }

    /// Decides a call as documented. Returns whether it is allowed.
    fn call(&mut self, policies: &[Written], call: &[Request]) -> bool {
        // Whom the policies match, and at which cost: one entry per policy, subject and effect.
        let mut met: [HashMap<(usize, usize), u64>; 3] = Default::default();
        for (at, policy) in policies.iter().enumerate() {
            for (user, charge) in call {
                let cost = charge.cost.get();
                let kind = match charge.verb.effect() {
                    Effect::GivesBack => 0,
                    Effect::Reads => 1,
                    Effect::Charges => 2,
                };
                let most = met[kind].entry((at, if policy.partitioned { *user } else { 0 })).or_default();
                *most = (*most).max(cost);
            }
        }
        let [backs, looks, takes] = met;
        for (key, units) in &backs {
            let used = self.used(*key);
            self.0.insert(*key, used - used.min(*units));
        }
        let free = |model: &Self, (at, user): (usize, usize)| match policies[at].amount {
            None => u64::MAX,
            Some(amount) => amount - model.used((at, user)),
        };
        let fits = |model: &Self, key: (usize, usize), cost: u64| free(model, key) >= cost;
        let of = |mode: Mode| move |key: &&(usize, usize)| policies[key.0].mode == mode;
        let fit = |mode: Mode| {
            let looked = looks.iter().filter(move |(key, _)| of(mode)(key)).map(|(key, cost)| fits(self, *key, *cost));
            let taken = takes.iter().filter(move |(key, _)| of(mode)(key)).map(|(key, cost)| fits(self, *key, *cost));
            looked.chain(taken).collect::<Vec<bool>>()
        };
        let given = backs.keys().any(|key| of(Mode::Quota)(&key));
        let quotas = fit(Mode::Quota);
        let enforced = fit(Mode::Enforce).into_iter().all(|fits| fits);
        let allowed = enforced && (given || quotas.is_empty() || quotas.contains(&true));
        let none_but_short_quotas = enforced && !allowed;
        for (key, cost) in takes {
            let (policy, free) = (&policies[key.0], free(self, key));
            let drains = policy.excess == Excess::Drain && free < cost;
            let units = match (allowed, policy.mode) {
                (true, _) if free >= cost => cost,
                (true, _) if drains => free,
                (false, Mode::Enforce) if drains => free,
                (false, Mode::Quota) if none_but_short_quotas && drains => free,
                _ => 0,
            };
            if policy.amount.is_some() {
                self.add(key, units);
            }
        }
        allowed
    }
}

struct Real<S> {
    stores: Stores<S>,
    set: PolicySet,
}

impl<S: Store> Real<S> {
    fn new(policies: &[Written], around: impl Fn(MemoryStore) -> S) -> Self {
        let rules = policies.iter().enumerate().map(|(at, policy)| (policy.policy(at), policy.rule()));
        let clock = ManualClock::new(Timestamp::from_micros(1_000_000_000));
        let domain = Domain::new("d", rules).unwrap();
        let store = || MemoryStore::builder().clock(clock.clone()).build();
        let stores = Stores::new(around(store())).with_local(store().into());
        Self { stores, set: PolicySet::new(vec![domain]).unwrap() }
    }

    fn evaluate(&self, call: &[Request]) -> Evaluation {
        let ask = |(user, charge): &Request| Ask::new(Descriptor::new().with("user", user.to_string()), *charge);
        let asks: Vec<Ask> = call.iter().map(ask).collect();
        self.set.domain("d").unwrap().evaluate(&asks)
    }

    fn call(&self, call: &[Request]) -> Verdict {
        ready(self.evaluate(call).decide(&self.stores, None))
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn a_call_does_what_its_model_does(policies in policies(), calls in calls()) {
        let (mut model, real) = (Model::default(), Real::new(&policies, |store| store));
        for call in &calls {
            let before = model.clone();
            let allowed = model.call(&policies, call);
            let verdict = real.call(call);
            prop_assert_eq!(verdict.outcome() == Outcome::Allowed, allowed, "{:?} after {:?}", call, before);
            for (at, policy) in policies.iter().enumerate() {
                let Some(amount) = policy.amount else { continue };
                for user in 0..2 {
                    let looked = real.call(&[(user, Action::new(Verb::Peek, Cost::ONE))]);
                    let ruling = looked.rulings().iter().find(|ruling| ruling.policy().name() == format!("p{at}")).unwrap();
                    let used = model.used((at, if policy.partitioned { user } else { 0 }));
                    prop_assert_eq!(ruling.status().remaining(), amount - used, "p{} {} after {:?}", at, user, call);
                }
            }
        }
    }

    /// As the middleware asks: first without waiting, then asynchronously if the store could not answer at once.
    #[test]
    fn a_failed_attempt_without_waiting_changes_no_decision(policies in policies(), calls in calls()) {
        let (plain, tried) = (Real::new(&policies, |store| store), Real::new(&policies, FaultyStore::new));
        for call in &calls {
            let mut evaluation = tried.evaluate(call);
            let verdict = evaluation.decide_now(&tried.stores);
            let verdict = verdict.unwrap_or_else(|| ready(evaluation.decide(&tried.stores, None)));
            prop_assert_eq!(verdict, plain.call(call), "{:?}", call);
        }
    }
}
