//! From a call under policies to its verdict: modes, excess, quotas, failing stores.

mod local; // what this process decides on its own, and how it follows the store
mod now; // answers and refunds without waiting
mod on_error; // what is answered when the store cannot
mod partial; // a store that answers for some checks only
mod payers; // policies with several payers
mod properties; // random policies and calls against a model
mod refunds; // refunds of a verdict
mod requests; // calls with an id
mod up_to; // calls that take what is left

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tallygate::call::{Call, Verb};
use tallygate::clock::{ManualClock, Timestamp};
use tallygate::decision::Source;
use tallygate::policy::{
    Action, Ask, Descriptor, Domain, Evaluation, Excess, Match, Mode, OnError, Outcome, Policy, PolicySet, Rule,
    Ruling, Stores, Subject, Verdict, Want,
};
use tallygate::{Cost, MemoryStore};
use tallygate_testkit::FaultyStore;

/// The output of a future that does not wait.
fn ready<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("it waits"),
    }
}

struct Scene {
    stores: Stores<FaultyStore>,
    set: PolicySet,
}

impl Scene {
    /// Policies of one domain; each counts by its own name, and all apply to every call.
    fn of(policies: Vec<Policy>) -> Self {
        Self::with_rules(policies.into_iter().map(|policy| (policy, Rule::new())).collect())
    }

    fn with_rules(policies: Vec<(Policy, Rule)>) -> Self {
        let domain = Domain::new("d", policies).unwrap();
        let store = |now| MemoryStore::builder().clock(ManualClock::new(Timestamp::from_micros(now))).build();
        let stores = Stores::new(FaultyStore::new(store(1_000_000_000))).with_local(Arc::new(store(5_000_000)));
        Self { stores, set: PolicySet::new(vec![domain]).unwrap() }
    }

    fn ask(&self, verb: Verb, cost: u64) -> Verdict {
        let action = Action::new(verb, Cost::new(cost).unwrap());
        self.ask_all(&[Ask::new(Descriptor::new(), action)])
    }

    fn ask_all(&self, asks: &[Ask]) -> Verdict {
        ready(self.set.domain("d").unwrap().evaluate(asks).decide(&self.stores, None))
    }

    fn take(&self, cost: u64) -> Verdict {
        self.ask(Verb::Check, cost)
    }

    fn remaining(&self) -> Vec<u64> {
        self.ask(Verb::Peek, 1).rulings().iter().map(|ruling| ruling.status().remaining()).collect()
    }

    fn overload(&self) {
        self.stores.shared().switch().overload();
    }

    fn switch_off(&self) {
        self.stores.shared().switch().off();
    }
}

fn policy(name: &str, limit: &str) -> Policy {
    Policy::new(name, "d", limit).unwrap()
}

#[test]
fn enforced_policies_are_charged_all_or_none() {
    let scene = Scene::of(vec![policy("small", "1/h"), policy("large", "5/h")]);
    assert!(scene.take(1).allowed());
    assert_eq!(scene.take(1).outcome(), Outcome::Denied);
    assert_eq!(scene.remaining(), [0, 4]);
    assert_eq!(scene.take(1).binding().unwrap().policy().name(), "small");
}

#[test]
fn a_shadow_is_counted_and_reported_and_never_refuses() {
    let scene = Scene::of(vec![policy("shadow", "1/h").with_mode(Mode::Shadow), policy("real", "3/h")]);
    assert!(scene.take(1).allowed());
    let second = scene.take(1);
    assert!(second.allowed() && !second.rulings()[0].status().allowed());
    assert_eq!(second.binding().unwrap().policy().name(), "real");
    assert_eq!(scene.remaining(), [0, 1]);
}

/// Shadows that did not fit into the first calls were left out if their verb was the second.
#[test]
fn many_shadows_are_all_asked_about_whatever_their_verbs() {
    let scene = Scene::of((0..40).map(|at| policy(&format!("p{at}"), "9/h").with_mode(Mode::Shadow)).collect());
    let ask = |verb| Ask::new(Descriptor::new(), Action::new(verb, Cost::ONE));
    let verdict = scene.ask_all(&[ask(Verb::Peek), ask(Verb::Check)]);
    assert!(verdict.rulings().iter().all(|ruling| ruling.source() == Source::Store));
    assert_eq!(scene.remaining(), [8; 40]);
}

#[test]
fn a_shadow_is_not_charged_for_what_was_denied() {
    let scene = Scene::of(vec![policy("shadow", "9/h").with_mode(Mode::Shadow), policy("real", "1/h")]);
    scene.take(1);
    assert!(!scene.take(1).allowed());
    assert_eq!(scene.remaining(), [8, 0]);
}

#[test]
fn quotas_deny_only_when_all_of_them_are_used_up() {
    let quota = |name, limit| policy(name, limit).with_mode(Mode::Quota);
    let scene = Scene::of(vec![quota("one", "1/h"), quota("two", "2/h"), policy("real", "5/h")]);
    assert!(scene.take(1).allowed());
    let second = scene.take(1);
    assert!(second.allowed() && !second.rulings()[0].status().allowed());
    assert_eq!(second.binding().unwrap().policy().name(), "two");
    assert_eq!(scene.take(1).outcome(), Outcome::Denied);
    assert_eq!(scene.remaining(), [0, 0, 3]);
}

#[test]
fn a_quota_gets_back_what_an_enforced_policy_denied() {
    let scene = Scene::of(vec![policy("quota", "9/h").with_mode(Mode::Quota), policy("real", "1/h")]);
    scene.take(1);
    assert!(!scene.take(1).allowed());
    assert_eq!(scene.remaining(), [8, 0]);
}

#[test]
fn a_cost_that_does_not_fit_is_charged_nothing_or_takes_what_is_left() {
    let refuse = Scene::of(vec![policy("p", "10/h")]);
    refuse.take(7);
    assert_eq!(refuse.take(5).rulings()[0].charged(), 0);
    assert_eq!(refuse.remaining(), [3]);

    let drain = Scene::of(vec![policy("p", "10/h").with_excess(Excess::Drain)]);
    drain.take(7);
    let drained = drain.take(5);
    assert_eq!((drained.outcome(), drained.rulings()[0].charged()), (Outcome::Denied, 3));
    assert_eq!(drain.remaining(), [0]);
}

/// A drained call was reported to fit at once: the wait was that of the smaller charge, which had fitted.
#[test]
fn a_drained_call_reports_the_wait_until_its_full_cost_would_fit() {
    let scene = Scene::of(vec![policy("p", "10/h").with_excess(Excess::Drain)]);
    scene.take(7);
    let wait = |verdict: Verdict| verdict.binding().unwrap().status().retry_after();
    assert_eq!(wait(scene.take(5)), Some(Duration::from_secs(1800)));
    assert_eq!(wait(scene.take(11)), None);
}

#[test]
fn a_cost_above_the_capacity_has_its_own_source_and_is_never_charged() {
    let scene = Scene::of(vec![policy("p", "10/h"), policy("q", "100/h")]);
    let verdict = scene.take(11);
    assert_eq!(verdict.outcome(), Outcome::Denied);
    assert_eq!(verdict.rulings()[0].source(), Source::TooCostly);
    assert_eq!(scene.remaining(), [10, 100]);
    let drain = Scene::of(vec![policy("p", "10/h").with_excess(Excess::Drain)]);
    assert_eq!(drain.take(1000).rulings()[0].source(), Source::Store);
    assert_eq!(drain.remaining(), [0]);
}

#[test]
fn more_than_the_capacity_may_be_asked_back() {
    let scene = Scene::of(vec![policy("p", "5/h")]);
    scene.take(3);
    let given = scene.ask(Verb::Refund, 9);
    assert_eq!((given.rulings()[0].source(), given.rulings()[0].refunded()), (Source::Store, 3));
}

#[test]
fn giving_back_never_denies_and_says_how_much_counted() {
    let scene = Scene::of(vec![policy("p", "3/h")]);
    scene.take(3);
    let back = scene.ask(Verb::Refund, 2);
    assert!(back.allowed());
    assert_eq!((back.rulings()[0].refunded(), back.rulings()[0].status().remaining()), (2, 2));
}

#[test]
fn one_subject_in_two_descriptors_counts_once_with_the_larger_cost() {
    let rule = Rule::new().when("user", Want::one_of(["*"])).partition("user");
    let scene = Scene::with_rules(vec![(policy("p", "10/h"), rule)]);
    let user = || Descriptor::new().with("user", "42");
    let asks = [Ask::check(user(), Cost::ONE), Ask::check(user().with("path", "/"), Cost::new(4).unwrap())];
    let verdict = scene.ask_all(&asks);
    let remaining: Vec<u64> = verdict.rulings().iter().map(|ruling| ruling.status().remaining()).collect();
    assert_eq!(remaining, [6, 6]);
}

#[test]
fn a_limit_supplied_by_a_request_replaces_the_policies() {
    let scene = Scene::of(vec![policy("p", "1/h")]);
    let ask = Ask::check(Descriptor::new().with("user", "42"), Cost::ONE).with_limit("2/h").unwrap();
    let outcomes: Vec<bool> = (0..3).map(|_| scene.ask_all(std::slice::from_ref(&ask)).allowed()).collect();
    assert_eq!(outcomes, [true, true, false]);
    assert_eq!(scene.remaining(), [1]);
}

/// The second limit was ignored, because both were one state: three calls passed 1/min.
#[test]
fn two_limits_supplied_by_requests_are_two_states() {
    let scene = Scene::of(vec![policy("p", "1/h")]);
    let ask = |limit: &str| Ask::check(Descriptor::new().with("user", "42"), Cost::ONE).with_limit(limit).unwrap();
    let asks = [ask("100/h"), ask("1/min")];
    assert_eq!([scene.ask_all(&asks).allowed(), scene.ask_all(&asks).allowed()], [true, false]);
}

#[test]
fn near_is_reported_above_the_threshold() {
    let scene = Scene::of(vec![policy("p", "10/h").with_near(80)]);
    let near: Vec<bool> = (0..10).map(|_| scene.take(1).rulings()[0].near()).collect();
    assert_eq!(near, [false, false, false, false, false, false, false, false, true, true]);
    let denied = scene.take(1);
    assert!(!denied.allowed() && !denied.rulings()[0].near());
    let unlimited = Scene::of(vec![Policy::unlimited("p", "d").unwrap()]);
    assert!(!unlimited.take(1).rulings()[0].near());
    let many = Scene::of(vec![policy("p", "1000/h").with_near(80)]);
    assert_eq!([800, 1].map(|cost| many.take(cost).rulings()[0].near()), [false, true]);
}

/// Of two descriptors of one subject the larger cost is charged once; each keeps the limit that it was asked about with, unless this
/// process decides, with its share.
#[test]
fn rulings_of_one_state_keep_their_limits_but_for_a_share() {
    let pro = vec![("plan".to_owned(), Want::one_of(["pro"]))];
    let rule = Rule::new().partition("user").override_limit(pro, "50/h").unwrap();
    let scene = Scene::with_rules(vec![(policy("p", "9/h").with_on_error(OnError::Local), rule)]);
    let asks =
        ["pro", "free"].map(|plan| Ask::check(Descriptor::new().with("user", "42").with("plan", plan), Cost::ONE));
    let limits = || -> Vec<String> {
        let verdict = scene.ask_all(&asks);
        verdict.rulings().iter().map(|ruling| ruling.limit().unwrap().to_string()).collect()
    };
    assert_eq!(limits(), ["50/h", "9/h"]);
    scene.switch_off();
    assert_eq!(limits(), ["50/h", "50/h"]);
}

#[test]
fn a_verdict_names_its_descriptors_its_instant_and_what_binds() {
    let free = Policy::unlimited("free", "d").unwrap();
    let scene = Scene::with_rules(vec![(free, Rule::new()), (policy("p", "9/h"), Rule::new().partition("user"))]);
    let asks = ["a", "b"].map(|user| Ask::check(Descriptor::new().with("user", user), Cost::ONE));
    let verdict = scene.ask_all(&asks);
    assert_eq!(verdict.rulings().iter().map(Ruling::descriptor).collect::<Vec<_>>(), [0, 1, 0, 1]);
    assert_eq!(verdict.binding().unwrap().policy().name(), "p");
    assert_eq!((verdict.decided_at(), verdict.split()), (Some(Timestamp::from_micros(1_000_000_000)), false));
    let shadow = policy("shadow", "2/h").with_mode(Mode::Shadow);
    let next_to_less = Scene::of(vec![shadow, policy("p", "9/h")]).take(1);
    assert_eq!(next_to_less.binding().unwrap().policy().name(), "p");
    let unlimited = scene.ask_all(&[Ask::check(Descriptor::new(), Cost::ONE)]);
    assert!(unlimited.binding().is_none() && unlimited.decided_at().is_none() && !unlimited.split());
}

#[test]
fn reset_drops_the_states_of_all_policies_that_match() {
    let scene = Scene::of(vec![policy("p", "1/h"), policy("q", "1/h")]);
    scene.take(1);
    let reset = scene.ask(Verb::Reset, 1);
    assert_eq!(reset.states().map(|ruling| ruling.status().units()).sum::<u64>(), 2);
    assert!(scene.take(1).allowed());
}

/// The whole cost was given back where only a part of it had been drained.
#[test]
fn a_drained_quota_gets_back_no_more_than_was_drained() {
    let quota = policy("quota", "10/h fixed_window").with_mode(Mode::Quota).with_excess(Excess::Drain);
    let scene = Scene::of(vec![quota, policy("other", "99/h").with_mode(Mode::Quota), policy("real", "8/h")]);
    assert!(scene.take(7).allowed());
    assert!(!scene.take(5).allowed());
    assert_eq!(scene.remaining(), [3, 92, 1]);
}

/// Whether a quota's drained units were given back depended on whether an enforcing policy applied too.
#[test]
fn a_quota_that_denies_keeps_what_it_drained_whatever_other_policies_apply() {
    let quota = || policy("quota", "10/h fixed_window").with_mode(Mode::Quota).with_excess(Excess::Drain);
    for others in [vec![], vec![policy("real", "99/h")]] {
        let scene = Scene::of([vec![quota()], others].concat());
        scene.take(7);
        assert_eq!(scene.take(5).outcome(), Outcome::Denied);
        assert_eq!(scene.remaining()[0], 0);
    }
}

/// The peeked quota stood for all of them: the other was not charged, and the call passed for free.
#[test]
fn a_peek_at_a_used_up_quota_does_not_make_another_free() {
    let quota = |name, user| {
        let rule = Rule::new().when("user", Want::one_of([user]));
        (policy(name, "1/h").with_mode(Mode::Quota), rule)
    };
    let scene = Scene::with_rules(vec![quota("a", "a"), quota("b", "b")]);
    let ask = |user: &str, verb| {
        let action = Action::new(verb, Cost::ONE);
        Ask::new(Descriptor::new().with("user", user), action)
    };
    scene.ask_all(&[ask("a", Verb::Check)]);
    let mixed = [ask("a", Verb::Peek), ask("b", Verb::Check)];
    let allowed: Vec<bool> = (0..3).map(|_| scene.ask_all(&mixed).allowed()).collect();
    assert_eq!(allowed, [true, false, false]);
}

#[test]
fn a_limit_of_zero_does_not_change_the_source_of_another() {
    let scene = Scene::of(vec![policy("zero", "0/h"), policy("real", "9/h")]);
    let sources: Vec<Source> = scene.take(1).rulings().iter().map(Ruling::source).collect();
    assert_eq!(sources, [Source::ZeroLimit, Source::Store]);
}

/// It was an error, which Envoy lets pass: a caller who matched 33 policies was not limited at all.
#[test]
fn a_call_of_too_many_limits_is_denied_and_nothing_is_charged() {
    let many = (0..=Call::MAX_CHECKS).map(|at| policy(&format!("p{at}"), "9/h").with_on_error(OnError::Allow));
    let quota = policy("quota", "9/h").with_mode(Mode::Quota);
    let scene = Scene::of(many.chain([quota, policy("shadow", "9/h").with_mode(Mode::Shadow)]).collect());
    for verb in [Verb::Check, Verb::Peek] {
        let denied = scene.ask(verb, 1);
        assert_eq!(denied.outcome(), Outcome::Denied);
        assert!(denied.rulings().iter().all(|ruling| ruling.source() == Source::TooMany));
        assert!(scene.stores.shared().store.is_empty());
    }
    // What was charged one by one before can still be given back.
    assert_eq!(scene.ask(Verb::Refund, 1).outcome(), Outcome::Allowed);
}

#[test]
fn shadows_do_not_count_towards_the_most_limits_of_a_call() {
    let policies = |enforced: usize, shadows: usize| {
        let enforced = (0..enforced).map(|at| policy(&format!("p{at}"), "9/h"));
        let shadows = (0..shadows).map(|at| policy(&format!("s{at}"), "9/h").with_mode(Mode::Shadow));
        Scene::of(enforced.chain(shadows).collect())
    };
    let scene = policies(Call::MAX_CHECKS, 2 * Call::MAX_CHECKS);
    let allowed = scene.take(1);
    assert!(allowed.allowed());
    assert!(allowed.rulings().iter().all(|ruling| ruling.charged() == 1));
}

/// A cost above the limit reported that nothing was left.
#[test]
fn a_cost_above_the_limit_reports_what_is_left() {
    let scene = Scene::of(vec![policy("p", "10/h")]);
    scene.take(1);
    let denied = scene.take(11);
    let status = *denied.binding().unwrap().status();
    assert_eq!((status.allowed(), status.remaining(), status.retry_after()), (false, 9, None));
}

/// Two copies of one policy were two checks of one state, which a call must not have.
#[test]
fn a_policy_that_a_matcher_holds_twice_is_charged_once() {
    let scene = Scene::of(vec![policy("p", "5/h")]);
    let found = |descriptor| Match::new(Arc::new(policy("p", "5/h")), descriptor, Subject::new([]));
    let evaluation = Evaluation::new([found(0), found(1)], Action::new(Verb::Check, Cost::ONE));
    let verdict = ready(evaluation.decide(&scene.stores, None));
    assert_eq!(verdict.states().count(), 1);
    assert_eq!(verdict.rulings().iter().map(|ruling| ruling.status().remaining()).collect::<Vec<_>>(), [4, 4]);
}
