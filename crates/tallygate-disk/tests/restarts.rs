//! What was stored is loaded: states of every algorithm, holds, debts, remembered answers, counters.

use std::time::Duration;

use tallygate::clock::{ManualClock, Timestamp};
use tallygate::hold::{HoldQuery, HoldState, Units};
use tallygate::request::RequestId;
use tallygate::store::MemoryStoreBuilder;
use tallygate::{Algorithm, Check, Cost, Counter, Key, Limit, Limiter, MemoryStore};

fn clock() -> ManualClock {
    ManualClock::new(Timestamp::from_micros(1_700_000_000_000_000))
}

fn builder(clock: &ManualClock) -> MemoryStoreBuilder {
    MemoryStore::builder().clock(clock.clone())
}

#[tokio::test]
async fn everything_is_as_it_was() {
    let (clock, directory) = (clock(), tempfile::tempdir().unwrap());
    let limits =
        Algorithm::OVER_TIME.iter().map(|&algorithm| Limit::per_hour(10).algorithm(algorithm).build().unwrap());
    let limits: &'static [Limit] = Vec::leak(limits.collect());
    // Two algorithms share a kind of state, so the subject is the algorithm.
    let check = |policy, limit: &'static Limit| Check::new(Key::new(policy, limit.algorithm().name()).unwrap(), limit);
    let (store, mut saver) = tallygate_disk::open(directory.path(), builder(&clock)).unwrap();
    let limiter = Limiter::new(store);
    let mut holds = Vec::new();
    for limit in limits {
        let name = limit.algorithm().name();
        limiter.check(check("used", limit).cost(Cost::new(4).unwrap())).await.unwrap();
        let id = RequestId::new(name).unwrap();
        let first = limiter.once(id).check(check("once", limit)).await.unwrap();
        assert!(first.allowed() && !first.replayed());
        let reserved = limiter.reserve(&[check("held", limit)], Duration::from_secs(60)).await.unwrap();
        holds.push(reserved.hold.unwrap().into_hold());
        let reserved = limiter.reserve(&[check("owed", limit)], Duration::from_secs(60)).await.unwrap();
        // One was reserved, and twelve were used of ten.
        reserved.hold.unwrap().settle(Units::Same(12)).await.unwrap();
    }
    Counter::new(std::sync::Arc::clone(limiter.store()), "visits").unwrap().incr_by(41).await.unwrap();
    saver.save(limiter.store()).unwrap();
    drop((limiter, saver));

    let (store, _saver) = tallygate_disk::open(directory.path(), builder(&clock)).unwrap();
    let limiter = Limiter::new(store);
    assert_eq!(limiter.store().open_holds(&HoldQuery::new()).holds.len(), limits.len());
    for (limit, hold) in limits.iter().zip(&holds) {
        let name = limit.algorithm().name();
        let left = async |policy| limiter.peek(check(policy, limit)).await.unwrap().binding().to_owned();
        assert_eq!(left("used").await.remaining(), 6, "{name}");
        assert_eq!(left("held").await.held(), 1, "{name}");
        assert_eq!(left("owed").await.debt(), 2, "{name}");
        let again = limiter.once(RequestId::new(name).unwrap()).check(check("once", limit)).await.unwrap();
        assert!(again.replayed(), "{name}");
        let settled = limiter.settle(hold, Units::Same(0)).await.unwrap();
        assert_eq!((settled.state, settled.done, settled.parts[0].refunded), (HoldState::Settled, true, 1), "{name}");
        assert_eq!(left("held").await.remaining(), 10, "{name}");
    }
    let visits = Counter::new(std::sync::Arc::clone(limiter.store()), "visits").unwrap();
    assert_eq!(visits.incr().await.unwrap(), 42);
}

/// A machine may start with a clock that is behind: nobody gains by it, and nobody is blocked for longer than a full refill.
#[tokio::test]
async fn a_clock_that_is_behind_after_a_restart_admits_no_more() {
    for &algorithm in Algorithm::OVER_TIME {
        for behind in [Duration::from_secs(30), Duration::from_secs(86_400)] {
            let (ahead, directory) = (clock(), tempfile::tempdir().unwrap());
            ahead.advance(behind);
            let limit = Limit::per_minute(5).algorithm(algorithm).build().unwrap();
            let check = || Check::new(Key::new("p", "s").unwrap(), &limit);
            let (store, mut saver) = tallygate_disk::open(directory.path(), builder(&ahead)).unwrap();
            let limiter = Limiter::new(store);
            for _ in 0..5 {
                assert!(limiter.check(check()).await.unwrap().allowed());
            }
            saver.save(limiter.store()).unwrap();
            drop((limiter, saver));
            let now = clock();
            let (store, _saver) = tallygate_disk::open(directory.path(), builder(&now)).unwrap();
            let limiter = Limiter::new(store);
            assert!(!limiter.check(check()).await.unwrap().allowed(), "{algorithm}, {behind:?} behind");
            now.advance(behind.min(limit.full_after()) + limit.full_after() + Duration::from_secs(1));
            assert!(limiter.check(check()).await.unwrap().allowed(), "{algorithm}, {behind:?} behind");
        }
    }
}
