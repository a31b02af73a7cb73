//! The refund of a verdict, for callers that learn only afterwards whether a call counts.

use super::*;

/// After a refund the wait was reported as if the units still counted.
#[test]
fn after_a_complete_refund_there_is_no_wait() {
    for limit in ["5/min", "5/15min sliding_log", "5/h fixed_window"] {
        let scene = Scene::of(vec![policy("p", limit)]);
        let after = ready(scene.take(2).refund(&scene.stores));
        let status = *after.rulings()[0].status();
        assert_eq!((status.remaining(), status.reset_after()), (5, Duration::ZERO), "{limit}");
    }
}

/// Only what was charged is given back, and other questions about the same state keep their answers.
#[test]
fn a_refund_changes_only_the_rulings_that_were_charged() {
    let full = policy("full", "1/h").with_mode(Mode::Shadow);
    let scene = Scene::of(vec![full, policy("p", "9/h")]);
    scene.take(1);
    let look = Ask::new(Descriptor::new(), Action::new(Verb::Peek, Cost::ONE));
    let charged = scene.ask_all(&[Ask::check(Descriptor::new(), Cost::new(2).unwrap()), look]);
    let of = |verdict: &Verdict| -> Vec<(u64, u64)> {
        verdict.rulings().iter().map(|ruling| (ruling.charged(), ruling.status().remaining())).collect()
    };
    assert_eq!(of(&charged), [(0, 0), (0, 0), (2, 6), (0, 8)]);
    let after = ready(charged.refund(&scene.stores));
    assert_eq!(of(&after), [(0, 0), (0, 0), (0, 8), (0, 8)]);
    assert_eq!(scene.remaining(), [0, 8]);
}

/// What the local store had charged in one window, while the store was unreachable, was given back to the next.
#[test]
fn a_local_charge_is_not_given_back_to_another_window() {
    let clock = ManualClock::new(Timestamp::from_micros(1_000_000_000));
    let local = MemoryStore::builder().clock(clock.clone()).build();
    let scene = Scene::of(vec![policy("p", "2/2s fixed_window")]);
    let scene = Scene { stores: scene.stores.with_local(Arc::new(local)), ..scene };
    scene.switch_off();
    let early = scene.take(2);
    assert_eq!(early.rulings()[0].source(), Source::OnErrorLocal);
    clock.advance(Duration::from_secs(2));
    assert!(scene.take(2).allowed());
    let after = ready(early.refund(&scene.stores));
    assert_eq!(after.rulings()[0].charged(), 2);
    assert!(!scene.take(1).allowed());
}

/// The charge of a state was looked for in the first ruling about it, which may have no limit.
#[test]
fn a_charge_behind_a_ruling_without_a_limit_is_given_back() {
    let internal = vec![("plan".to_owned(), Want::one_of(["internal"]))];
    let rule = Rule::new().partition("user").override_unlimited(internal);
    let scene = Scene::with_rules(vec![(policy("p", "5/h"), rule)]);
    let user = |plan| Descriptor::new().with("user", "42").with("plan", plan);
    let asks = ["internal", "free"].map(|plan| Ask::check(user(plan), Cost::ONE));
    let charged = scene.ask_all(&asks);
    assert_eq!(charged.rulings()[1].charged(), 1);
    let after = ready(charged.refund(&scene.stores));
    assert_eq!(after.rulings()[1].charged(), 0);
    let left = scene.ask_all(&[Ask::new(user("free"), Action::new(Verb::Peek, Cost::ONE))]);
    assert_eq!(left.rulings()[0].status().remaining(), 5);
}
