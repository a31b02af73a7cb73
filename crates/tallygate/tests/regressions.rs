//! Regressions, each with what happened, and edge cases.

use std::time::Duration;

use tallygate::check::Receipt;
use tallygate::clock::{ManualClock, Timestamp};
use tallygate::{Algorithm, Check, Cost, Key, Limit, Limiter, MemoryStore, history};

use crate::START;

/// Each change of the numbers rounded the used amount up to whole units. With two versions of a limit in use at once,
/// as during a rolling deployment, nothing was ever regained: no call of 100 in ten seconds passed.
#[tokio::test]
async fn two_alternating_rates_do_not_starve_a_bucket() {
    let clock = ManualClock::new(START);
    let limiter = Limiter::new(MemoryStore::builder().clock(clock.clone()).build());
    let limits: [Limit; 2] = ["1/s burst 5".parse().unwrap(), "2/s burst 5".parse().unwrap()];
    let key = Key::new("p", "s").unwrap();
    let mut admitted = 0;
    for call in 0..100 {
        let limit = &limits[call % 2];
        admitted += u64::from(limiter.check_now(Check::new(key, limit)).unwrap().allowed());
        clock.advance(Duration::from_millis(100));
    }
    // Between what the slower and the faster rate would have given.
    assert!((5 + 9..=5 + 20).contains(&admitted), "{admitted} calls were admitted");
}

/// What is used is capped at a smaller capacity, also by a denied call, so that a lowered limit locks nobody out. Two
/// alternating sizes therefore admit the difference each time: documented in `docs/guarantees.md`, pinned here.
#[tokio::test]
async fn two_alternating_sizes_admit_their_difference_each_time() {
    let clock = ManualClock::new(START);
    let limiter = Limiter::new(MemoryStore::builder().clock(clock).build());
    let key = Key::new("p", "s").unwrap();
    let (large, small): (Limit, Limit) = ("100/min".parse().unwrap(), "10/min".parse().unwrap());
    let take = |limit, cost| limiter.check_now(Check::new(key, limit).cost(Cost::new(cost).unwrap())).unwrap();
    assert!(take(&large, 100).allowed());
    for _ in 0..3 {
        assert!(!take(&small, 1).allowed());
        assert!(!take(&large, 91).allowed());
        assert!(take(&large, 90).allowed());
    }
}

/// Expired calls count again if the clock steps back, and with them the units that were refunded after them. These stop
/// counting with the expired calls, but `retry_after` was the time until the call after them expires.
#[tokio::test]
async fn a_step_back_after_a_refund_does_not_prolong_the_wait_for_a_log() {
    let limit: Limit = "10/10s sliding_log".parse().unwrap();
    let clock = ManualClock::new(START);
    let limiter = Limiter::new(MemoryStore::builder().clock(clock.clone()).without_sweep().build());
    let at = |seconds: u64| Timestamp::from_micros(START.as_micros() + seconds * 1_000_000);
    let units = |units| Check::new(Key::new("p", "s").unwrap(), &limit).cost(Cost::new(units).unwrap());
    for (seconds, cost) in [(0, 1), (5, 9)] {
        clock.set(at(seconds));
        assert!(limiter.check_now(units(cost)).unwrap().allowed());
    }
    clock.set(at(10));
    let receipt = Receipt::new(units(5), Cost::new(5).unwrap(), Some(at(9)));
    assert_eq!(limiter.refund(&[receipt]).await.unwrap(), [5]);
    clock.set(at(6));
    let denied = limiter.check_now(units(3)).unwrap();
    assert!(!denied.allowed());
    assert_eq!(denied.binding().retry_after(), Some(Duration::from_secs(4)), "the call of 0 s expires at 10 s");
    clock.set(Timestamp::from_micros(at(10).as_micros() - 1));
    assert!(!limiter.check_now(units(3)).unwrap().allowed());
    clock.set(at(10));
    assert!(limiter.check_now(units(3)).unwrap().allowed());
}

/// The running sums of a log wrap around at 10^15: two calls of one instant straddle that, and the limit still holds.
#[test]
fn running_sums_wrap_around_unnoticed() {
    let half = Cost::new(500_000_000).unwrap();
    let limit: Limit = "1000000000/ms sliding_log".parse().unwrap();
    let clock = ManualClock::new(START);
    let limiter = Limiter::new(MemoryStore::builder().clock(clock.clone()).build());
    let check = Check::new(Key::new("p", "s").unwrap(), &limit);
    let mut records = Vec::new();
    for _ in 0..1_000_500 {
        for _ in 0..2 {
            records.push(history::Record::new(half, &limiter.check_now(check.cost(half)).unwrap()));
        }
        let full = limiter.check_now(check).unwrap();
        assert!(!full.allowed() && full.binding().retry_after() <= Some(limit.window()), "{full:?}");
        clock.advance(limit.window());
    }
    let report = history::bound(&limit, &records);
    assert!(report.holds(), "{}", report.violations[0]);
    assert!(report.admitted > 1_000_000_000_000_000);
    assert!(records.iter().filter(|record| !record.allowed).count() < 600, "more than an instant was lost");
}

/// The largest instant plus a window overflowed.
#[tokio::test]
async fn a_refund_of_a_charge_in_the_future_is_one_of_just_now() {
    for &algorithm in Algorithm::OVER_TIME {
        let limit = Limit::per_hour(5).algorithm(algorithm).build().unwrap();
        let limiter = Limiter::new(MemoryStore::builder().clock(ManualClock::new(START)).build());
        let check = Check::new(Key::new("p", "s").unwrap(), &limit);
        limiter.check(check).await.unwrap();
        assert_eq!(
            limiter.refund(&[Receipt::new(check, check.cost, Some(Timestamp::from_micros(u64::MAX)))]).await.unwrap(),
            [1],
            "{limit}"
        );
    }
}
