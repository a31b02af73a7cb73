//! Calls with an id.

use tallygate::request::RequestId;

use super::*;

impl Scene {
    fn evaluate(&self, asks: &[Ask]) -> Evaluation {
        self.set.domain("d").unwrap().evaluate(asks).request_id(RequestId::new("id").unwrap())
    }

    fn repeat(&self, cost: u64) -> Verdict {
        let ask = Ask::check(Descriptor::new(), Cost::new(cost).unwrap());
        ready(self.evaluate(&[ask]).decide(&self.stores, None))
    }
}

#[test]
fn a_repeated_call_has_the_first_verdict_and_a_changed_one_is_denied_as_a_conflict() {
    // An error that a caller can bring about must not let it pass.
    let policies = ["a", "b"].map(|name| policy(name, "9/h").with_on_error(OnError::Allow));
    let scene = Scene::of(policies.to_vec());
    let first = scene.repeat(2);
    assert!(first.allowed() && !first.replayed() && !first.conflicts());
    let again = scene.repeat(2);
    assert!(again.allowed() && again.replayed());
    let statuses = |verdict: &Verdict| verdict.rulings().iter().map(|ruling| *ruling.status()).collect::<Vec<_>>();
    assert_eq!((statuses(&again), again.decided_at()), (statuses(&first), first.decided_at()));
    let other = scene.repeat(3);
    assert_eq!((other.outcome(), other.conflicts(), other.replayed()), (Outcome::Denied, true, false));
    assert!(other.store_error().is_none());
    assert_eq!(scene.remaining(), [7, 7]);
}

/// A shadow alone never denies; a conflict does.
#[test]
fn a_conflict_denies_whatever_the_modes() {
    for mode in Mode::ALL {
        let scene = Scene::of(vec![policy("p", "9/h").with_mode(*mode)]);
        assert!(scene.repeat(1).allowed());
        let other = scene.repeat(2);
        assert_eq!((other.allowed(), other.outcome(), other.hold()), (false, Outcome::Denied, None), "{mode}");
        assert_eq!(scene.remaining(), [8], "{mode}");
    }
}

#[test]
fn all_calls_of_a_question_are_repeated() {
    let shadows = (0..2 * Call::MAX_CHECKS).map(|at| policy(&format!("s{at}"), "9/h").with_mode(Mode::Shadow));
    let scene = Scene::of(shadows.chain([policy("p", "9/h")]).collect());
    assert!(scene.repeat(1).allowed());
    let again = scene.repeat(1);
    assert!(again.allowed() && again.replayed());
    assert!(scene.remaining().iter().all(|left| *left == 8), "{:?}", scene.remaining());
}

#[test]
fn a_repeated_reservation_has_the_first_hold() {
    let scene = Scene::of(vec![policy("p", "9/h")]);
    let reserve = || {
        let reservation = tallygate::hold::Reservation::new(Duration::from_secs(60));
        let ask = Ask::check(Descriptor::new(), Cost::new(4).unwrap());
        let evaluation = scene.evaluate(&[ask]).reserve(reservation, &[]).unwrap();
        ready(evaluation.decide(&scene.stores, None))
    };
    let (first, again) = (reserve(), reserve());
    assert!(again.replayed() && first.hold().is_some_and(|hold| !hold.is_empty()));
    assert_eq!(first.hold(), again.hold());
    assert_eq!(scene.remaining(), [5]);
}

/// The answer of `on_error` is not one of the store: once the store is back, the call is charged.
#[test]
fn what_on_error_answered_is_not_remembered() {
    for on_error in OnError::ALL {
        let scene = Scene::of(vec![policy("p", "9/h").with_on_error(*on_error)]);
        scene.switch_off();
        assert!(!scene.repeat(1).replayed());
        assert!(!scene.repeat(1).replayed());
        scene.stores.shared().switch().on();
        let charged = scene.repeat(1);
        assert!(charged.allowed() && !charged.replayed(), "{on_error}");
        assert_eq!(scene.remaining(), [8], "{on_error}");
    }
}

#[test]
fn an_answer_at_once_is_remembered_too() {
    let scene = Scene::of(vec![policy("p", "9/h"), policy("q", "9/h")]);
    let stores = scene.stores.with_shared(MemoryStore::new());
    let ask = |cost| {
        let ask = Ask::check(Descriptor::new(), Cost::new(cost).unwrap());
        scene.evaluate(&[ask]).decide_now(&stores).unwrap()
    };
    let (first, again, other) = (ask(1), ask(1), ask(2));
    assert!(first.allowed() && !first.replayed());
    assert!(again.allowed() && again.replayed());
    assert!(!other.allowed() && other.conflicts());
}
