//! Holds over several slots of a cluster.

use tallygate_testkit::{Cluster, Flavour};

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_over_several_slots_ends_in_each() {
    let cluster = Cluster::start(Flavour::Redis, 3, 0);
    let limiter = patient(&cluster.url()).await;
    for &algorithm in Algorithm::ALL {
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
