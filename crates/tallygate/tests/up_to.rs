//! Calls that take what is left.

use std::time::Duration;

use tallygate::call::{Call, InvalidCheck, UpTo, Verb};
use tallygate::clock::ManualClock;
use tallygate::decision::Source;
use tallygate::policy::{Excess, Mode};
use tallygate::{Algorithm, Check, Cost, Decision, Key, Limit, Limiter, MemoryStore, Status};
use tallygate_testkit::random::Random;

use crate::START;

fn units(units: u64) -> Cost {
    Cost::new(units).unwrap()
}

fn up_to(most: u64, least: u64) -> UpTo {
    UpTo::new(units(most)).at_least(units(least)).unwrap()
}

fn ask(store: &MemoryStore, call: &Call<'_>) -> Decision {
    call.ask_now(store).unwrap().unwrap()
}

/// Of enforcing limits it takes the least that any has left: what it answers and leaves behind is what a look and a check of that
/// cost would.
#[test]
fn what_is_left_is_taken_as_by_a_look_and_a_check() {
    let mut random = Random::new(0x0009_7a47);
    let (mut granted, mut denied) = (0, 0);
    for _ in 0..300 {
        let clock = ManualClock::new(START);
        let stores = [(); 2].map(|()| MemoryStore::builder().clock(clock.clone()).without_sweep().build());
        let limit = |&algorithm: &Algorithm| {
            let amount = random.between(5, 40);
            Limit::builder(amount, Duration::from_secs(60)).algorithm(algorithm).build().unwrap()
        };
        let limits: Vec<Limit> = Algorithm::OVER_TIME.iter().map(limit).collect();
        for step in 0..30 {
            clock.advance(Duration::from_millis(random.between(0, 20_000)));
            let mut checks: Vec<Check<'_>> = Vec::new();
            for limit in &limits {
                if random.chance(50) {
                    checks.push(Check::new(Key::new(limit.algorithm().name(), "s").unwrap(), limit));
                }
            }
            if checks.is_empty() {
                continue;
            }
            let least = random.between(1, 5);
            let most = random.between(least, 12);
            let taken = ask(&stores[0], &Call::check_up_to(&checks, up_to(most, least)).unwrap());
            let seen = ask(&stores[1], &Call::new(Verb::Peek, &checks).unwrap());
            let left = seen.statuses().iter().map(Status::remaining).min().unwrap();
            let cost = most.min(left).max(least);
            let checks: Vec<Check<'_>> = checks.iter().map(|check| check.cost(units(cost))).collect();
            let checked = ask(&stores[1], &Call::new(Verb::Check, &checks).unwrap());
            let granted_here = if left < least { 0 } else { cost };
            assert_eq!(taken.granted(), Some(granted_here), "step {step}: {least} to {most} of {seen:?}");
            let [one, other] = [&taken, &checked].map(|it| (it.allowed(), it.statuses().to_vec(), it.decided_at()));
            assert_eq!(one, other, "step {step}: {least} to {most} of {seen:?}");
            for check in &checks {
                assert_eq!(stores[0].encoded_state(check), stores[1].encoded_state(check), "step {step}");
            }
            granted += u64::from(taken.allowed());
            denied += u64::from(!taken.allowed());
        }
    }
    assert!(granted > 500 && denied > 500, "{granted} granted, {denied} denied: the test shows too little");
}

/// One quota pays for all of it, and a shadow has no say.
#[test]
fn quotas_pay_all_or_nothing_and_shadows_what_they_can() {
    let store = MemoryStore::builder().clock(ManualClock::new(START)).build();
    let limits = ["9/h", "4/h", "6/h", "4/h"].map(|limit| limit.parse::<Limit>().unwrap());
    let modes = [Mode::Enforce, Mode::Quota, Mode::Quota, Mode::Shadow];
    let names = ["enforce", "small", "large", "shadow"].map(|name| Key::new(name, "s").unwrap());
    let checks: Vec<Check<'_>> = (0..4).map(|at| Check::new(names[at], &limits[at]).with_mode(modes[at])).collect();
    let take = |most, least| {
        let decision = ask(&store, &Call::check_up_to(&checks, up_to(most, least)).unwrap());
        let moved: Vec<u64> = decision.statuses().iter().map(Status::units).collect();
        (decision.granted().unwrap(), moved)
    };
    assert_eq!(take(100, 1), (6, vec![6, 0, 6, 4]));
    assert_eq!(take(100, 4), (0, vec![0; 4]), "three are left of the first");
    assert_eq!(take(2, 1), (2, vec![2, 2, 0, 0]));
    assert_eq!(take(100, 1), (1, vec![1, 1, 0, 0]));
}

/// The denied call drains as any other does: it takes nothing but what its policy says.
#[test]
fn a_call_that_gets_too_little_is_denied_and_takes_nothing() {
    let limiter = Limiter::new(MemoryStore::builder().clock(ManualClock::new(START)).build());
    let limit = "10/h".parse::<Limit>().unwrap();
    let check = Check::new(Key::new("p", "s").unwrap(), &limit);
    let take = |check, range| ask(limiter.store(), &Call::check_up_to(&[check], range).unwrap());
    assert_eq!(take(check, up_to(8, 8)).granted(), Some(8));
    let denied = take(check, up_to(100, 3));
    assert_eq!((denied.allowed(), denied.granted(), denied.binding().remaining()), (false, Some(0), 2));
    // It waits for the third unit, at 1 per 6 minutes.
    assert_eq!(denied.binding().retry_after(), Some(Duration::from_secs(360)));
    assert_eq!(take(check, up_to(100, 1)).granted(), Some(2));
    let full = Check::new(Key::new("q", "s").unwrap(), &limit);
    assert_eq!(take(full, up_to(7, 7)).granted(), Some(7));
    let drained = take(full.with_excess(Excess::Drain), up_to(5, 4));
    assert_eq!((drained.allowed(), drained.granted(), drained.binding().units()), (false, Some(0), 3));
}

#[test]
fn ranges_and_capacities_are_checked() {
    let too_much = UpTo::new(units(3)).at_least(units(4)).unwrap_err();
    assert_eq!(too_much, InvalidCheck::AtLeastAboveMost { at_least: units(4), at_most: units(3) });
    assert!(too_much.to_string().contains("at least 4") && too_much.to_string().contains("at most 3"));
    let (limit, zero) = ("10/h".parse::<Limit>().unwrap(), "0/h".parse::<Limit>().unwrap());
    let check = Check::new(Key::new("p", "s").unwrap(), &limit);
    let call = |checks: &[Check<'_>], range| Call::check_up_to(checks, range).map(|call| call.checks().len());
    assert!(matches!(call(&[check], up_to(20, 11)), Err(InvalidCheck::AtLeastAboveCapacity { at_least: 11, .. })));
    assert_eq!(call(&[check.cost(units(50))], up_to(20, 10)), Ok(1), "the cost of the check is not used");
    assert!(matches!(call(&[check, check], up_to(2, 1)), Err(InvalidCheck::SameKey { .. })));
    let store = MemoryStore::new();
    let none = Check::new(Key::new("z", "s").unwrap(), &zero);
    let denied = ask(&store, &Call::check_up_to(&[check, none], up_to(5, 1)).unwrap());
    assert_eq!((denied.allowed(), denied.granted(), denied.statuses()[0].units()), (false, Some(0), 0));
    let shadow = ask(&store, &Call::check_up_to(&[check, none.with_mode(Mode::Shadow)], up_to(5, 1)).unwrap());
    assert_eq!((shadow.granted(), shadow.statuses()[0].units()), (Some(5), 5));
    let alone = ask(&store, &Call::check_up_to(&[none.with_mode(Mode::Shadow)], up_to(5, 1)).unwrap());
    assert_eq!((alone.allowed(), alone.granted()), (true, Some(5)), "a shadow has no say");
    assert_eq!(ask(&store, &Call::new(Verb::Check, &[check]).unwrap()).granted(), None);
}

/// A state that new keys share when the store is full reports no units, because nobody may give them back.
#[test]
fn a_full_store_says_what_it_grants() {
    let store = MemoryStore::builder().capacity(1).clock(ManualClock::new(START)).build();
    let limit = "10/h".parse::<Limit>().unwrap();
    let take = |subject: &str| {
        let check = Check::new(Key::new("p", subject).unwrap(), &limit);
        ask(&store, &Call::check_up_to(&[check], up_to(7, 1)).unwrap())
    };
    assert_eq!(take("first").granted(), Some(7));
    let overflowed = take("second");
    assert_eq!((overflowed.source(), overflowed.binding().units()), (Source::Overflow, 0));
    assert_eq!(overflowed.granted(), Some(7));
    assert_eq!(take("second").granted(), Some(3));
}
