//! Answers and refunds without waiting for the store.

use std::sync::Mutex;

use super::*;
use tallygate::{Decision, Store, StoreError};

fn store() -> MemoryStore {
    MemoryStore::builder().clock(ManualClock::new(Timestamp::from_micros(1_000_000_000))).build()
}

/// Whatever needs a verdict is left to an evaluation, and nothing is charged.
#[test]
fn only_an_enforcing_policy_that_allows_needs_no_verdict() {
    let (store, plain, subject) = (store(), policy("p", "2/h"), Subject::new([]));
    let left = |policy: &Policy, cost| {
        let status = policy.check_now(&store, &subject, Cost::new(cost).unwrap());
        status.map(|status| status.remaining())
    };
    let drains = plain.clone().with_excess(Excess::Drain);
    let [shadow, quota] = [Mode::Shadow, Mode::Quota].map(|mode| plain.clone().with_mode(mode));
    for other in [shadow, quota, drains, Policy::unlimited("p", "d").unwrap(), policy("p", "0/h")] {
        assert_eq!(left(&other, 1), None);
    }
    assert_eq!(left(&plain, 3), None);
    assert!(store.is_empty());
    assert_eq!([1, 1, 1].map(|cost| left(&plain, cost)), [Some(1), Some(0), None]);
    assert_eq!(plain.check_now(&FaultyStore::new(store), &subject, Cost::ONE), None);
}

#[test]
fn a_refund_without_waiting_gives_everything_back_or_nothing() {
    // More than one call may have, so that they are given back by two.
    let policies = || (0..40).map(|at| policy(&format!("p{at}"), "9/h").with_mode(Mode::Shadow)).collect();
    let charged = |verdict: &Verdict| -> u64 { verdict.rulings().iter().map(Ruling::charged).sum() };
    let scene = Scene::of(policies());
    let at_once = scene.stores.with_shared(store());
    let ask = Ask::check(Descriptor::new(), Cost::ONE);
    let mut verdict = scene.set.domain("d").unwrap().evaluate(&[ask]).decide_now(&at_once).unwrap();
    assert_eq!(charged(&verdict), 40);
    assert!(verdict.refund_now(&at_once));
    assert_eq!(charged(&verdict), 0);
    assert!(verdict.rulings().iter().all(|ruling| ruling.status().remaining() == 9));

    let mut waits = scene.take(1);
    assert!(!waits.refund_now(&scene.stores));
    assert_eq!((charged(&waits), scene.remaining()), (40, vec![8; 40]));

    // The local store never waits.
    let scene = Scene::of(policies());
    scene.switch_off();
    let mut local = scene.take(9);
    assert_eq!(charged(&local), 9 * 40);
    assert!(local.refund_now(&scene.stores));
    assert_eq!((charged(&local), scene.remaining()), (0, vec![9; 40]));
}

/// Answers at once, and remembers the number of checks of each call.
struct AtOnce(MemoryStore, Mutex<Vec<usize>>);

impl Store for AtOnce {
    async fn call(&self, call: &Call<'_>) -> Result<Decision, StoreError> {
        self.0.call(call).await
    }

    fn call_now(&self, call: &Call<'_>) -> Option<Result<Decision, StoreError>> {
        self.1.lock().unwrap().push(call.checks().len());
        self.0.call_now(call)
    }
}

#[test]
fn refunds_of_more_limits_than_a_call_may_have_take_several_calls() {
    let scene = |mode: Mode| Scene::of((0..70).map(|at| policy(&format!("p{at}"), "9/h").with_mode(mode)).collect());
    let (shadows, enforced) = (scene(Mode::Shadow), scene(Mode::Enforce));
    let stores = shadows.stores.with_shared(AtOnce(store(), Mutex::default()));
    for (scene, verb) in
        [(&shadows, Verb::Check), (&shadows, Verb::Refund), (&shadows, Verb::Check), (&enforced, Verb::Refund)]
    {
        let ask = Ask::new(Descriptor::new(), Action::new(verb, Cost::ONE));
        let verdict = scene.set.domain("d").unwrap().evaluate(&[ask]).decide_now(&stores).unwrap();
        assert!(verdict.rulings().iter().all(|ruling| ruling.charged() + ruling.refunded() == 1));
        assert_eq!(std::mem::take(&mut *stores.shared().1.lock().unwrap()), [32, 32, 6], "{verb:?}");
    }
}

/// A store in this process does not fail.
#[test]
fn the_local_store_follows_only_a_store_that_has_to_be_waited_for() {
    let evaluation =
        |scene: &Scene| scene.set.domain("d").unwrap().evaluate(&[Ask::check(Descriptor::new(), Cost::ONE)]);
    let scene = Scene::of(vec![policy("p", "9/h").with_on_error(OnError::Local)]);
    let at_once = scene.stores.with_shared(store());
    assert!(evaluation(&scene).decide_now(&at_once).unwrap().allowed());
    assert!(ready(evaluation(&scene).decide(&at_once, None)).allowed());
    assert!(scene.stores.local().is_empty());
    assert!(ready(evaluation(&scene).decide(&scene.stores, None)).allowed());
    // What was charged, and that it was charged to follow.
    assert_eq!(scene.stores.local().len(), 2);
    let scene = Scene::of(vec![policy("p", "9/h").with_on_error(OnError::Allow)]);
    assert!(ready(evaluation(&scene).decide(&scene.stores, None)).allowed());
    assert!(scene.stores.local().is_empty(), "nobody would ask it");
}
