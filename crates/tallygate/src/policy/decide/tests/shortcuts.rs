//! The short ways come to what the long one comes to.

use super::*;
use proptest::prelude::*;

fn policies() -> impl Strategy<Value = Policy> {
    let limit = prop::sample::select(vec!["3/min", "0/min", "2/min sliding_log", "5/h fixed_window"]);
    let (modes, on_errors) = (prop::sample::select(Mode::ALL), prop::sample::select(OnError::ALL));
    (limit, modes, on_errors, prop::sample::select(Excess::ALL)).prop_map(|(limit, mode, on_error, excess)| {
        policy("p", limit).with_mode(mode).with_on_error(on_error).with_excess(excess)
    })
}

fn calls() -> impl Strategy<Value = Vec<(Charge, bool)>> {
    let cost = || (1..5_u64).prop_map(|units| Cost::new(units).unwrap());
    let charge = prop_oneof![
        4 => cost().prop_map(Charge::Take),
        1 => Just(Charge::Look),
        1 => cost().prop_map(|cost| Charge::GiveBack(cost, None)),
    ];
    prop::collection::vec((charge, prop::bool::weighted(0.2)), 1..12)
}

proptest! {
    #[test]
    fn one_policy_gets_the_same_verdict(policy in policies(), calls in calls()) {
        let (short, long) = (Scene::of(vec![policy.clone()]), Scene::of(vec![policy]));
        for (charge, down) in calls {
            short.switch(down);
            long.switch(down);
            let listed = ready(together(&long.store, &long.local, vec![long.found(charge)]));
            prop_assert_eq!(Ok(short.ask(charge)), listed);
        }
    }

    #[test]
    fn the_shortcut_takes_what_the_long_way_takes(policy in policies(), costs in prop::collection::vec(1..5_u64, 1..12)) {
        let (short, long) = (Scene::of(vec![policy.clone()]), Scene::of(vec![policy]));
        for cost in costs.into_iter().map(|units| Cost::new(units).unwrap()) {
            let verdict = long.ask(Charge::Take(cost));
            let domain = short.set.domain("d").unwrap();
            match domain.take_now(&short.store.store, 0, &Subject::new([]), cost) {
                Some(status) => {
                    prop_assert!(verdict.allowed());
                    prop_assert_eq!(&status, verdict.rulings()[0].status());
                }
                // It has taken nothing, so whoever goes on gets the same verdict.
                None => {
                    prop_assert_eq!(short.ask(Charge::Take(cost)), verdict);
                }
            }
        }
    }

    #[test]
    fn the_shortcut_is_taken_where_a_policy_enforces_and_allows(cost in 1..5_u64) {
        let scene = Scene::of(vec![policy("p", "3/min")]);
        let domain = scene.set.domain("d").unwrap();
        let taken = domain.take_now(&scene.store.store, 0, &Subject::new([]), Cost::new(cost).unwrap());
        prop_assert_eq!(taken.map(|status| status.remaining()), 3_u64.checked_sub(cost));
    }
}

impl Scene {
    /// The policy, for everybody.
    fn found(&self, charge: Charge) -> Found {
        let everybody = Match { policy: 0, descriptor: 0, subject: Subject::new([]), limit: None };
        Found::new(self.set.domain("d").unwrap(), 0, everybody, charge)
    }
}
