//! Actual costs above what was reserved, and the bounds of holds.

use tallygate::call::InvalidCheck;
use tallygate::hold::{Overrun, Refused};
use tallygate::{CheckError, Decision};

use super::*;

#[tokio::test]
async fn an_overrun_is_owed_capped_or_refused() {
    for limit in limits() {
        for (overrun, settled, unpaid, left) in
            [(Overrun::Debt, 14, 0, [0, 0, 4]), (Overrun::Cap, 10, 4, [0, 0, 0]), (Overrun::Refuse, 0, 0, [4, 6, 0])]
        {
            let terms = HoldTerms::DEFAULT.with_overrun(overrun);
            let (limiter, _) = limiter();
            let check = Check::new(key("alice"), &limit).with_holds(Some(&terms));
            let hold = reserve(&limiter, check, 6, 60).await;
            let answer = limiter.settle(&hold, Units::Same(14)).await.unwrap();
            let part = answer.parts[0];
            assert_eq!((part.settled, part.unpaid), (settled, unpaid), "{limit}, {overrun}");
            assert_eq!(answer.refused, (overrun == Overrun::Refuse).then_some(Refused::Overrun(0)), "{limit}");
            assert_eq!(numbers(&limiter, check).await, left, "{limit}, {overrun}");
            let state = if overrun == Overrun::Refuse { HoldState::Open } else { HoldState::Settled };
            assert_eq!(answer.state, state, "{limit}");
        }
    }
}

/// The guard was consumed, and nobody had the hold that was still open.
#[tokio::test]
async fn after_a_refused_overrun_the_hold_of_a_guard_can_be_settled() {
    let terms = HoldTerms::DEFAULT.with_overrun(Overrun::Refuse);
    let (limiter, _) = limiter();
    let limit: Limit = "10/h".parse().unwrap();
    let check = Check::new(key("alice"), &limit).with_holds(Some(&terms));
    let guard = limiter.reserve(&[check.cost(units(6))], Duration::from_secs(60)).await.unwrap().hold.unwrap();
    let hold = guard.hold().clone();
    assert_eq!(guard.settle(Units::Same(9)).await.unwrap().refused, Some(Refused::Overrun(0)));
    assert!(limiter.settle(&hold, Units::AsReserved).await.unwrap().done);
    assert_eq!(numbers(&limiter, check).await, [4, 0, 0]);
}

/// A debt is at most one capacity, stays when the limit changes, and is paid before anything passes.
#[tokio::test]
async fn a_debt_is_bounded_and_not_forgiven() {
    for limit in limits() {
        let (limiter, _) = limiter();
        let check = Check::new(key("alice"), &limit);
        let hold = reserve(&limiter, check, 1, 60).await;
        let answer = limiter.settle(&hold, Units::Same(1_000_000)).await.unwrap();
        assert_eq!((answer.parts[0].settled, answer.parts[0].unpaid), (20, 999_980), "{limit}");
        assert_eq!(numbers(&limiter, check).await, [0, 0, 10], "{limit}");
        assert!(!limiter.check(check).await.unwrap().allowed(), "{limit}");
        let larger = Limit::builder(15, Duration::from_secs(3600)).algorithm(limit.algorithm()).build().unwrap();
        let check = Check::new(key("alice"), &larger);
        assert!(!limiter.check(check).await.unwrap().allowed(), "{limit}: what was used stays used");
        let debt = status(&limiter, check).await.debt();
        // A bucket converts its parts of units, and may round one up.
        assert!((5..=6).contains(&debt), "{limit}: {debt}");
    }
}

/// The units of a debt that is paid still count, with less and less weight: the state is not one of another limit.
#[tokio::test]
async fn a_paid_debt_of_a_sliding_counter_is_no_changed_limit() {
    let (limiter, clock) = limiter();
    let hour = Duration::from_secs(3600);
    let limit = Limit::builder(10, hour).algorithm(Algorithm::SlidingCounter).build().unwrap();
    let check = Check::new(key("alice"), &limit);
    clock.set(Timestamp::from_micros(START.as_micros().next_multiple_of(3_600_000_000)));
    let hold = reserve(&limiter, check, 1, 60).await;
    limiter.settle(&hold, Units::Same(20)).await.unwrap();
    assert_eq!(numbers(&limiter, check).await, [0, 0, 10]);
    clock.advance(hour + hour * 6 / 10);
    assert_eq!(numbers(&limiter, check).await, [2, 0, 0], "eight of twenty count");
    let hold = reserve(&limiter, check, 1, 1800).await;
    assert_eq!(numbers(&limiter, check).await, [1, 1, 0]);
    clock.advance(hour / 10);
    assert!(limiter.check(check).await.unwrap().allowed());
    assert_eq!(numbers(&limiter, check).await, [2, 1, 0], "six of twenty count");
    let settled = limiter.settle(&hold, Units::Same(0)).await.unwrap();
    assert_eq!((settled.done, settled.parts[0].refunded), (true, 1));
    assert_eq!(numbers(&limiter, check).await, [3, 0, 0]);
    // Nothing is held or owed any more, and still the counts are those of this limit, until they leave the windows.
    clock.advance(hour / 10);
    assert!(limiter.check(check).await.unwrap().allowed());
    assert_eq!(numbers(&limiter, check).await, [4, 0, 0], "four of twenty count");
    clock.advance(hour * 2 / 10);
    assert_eq!(numbers(&limiter, check).await, [8, 0, 0]);
}

#[tokio::test]
async fn reservations_have_bounds_of_their_own() {
    for limit in limits() {
        let (limiter, clock) = limiter();
        let terms = HoldTerms::DEFAULT.with_most_open(2).with_most_held(50);
        let check = Check::new(key("alice"), &limit).with_holds(Some(&terms));
        let denied = async |cost| -> Decision {
            limiter.reserve(&[check.cost(units(cost))], Duration::from_secs(60)).await.unwrap().decision
        };
        let _first = reserve(&limiter, check, 3, 10).await;
        let half = denied(3).await;
        assert!(!half.allowed() && half.binding().holds_full(), "{limit}: six of ten are more than half");
        assert_eq!(half.binding().retry_after(), Some(Duration::from_secs(10)), "{limit}");
        let _second = reserve(&limiter, check, 1, 20).await;
        assert!(denied(1).await.binding().holds_full(), "{limit}: two are open");
        // Charging without holding is possible as before, and no open hold was forgotten.
        assert!(limiter.check(check).await.unwrap().allowed(), "{limit}");
        assert_eq!(status(&limiter, check).await.held(), 4, "{limit}");
        clock.advance(Duration::from_secs(10));
        assert!(denied(1).await.allowed(), "{limit}: the first has expired");
    }
}

#[tokio::test]
async fn impossible_reservations_are_errors() {
    let (limiter, _) = limiter();
    let limit: Limit = "10/h".parse().unwrap();
    let terms = HoldTerms::DEFAULT.with_most_held(50).with_longest(Duration::from_secs(30));
    let check = Check::new(key("alice"), &limit).with_holds(Some(&terms));
    let refused = async |cost, ttl| match limiter.reserve(&[check.cost(units(cost))], ttl).await {
        Err(CheckError::Invalid(invalid)) => invalid,
        other => panic!("{other:?}"),
    };
    let second = Duration::from_secs(1);
    assert!(matches!(refused(11, second).await, InvalidCheck::CostAboveCapacity { capacity: 10, .. }));
    assert!(matches!(refused(6, second).await, InvalidCheck::HoldAboveMost { most: 5, .. }));
    assert!(matches!(refused(1, Duration::ZERO).await, InvalidCheck::HoldTtl { .. }));
    let message = refused(1, Duration::from_secs(31)).await.to_string();
    assert_eq!(
        message,
        "a hold under `tokens` lasts from 1 ms to 30s, not 31s: choose another time, and extend it if need be"
    );
    assert!(limiter.store().is_empty());
}

/// Keys, ledgers and records are bounded together: a full store denies reservations and forgets nothing.
#[tokio::test]
async fn a_full_store_denies_reservations() {
    let clock = ManualClock::new(START);
    let limiter = Limiter::new(MemoryStore::builder().clock(clock).capacity(64).build());
    let limit: Limit = "10/h".parse().unwrap();
    let mut holds = Vec::new();
    for subject in 0..1000 {
        let subject = subject.to_string();
        let check = Check::new(key(&subject), &limit);
        let reserved = limiter.reserve(&[check], Duration::from_secs(60)).await.unwrap();
        holds.extend(reserved.hold.map(HoldGuard::into_hold));
    }
    assert!((1..=64).contains(&holds.len()), "{} holds", holds.len());
    for hold in &holds {
        assert!(limiter.settle(hold, Units::Same(0)).await.unwrap().done);
    }
}
