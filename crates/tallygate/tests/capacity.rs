//! The store never holds more keys than its capacity, and never resets a limit to make room.

use std::time::Duration;

use tallygate::clock::ManualClock;
use tallygate::decision::Source;
use tallygate::store::Overflow;
use tallygate::{Algorithm, Check, Cost, Counter, Key, Limit, Limiter, MemoryStore};

use crate::START;

const CAPACITY: usize = 200;
const SHARED: usize = 8;

fn full_of_live_keys(overflow: Overflow, limit: &Limit) -> (Limiter<MemoryStore>, ManualClock) {
    let clock = ManualClock::new(START);
    let builder = MemoryStore::builder().capacity(CAPACITY).overflow(overflow).clock(clock.clone());
    let limiter = Limiter::new(builder.build());
    for live in 0..CAPACITY {
        let decision = check(&limiter, &format!("live {live}"), limit);
        assert_eq!(decision, (true, Source::Store));
    }
    (limiter, clock)
}

fn check(limiter: &Limiter<MemoryStore>, subject: &str, limit: &Limit) -> (bool, Source) {
    let decision = limiter.check_now(Check::new(Key::new("p", subject).unwrap(), limit)).unwrap();
    (decision.allowed(), decision.source())
}

fn each_limit() -> impl Iterator<Item = Limit> {
    Algorithm::OVER_TIME.iter().copied().map(|algorithm| Limit::per_hour(1).algorithm(algorithm).build().unwrap())
}

/// What holds for either kind of overflow, with `shared` additional states.
fn stays_bounded(overflow: Overflow, shared: usize, limit: &Limit) {
    let (limiter, clock) = full_of_live_keys(overflow, limit);
    let mut allowed = 0;
    for new in 0..20 * CAPACITY {
        let (passed, source) = check(&limiter, &format!("new {new}"), limit);
        assert_eq!(source, Source::Overflow, "{limit}");
        allowed += usize::from(passed);
        assert!(limiter.store().len() <= CAPACITY + shared, "{limit}");
    }
    assert_eq!(allowed, shared, "{limit}: each shared state passes what the limit allows, no more");
    for live in 0..CAPACITY {
        assert_eq!(check(&limiter, &format!("live {live}"), limit), (false, Source::Store), "{limit}: a key was reset");
    }
    clock.advance(limit.full_after());
    let mut at_home = 0;
    for later in 0..CAPACITY {
        let (passed, source) = check(&limiter, &format!("later {later}"), limit);
        at_home += usize::from(passed && source == Source::Store);
        assert!(limiter.store().len() <= CAPACITY + shared, "{limit}");
    }
    assert!(at_home > CAPACITY * 9 / 10, "{limit}: expired keys made room for only {at_home}");
}

#[test]
fn full_of_live_keys_it_denies_new_ones() {
    each_limit().for_each(|limit| stays_bounded(Overflow::Deny, 0, &limit));
}

#[test]
fn full_of_live_keys_new_ones_share() {
    each_limit().for_each(|limit| stays_bounded(Overflow::Shared(SHARED), SHARED, &limit));
}

/// Shared states expire and are removed like all others; the number of other keys must stay right.
#[test]
fn the_store_fills_and_empties_again_and_again() {
    for limit in each_limit() {
        let clock = ManualClock::new(START);
        let overflow = Overflow::Shared(SHARED);
        let builder = MemoryStore::builder().capacity(20).overflow(overflow).clock(clock.clone());
        let limiter = Limiter::new(builder.build());
        for round in 0..50 {
            let at_home =
                (0..100).filter(|key| check(&limiter, &format!("{round} {key}"), &limit) == (true, Source::Store));
            let at_home = at_home.count();
            assert!((1..=20).contains(&at_home), "{limit}: {at_home} keys found room in round {round}");
            assert!(limiter.store().len() <= 20 + SHARED, "{limit}");
            clock.advance(limit.full_after());
        }
    }
}

/// The second of two new keys could be refused because of the first, which was still charged.
#[tokio::test]
async fn the_last_free_slots_go_to_all_checks_of_a_call_or_to_none() {
    let limit: Limit = "5/h".parse().unwrap();
    for overflow in [Overflow::Deny, Overflow::Shared(SHARED)] {
        for taken in 0..6 {
            let clock = ManualClock::new(START);
            let builder = MemoryStore::builder().capacity(6).overflow(overflow).clock(clock.clone());
            let limiter = Limiter::new(builder.build());
            for key in 0..taken {
                check(&limiter, &format!("taken {key}"), &limit);
            }
            let policies = ["a", "b", "c", "d"];
            let checks = policies.map(|policy| Check::new(Key::new(policy, "new").unwrap(), &limit));
            let decision = limiter.check_all(&checks).await.unwrap();
            let left: Vec<u64> = decision.statuses().iter().map(|status| status.remaining()).collect();
            let fits = taken + checks.len() <= 6;
            assert_eq!(decision.allowed(), fits || overflow != Overflow::Deny, "{taken} taken, {overflow:?}: {left:?}");
            if decision.allowed() {
                assert_eq!(left, [4; 4], "{taken} taken, {overflow:?}");
            } else {
                assert_eq!(limiter.store().len(), taken, "denied, and yet something was charged");
            }
        }
    }
}

/// Two new keys of one call may share a state: it must hold for both of them.
#[tokio::test]
async fn checks_of_a_call_that_share_a_state_are_charged_all_or_none() {
    let limit: Limit = "5/h".parse().unwrap();
    let (limiter, _) = full_of_live_keys(Overflow::Shared(1), &limit);
    let ask = |subject, cost| Check::new(Key::new("p", subject).unwrap(), &limit).cost(Cost::new(cost).unwrap());
    let before = limiter.peek(ask("new", 1)).await.unwrap();
    assert_eq!((before.binding().remaining(), before.source()), (5, Source::Overflow));
    let decision = limiter.check_all(&[ask("new", 3), ask("newer", 3)]).await.unwrap();
    assert!(!decision.allowed());
    assert_eq!(limiter.peek(ask("new", 1)).await.unwrap().binding().remaining(), 5, "denied, and yet charged");
}

#[test]
fn expired_keys_are_swept_by_traffic_on_other_keys() {
    for limit in each_limit() {
        let clock = ManualClock::new(START);
        let limiter = Limiter::new(MemoryStore::builder().clock(clock.clone()).build());
        for key in 0..5000 {
            check(&limiter, &format!("old {key}"), &limit);
        }
        assert_eq!(limiter.store().len(), 5000);
        clock.advance(limit.full_after());
        for key in 0..100_000 {
            check(&limiter, &format!("new {}", key % 500), &limit);
            clock.advance(Duration::from_micros(1));
        }
        assert!(limiter.store().len() < 1500, "{limit}: {} keys are left of 5000 expired ones", limiter.store().len());
    }
}

/// Only keys of the new key's own algorithm were removed, so others took up room for ever.
#[tokio::test]
async fn expired_keys_of_any_kind_make_room() {
    for old in each_limit() {
        for new in each_limit() {
            let (limiter, clock) = full_of_live_keys(Overflow::Deny, &old);
            clock.advance(old.full_after());
            let refused = (0..CAPACITY).filter(|key| !check(&limiter, &format!("new {key}"), &new).0).count();
            assert!(refused < CAPACITY / 10, "{refused} keys of {new} found no room among expired ones of {old}");
        }
        let (limiter, clock) = full_of_live_keys(Overflow::Deny, &old);
        clock.advance(old.full_after());
        let counter = Counter::new(limiter.store().clone(), "n").unwrap();
        assert!(counter.incr().await.is_ok(), "a counter found no room among expired keys of {old}");
    }
}
