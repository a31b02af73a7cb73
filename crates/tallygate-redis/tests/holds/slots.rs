//! Holds over several slots of a cluster.

use tallygate::hold::Refused;
use tallygate_testkit::{Cluster, Flavour};

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_over_several_slots_ends_in_each() {
    let cluster = Cluster::start(Flavour::Redis, 3, 0);
    let limiter = patient(&cluster.url()).await;
    for &algorithm in Algorithm::OVER_TIME {
        let limits = [yearly(algorithm, 10), yearly(algorithm, 4)];
        let subjects = ["alice", "team", "all"];
        let checks = |cost: u64| {
            let check = |(at, subject): (usize, &&'static str)| {
                let limit = if at == 0 { &limits[1] } else { &limits[0] };
                Check::new(Key::new("p", *subject).unwrap(), limit).cost(units(cost))
            };
            subjects.iter().enumerate().map(check).collect::<Vec<_>>()
        };
        let left = async || {
            let mut left = Vec::new();
            for check in checks(1) {
                let status = status(&limiter, check).await;
                left.push((status.remaining(), status.held()));
            }
            left
        };
        let hold = reserve(&limiter, &checks(3), Duration::from_secs(60)).await.unwrap();
        assert_eq!(left().await, [(1, 3), (7, 3), (7, 3)], "{algorithm}");
        // The first denies: the others hold nothing of it, however little time there is to cancel.
        assert!(reserve(&limiter, &checks(2), Duration::from_secs(60)).await.is_none());
        while left().await != [(1, 3), (7, 3), (7, 3)] {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let settled = limiter.settle(&hold, Units::Same(1)).await.unwrap();
        assert_eq!((settled.state, settled.done, settled.parts.len()), (HoldState::Settled, true, 3), "{algorithm}");
        assert_eq!(left().await, [(3, 0), (9, 0), (9, 0)], "{algorithm}");
        assert!(!limiter.cancel(&hold).await.unwrap().done, "{algorithm}");
        for check in checks(1) {
            limiter.reset(check).await.unwrap();
        }
    }
    let keys: usize = cluster.nodes().iter().map(every_key_expires).sum();
    assert!(keys > 0);
}

fn of(subject: &'static str, limit: &Limit, cost: u64) -> Check<'static> {
    let limit: &'static Limit = Box::leak(Box::new(limit.clone()));
    Check::new(Key::new("p", subject).unwrap(), limit).cost(units(cost))
}

/// The node that has the state of a subject.
fn node_of(cluster: &Cluster, subject: &str) -> usize {
    let key = Key::new("p", subject).unwrap().encode("tallygate", "tb");
    cluster.node_of(cluster.slot_of(key.as_bytes()))
}

/// Waits until nothing is held for a subject, and answers what is left then.
async fn left_after_holds(limiter: &RedisLimiter, check: Check<'_>) -> u64 {
    loop {
        let status = status(limiter, check).await;
        if status.held() == 0 {
            return status.remaining();
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Abandoned units of these limits stay charged. But a reservation that its process could not finish was never granted.
#[test]
fn what_a_dead_process_has_reserved_in_some_slots_comes_back() {
    let cluster = Cluster::start(Flavour::Redis, 3, 0);
    let limit = yearly(Algorithm::TokenBucket, 10);
    let (alive, dead) = (node_of(&cluster, "alice"), node_of(&cluster, "team"));
    assert_ne!(alive, dead, "the subjects share a node");
    let survivor = tokio::runtime::Runtime::new().unwrap();
    let watcher = survivor.block_on(patient(&cluster.url()));
    let dying = tokio::runtime::Runtime::new().unwrap();
    let limiter = dying.block_on(patient(&cluster.url()));
    // Every node knows the scripts, and both know the nodes.
    let warm =
        dying.block_on(reserve(&limiter, &[of("alice", &limit, 1), of("team", &limit, 1)], Duration::from_secs(60)));
    dying.block_on(limiter.cancel(&warm.unwrap())).unwrap();
    cluster.nodes()[dead].stop();
    let (checks, ttl) = (vec![of("alice", &limit, 3), of("team", &limit, 3)], Duration::from_secs(2));
    dying.spawn(async move { limiter.reserve(&checks, ttl).await.map(|reserved| reserved.decision) });
    survivor.block_on(async {
        while status(&watcher, of("alice", &limit, 1)).await.held() == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
    dying.shutdown_background();
    cluster.nodes()[dead].cont();
    for subject in ["alice", "team"] {
        assert_eq!(survivor.block_on(left_after_holds(&watcher, of(subject, &limit, 1))), 10, "{subject}");
    }
}

/// Once the call is allowed, `on_abandon` says what becomes of a hold that nobody settles, in each slot.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_reserved_in_all_slots_is_abandoned_as_its_limits_say() {
    let cluster = Cluster::start(Flavour::Redis, 3, 0);
    let limiter = patient(&cluster.url()).await;
    let limit = yearly(Algorithm::FixedWindow, 10);
    let refunds = HoldTerms::DEFAULT.with_on_abandon(OnAbandon::Refund);
    let checks = [of("alice", &limit, 3), of("team", &limit, 3), of("all", &limit, 3).with_holds(Some(&refunds))];
    let hold = reserve(&limiter, &checks, Duration::from_millis(300)).await.unwrap();
    for (check, left) in checks.into_iter().zip([7, 7, 10]) {
        assert_eq!(left_after_holds(&limiter, check).await, left);
    }
    let late = limiter.settle(&hold, Units::Same(1)).await.unwrap();
    assert_eq!((late.state, late.done), (HoldState::Expired, false));
    let kept: Vec<_> = late.parts.iter().map(|part| (part.settled, part.refunded)).collect();
    assert_eq!(kept, [(3, 0), (3, 0), (0, 3)]);
    assert!(cluster.nodes().iter().map(every_key_expires).sum::<usize>() > 0);
}

/// No slot knows what was reserved in the others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_number_for_different_reservations_is_refused_in_every_slot() {
    let cluster = Cluster::start(Flavour::Redis, 3, 0);
    let limiter = patient(&cluster.url()).await;
    let limit = yearly(Algorithm::SlidingLog, 10);
    let checks = [of("alice", &limit, 3), of("team", &limit, 5)];
    let hold = reserve(&limiter, &checks, Duration::from_secs(60)).await.unwrap();
    for partial in [true, false] {
        let refused = match partial {
            true => limiter.settle_partial(&hold, Units::Same(1)).await.unwrap(),
            false => limiter.settle(&hold, Units::Same(1)).await.unwrap(),
        };
        assert_eq!((refused.state, refused.done), (HoldState::Open, false));
        assert_eq!(refused.refused, Some(Refused::DifferentUnits));
    }
    let held = left_and_held(&limiter, checks).await;
    assert_eq!(held, [(7, 3), (5, 5)]);
    let settled = limiter.settle(&hold, Units::AsReserved).await.unwrap();
    assert_eq!((settled.state, settled.done), (HoldState::Settled, true));
    let again = limiter.settle(&hold, Units::Same(1)).await.unwrap();
    assert_eq!((again.state, again.done, again.refused), (HoldState::Settled, false, None));
}

async fn left_and_held(limiter: &RedisLimiter, checks: [Check<'_>; 2]) -> [(u64, u64); 2] {
    let [one, two] = checks;
    [status(limiter, one).await, status(limiter, two).await].map(|status| (status.remaining(), status.held()))
}
