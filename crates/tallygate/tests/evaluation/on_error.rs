//! What each policy answers when the store cannot.

use super::*;

#[test]
fn each_policy_answers_for_itself_when_the_store_cannot() {
    let with = |on_error| policy("p", "1/h").with_on_error(on_error);
    let down = |policy| {
        let scene = Scene::of(vec![policy]);
        scene.switch_off();
        let seen: Vec<(Outcome, Source)> =
            (0..2).map(|_| scene.take(1)).map(|one| (one.outcome(), one.rulings()[0].source())).collect();
        seen
    };
    assert_eq!(down(with(OnError::Allow)), [(Outcome::Allowed, Source::OnErrorAllow); 2]);
    assert_eq!(down(with(OnError::Deny)), [(Outcome::Unavailable, Source::OnErrorDeny); 2]);
    assert_eq!(
        down(with(OnError::Local)),
        [(Outcome::Allowed, Source::OnErrorLocal), (Outcome::Denied, Source::OnErrorLocal)]
    );
}

#[test]
fn one_policy_that_denies_on_error_keeps_the_others_uncharged() {
    let scene = Scene::of(vec![policy("deny", "9/h").with_on_error(OnError::Deny), policy("local", "1/h")]);
    scene.switch_off();
    for _ in 0..3 {
        let verdict = scene.take(1);
        assert_eq!(verdict.outcome(), Outcome::Unavailable);
        assert_eq!(verdict.rulings()[1].status().remaining(), 1);
        assert!(verdict.store_error().is_some());
    }
}

/// Each call that a quota refused took a unit of the share of another policy.
#[test]
fn a_quota_that_denies_on_error_keeps_the_others_uncharged() {
    let quota = |on_error| policy("quota", "9/h").with_mode(Mode::Quota).with_on_error(on_error);
    for (on_error, cut) in [(OnError::Deny, Scene::switch_off as fn(&Scene)), (OnError::Allow, Scene::overload)] {
        let scene = Scene::of(vec![quota(on_error), policy("local", "1/h")]);
        cut(&scene);
        for _ in 0..3 {
            let verdict = scene.take(1);
            assert_eq!(verdict.outcome(), Outcome::Unavailable);
            assert_eq!(verdict.rulings()[1].status().remaining(), 1);
        }
    }
}

/// The other descriptor of the same quota counted as one that still fits.
#[test]
fn a_quota_of_two_descriptors_that_denies_on_error_keeps_the_others_uncharged() {
    let quota = policy("quota", "9/h").with_mode(Mode::Quota).with_on_error(OnError::Deny);
    let scene = Scene::of(vec![quota, policy("local", "9/h")]);
    scene.switch_off();
    let twice = [(); 2].map(|()| Ask::check(Descriptor::new(), Cost::ONE));
    let denied = scene.ask_all(&twice);
    assert_eq!(denied.outcome(), Outcome::Unavailable);
    assert!(denied.rulings().iter().all(|ruling| ruling.charged() == 0), "{denied:?}");
}

#[test]
fn a_refund_that_fails_gives_nothing_back_and_denies_nothing() {
    for on_error in [OnError::Allow, OnError::Deny, OnError::Local] {
        for late in [false, true] {
            let scene = Scene::of(vec![policy("p", "9/h").with_on_error(on_error)]);
            if late {
                scene.overload()
            } else {
                scene.switch_off()
            }
            let verdict = scene.ask(Verb::Refund, 3);
            assert!(verdict.allowed() && verdict.store_error().is_some());
            let ruling = &verdict.rulings()[0];
            assert_eq!((ruling.source(), ruling.refunded()), (Source::OnErrorAllow, 0), "{on_error:?}");
        }
    }
}

/// A cost that no limit could hold was allowed on error, if the same subject was asked about before it with a small one.
#[test]
fn a_cost_above_the_capacity_is_denied_on_error_whatever_stands_before_it() {
    let rule = || Rule::new().when("user", Want::one_of(["*"])).partition("user");
    let user = || Descriptor::new().with("user", "42");
    for on_error in [OnError::Allow, OnError::Local] {
        let scene = Scene::with_rules(vec![(policy("p", "10/h").with_on_error(on_error), rule())]);
        scene.switch_off();
        let asks = [Ask::check(user(), Cost::ONE), Ask::check(user().with("path", "/"), Cost::new(1000).unwrap())];
        let verdict = scene.ask_all(&asks);
        assert_eq!(verdict.outcome(), Outcome::Denied, "{on_error:?}");
        for ruling in verdict.rulings() {
            assert_eq!((ruling.source(), ruling.status().retry_after()), (Source::TooCostly, None), "{on_error:?}");
        }
    }
}

#[test]
fn a_shadow_of_a_dead_store_refuses_nothing() {
    let shadow = policy("p", "1/h").with_mode(Mode::Shadow).with_on_error(OnError::Deny);
    let scene = Scene::of(vec![shadow, policy("local", "5/h")]);
    scene.switch_off();
    assert!(scene.take(1).allowed());
}

/// A shadow of zero denied the call when the store was down, although the other policy fails open.
#[test]
fn a_shadow_of_zero_denies_nothing_when_the_store_is_down() {
    let shadow = policy("shadow", "0/h").with_mode(Mode::Shadow);
    let scene = Scene::of(vec![shadow, policy("real", "9/h").with_on_error(OnError::Allow)]);
    scene.switch_off();
    let looked = scene.ask(Verb::Peek, 1);
    assert!(looked.allowed());
    let sources: Vec<Source> = looked.rulings().iter().map(Ruling::source).collect();
    assert_eq!(sources, [Source::ZeroLimit, Source::OnErrorAllow]);
}

/// A flood made every call wait in this process until its deadline, and `on_error: allow` admitted 246,066 of 100.
#[test]
fn a_call_that_waited_in_this_process_is_never_allowed_by_on_error() {
    let with = |on_error| policy("p", "2/h").with_on_error(on_error);
    for on_error in [OnError::Allow, OnError::Deny] {
        let scene = Scene::of(vec![with(on_error)]);
        scene.overload();
        for verb in [Verb::Check, Verb::Peek] {
            let shed = scene.ask(verb, 1);
            assert_eq!((shed.outcome(), shed.rulings()[0].source()), (Outcome::Unavailable, Source::Shed));
            assert_eq!(shed.rulings()[0].charged(), 0);
        }
    }
    let scene = Scene::of(vec![with(OnError::Local)]);
    scene.overload();
    let answers: Vec<_> = (0..3).map(|_| scene.take(1)).map(|one| (one.allowed(), one.rulings()[0].source())).collect();
    assert_eq!(answers, [true, true, false].map(|allowed| (allowed, Source::OnErrorLocal)));
    // One that sheds denies the call, so the other is not charged.
    let scene = Scene::of(vec![with(OnError::Allow), policy("q", "1/h")]);
    scene.overload();
    for _ in 0..3 {
        let shed = scene.take(1);
        assert_eq!(shed.outcome(), Outcome::Unavailable);
        assert_eq!(shed.rulings()[1].status().remaining(), 1);
    }
}

/// A policy that could not be evaluated hid the wait of the one that denied.
#[test]
fn an_unknown_status_does_not_bind_next_to_a_known_one() {
    let unknown = policy("unknown", "9/h").with_on_error(OnError::Deny);
    let scene = Scene::of(vec![unknown, policy("known", "1/min")]);
    // In one call the other policy would keep it from being charged.
    let alone = Scene::of(vec![policy("known", "1/min")]);
    alone.switch_off();
    alone.take(1);
    let scene = Scene { stores: scene.stores.with_local(Arc::clone(alone.stores.local())), ..scene };
    scene.switch_off();
    let denied = scene.take(1);
    assert_eq!(denied.outcome(), Outcome::Denied);
    assert_eq!(denied.binding().unwrap().policy().name(), "known");
}
