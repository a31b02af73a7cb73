//! Answers and refunds without waiting for the store.

use super::*;

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
