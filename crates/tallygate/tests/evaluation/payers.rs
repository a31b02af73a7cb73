//! Policies with several payers.

use tallygate::call::{InvalidCheck, UpTo};
use tallygate::hold::Reservation;
use tallygate::policy::{CallerLimit, Payer};
use tallygate::request::RequestId;

use super::*;

/// Ten units of a plan, then five credits, then three of overage.
fn tokens() -> Policy {
    let payers = [("credits", "5/365d fixed_window"), ("overage", "3/day fixed_window")];
    let payers = payers.map(|(name, limit)| Payer::new(name, limit).unwrap());
    Policy::new("tokens", "d", "10/h fixed_window").unwrap().with_payers(payers).unwrap()
}

fn requests(limit: &str) -> Policy {
    Policy::new("requests", "d", limit).unwrap()
}

fn paid(ruling: &Ruling) -> Vec<(String, u64, u64)> {
    let told = |(name, paid): (&str, &tallygate::policy::Paid)| {
        (name.to_owned(), paid.status().units(), paid.status().remaining())
    };
    ruling.payers().map(told).collect()
}

fn told(paid: [(u64, u64); 3]) -> Vec<(String, u64, u64)> {
    let names = ["tokens", "credits", "overage"];
    names.iter().zip(paid).map(|(name, (units, left))| ((*name).to_owned(), units, left)).collect()
}

#[test]
fn the_verdict_says_which_paid_how_much() {
    let scene = Scene::of(vec![requests("5/h"), tokens()]);
    let verdict = scene.ask(Verb::Check, 3);
    assert_eq!(verdict.rulings()[0].payers().len(), 0);
    assert_eq!(paid(&verdict.rulings()[1]), told([(3, 7), (0, 5), (0, 3)]));
    let scene = Scene::of(vec![tokens()]);
    let verdict = scene.ask(Verb::Check, 16);
    let [ruling] = verdict.rulings() else { panic!("{verdict:?}") };
    assert_eq!(paid(ruling), told([(10, 0), (5, 0), (1, 2)]));
    assert_eq!((ruling.status().limit(), ruling.status().remaining(), ruling.charged()), (18, 2, 16));
    let denied = scene.ask(Verb::Check, 3);
    assert!(!denied.allowed());
    assert_eq!(paid(&denied.rulings()[0]), told([(0, 0), (0, 0), (0, 2)]));
    assert_eq!(scene.ask(Verb::Peek, 2).rulings()[0].status().remaining(), 2);
    // More than all of them hold.
    let costly = scene.ask(Verb::Check, 19);
    assert_eq!((costly.allowed(), costly.rulings()[0].source()), (false, Source::TooCostly));
}

#[test]
fn nobody_pays_for_what_another_policy_denies() {
    let scene = Scene::of(vec![requests("15/h"), tokens()]);
    assert!(scene.ask(Verb::Check, 12).allowed());
    assert!(!scene.ask(Verb::Check, 4).allowed());
    assert_eq!(paid(&scene.ask(Verb::Peek, 1).rulings()[1]), told([(0, 0), (0, 3), (0, 3)]));
}

#[test]
fn a_verdict_is_refunded_to_those_who_paid() {
    let scene = Scene::of(vec![tokens(), requests("100/h")]);
    scene.ask(Verb::Check, 4);
    let verdict = ready(scene.ask(Verb::Check, 12).refund(&scene.stores));
    assert_eq!(paid(&verdict.rulings()[0]), told([(0, 6), (0, 5), (0, 3)]));
    assert_eq!(verdict.rulings()[0].status().remaining(), 14);
    // Without a verdict, the last payer is given back first.
    scene.ask(Verb::Check, 12);
    let given = scene.ask(Verb::Refund, 9);
    assert_eq!((paid(&given.rulings()[0]), given.rulings()[0].refunded()), (told([(3, 3), (5, 5), (1, 3)]), 9));
    scene.ask(Verb::Reset, 1);
    assert_eq!(paid(&scene.ask(Verb::Peek, 1).rulings()[0]), told([(0, 10), (0, 5), (0, 3)]));
}

#[test]
fn what_is_left_is_taken_from_all_payers() {
    let scene = Scene::of(vec![tokens(), requests("16/h")]);
    let up_to = UpTo::new(Cost::new(100).unwrap());
    let action = Action::new(Verb::Check, Cost::ONE);
    let evaluation = || scene.set.domain("d").unwrap().evaluate(&[Ask::new(Descriptor::new(), action)]);
    let verdict = ready(evaluation().up_to(up_to).decide(&scene.stores, None));
    assert_eq!((verdict.granted(), paid(&verdict.rulings()[0])), (Some(16), told([(10, 0), (5, 0), (1, 2)])));
}

#[test]
fn while_the_store_is_down_each_payer_has_a_share() {
    let scene = Scene::of(vec![tokens()]);
    scene.stores.instances().set(2);
    scene.switch_off();
    let local = scene.ask(Verb::Check, 6);
    assert_eq!(local.rulings()[0].source(), Source::OnErrorLocal);
    assert_eq!(paid(&local.rulings()[0]), told([(5, 0), (1, 1), (0, 1)]));
    assert!(!scene.ask(Verb::Check, 3).allowed());
    let refunded = ready(local.refund(&scene.stores));
    assert_eq!(paid(&refunded.rulings()[0]), told([(0, 5), (0, 2), (0, 1)]));
    assert!(scene.ask(Verb::Check, 8).allowed());
}

#[test]
fn an_override_replaces_the_first_payer_and_zero_blocks() {
    let scene = Scene::of(vec![tokens()]);
    let policy = Arc::clone(scene.set.policies().next().unwrap());
    let ask = |limit| {
        let found = Match::new(Arc::clone(&policy), 0, Subject::new([])).with_limit(limit);
        ready(Evaluation::new([found], Action::new(Verb::Check, Cost::new(4).unwrap())).decide(&scene.stores, None))
    };
    let own = ask(CallerLimit::Override("2/h fixed_window".parse().unwrap()));
    assert_eq!(paid(&own.rulings()[0]), told([(2, 0), (2, 3), (0, 3)]));
    let blocked = ask(CallerLimit::Override("0/h".parse().unwrap()));
    assert_eq!((blocked.allowed(), blocked.rulings()[0].source()), (false, Source::ZeroLimit));
    assert!(ask(CallerLimit::Unlimited).allowed());
    assert_eq!(paid(&scene.ask(Verb::Peek, 1).rulings()[0])[1..], told([(0, 0), (0, 3), (0, 3)])[1..]);
}

#[test]
fn a_repeat_names_the_same_payers() {
    let scene = Scene::of(vec![tokens()]);
    let ask = || {
        let action = Action::new(Verb::Check, Cost::new(12).unwrap());
        let evaluation = scene.set.domain("d").unwrap().evaluate(&[Ask::new(Descriptor::new(), action)]);
        ready(evaluation.request_id(RequestId::new("one").unwrap()).decide(&scene.stores, None))
    };
    let (first, again) = (ask(), ask());
    assert!(again.replayed() && !first.replayed());
    assert_eq!(paid(&again.rulings()[0]), paid(&first.rulings()[0]));
}

#[test]
fn nothing_is_held_of_several_payers() {
    let scene = Scene::of(vec![tokens()]);
    let action = Action::new(Verb::Check, Cost::ONE);
    let evaluation = scene.set.domain("d").unwrap().evaluate(&[Ask::new(Descriptor::new(), action)]);
    let refused = evaluation.clone().reserve(Reservation::new(SECOND), &[]).unwrap_err();
    assert!(matches!(refused, InvalidCheck::HoldOverPayers { policy } if policy == "tokens"));
    let denied = evaluation.refuse_to_hold();
    assert_eq!((denied.allowed(), denied.rulings()[0].source()), (false, Source::NotHeld));
}

const SECOND: Duration = Duration::from_secs(1);

/// Policies count for a call by their states: 32 with all of their payers.
#[test]
fn each_payer_has_a_place_in_a_call() {
    let many = |count: usize| {
        let policies = (0..count).map(|at| {
            let payers = (0..7).map(|payer| Payer::new(format!("p{payer}"), "5/h").unwrap());
            Policy::new(format!("policy{at}"), "d", "5/h").unwrap().with_payers(payers).unwrap()
        });
        Scene::of(policies.collect())
    };
    assert!(many(4).ask(Verb::Check, 7).allowed());
    let denied = many(5).ask(Verb::Check, 1);
    assert!(denied.rulings().iter().all(|ruling| ruling.source() == Source::TooMany));
    assert_eq!(many(5).ask(Verb::Refund, 1).rulings().len(), 5);
}
