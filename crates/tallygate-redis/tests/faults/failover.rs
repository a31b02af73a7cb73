//! Failovers: ordered, or because the master died.

use std::time::{Duration, Instant};

use tallygate::store::StoreErrorKind;
use tallygate::{Algorithm, Check, CheckError, Key, Limit};
use tallygate_testkit::{Cluster, Flavour, Sentinel, Server, valkey_available};

use crate::support::{
    Load, RedisLimiter, every_key_expires, flavours, limit, patient, used, within, within_bound, yearly,
};

const AMOUNT: u64 = 400;
/// The sentinels are polled every second, and publish a switch; the rest is for a busy machine.
const FINDS_IT: Duration = Duration::from_secs(10);

fn valkey_if_possible() -> Flavour {
    if valkey_available() { Flavour::Valkey } else { Flavour::Redis }
}

fn loads(limiter: &RedisLimiter, policy: &str) -> Vec<(Limit, Load)> {
    let start = |algorithm: Algorithm| {
        let limit = yearly(algorithm, AMOUNT);
        let load = Load::start(limiter, &limit, policy, algorithm.name(), 3);
        (limit, load)
    };
    [Algorithm::TokenBucket, Algorithm::FixedWindow, Algorithm::SlidingLog].map(start).into()
}

/// Uses up a limit and waits until the replica has it: a failover must not bring it back.
async fn spend(limiter: &RedisLimiter, master: &Server, limit: &Limit) {
    let check = Check::new(Key::new("settled", "spent").unwrap(), limit);
    for _ in 0..limit.amount() {
        assert!(limiter.check(check).await.unwrap().allowed());
    }
    // WAIT covers the last write of its connection, and so everything before it.
    let mut connection = master.connect().unwrap();
    connection.call(&["SET", "marker", "1", "PX", "60000"]).unwrap().ok();
    assert_eq!(connection.call(&["WAIT", "1", "10000"]).unwrap().int(), 1);
}

/// `take_over` makes another server the master, and returns it. Clients find it on their own.
async fn one_more_limit_at_most(sentinel: &Sentinel, take_over: impl FnOnce(&Sentinel) -> &Server) {
    let (limiter, judge) = (within(&sentinel.url(), Duration::from_millis(250)).await, patient(&sentinel.url()).await);
    let spent = limit("20/365d sliding_window");
    spend(&judge, sentinel.master(), &spent).await;
    let loads = loads(&limiter, "taken over");
    for (_, load) in &loads {
        load.serves(20).await;
    }
    let new = take_over(sentinel);
    let start = Instant::now();
    for (_, load) in &loads {
        load.serves(100).await;
    }
    assert!(start.elapsed() < FINDS_IT, "the new master was found after {:?}", start.elapsed());
    for (limit, load) in loads {
        let answers = load.finish().await;
        answers.only_outages();
        // What the old master admitted last may be lost: at most one limit on each.
        assert!(answers.allowed() <= 2 * AMOUNT, "{limit}: {} admitted", answers.allowed());
        assert!(used(&judge, "taken over", limit.algorithm().name().as_bytes(), &limit).await <= AMOUNT);
    }
    let check = Check::new(Key::new("settled", "spent").unwrap(), &spent);
    assert!(!judge.check(check).await.unwrap().allowed(), "the new master has the writes of the old one");
    assert!(every_key_expires(new) > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ordered_failover_costs_one_more_limit_at_most() {
    let sentinel = Sentinel::start(Flavour::Redis);
    one_more_limit_at_most(&sentinel, Sentinel::failover).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_master_costs_one_more_limit_at_most() {
    let sentinel = Sentinel::start(valkey_if_possible());
    one_more_limit_at_most(&sentinel, |sentinel| {
        let old = sentinel.kill_master();
        sentinel.wait_for_new_master(old)
    })
    .await;
}

/// In a cluster a requested failover waits for the replica: nothing is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ordered_failover_of_a_cluster_loses_nothing() {
    let cluster = Cluster::start(Flavour::Redis, 3, 1);
    let limiter = patient(&cluster.url()).await;
    let loads = loads(&limiter, "handed over");
    for (_, load) in &loads {
        load.serves(20).await;
    }
    let promoted: Vec<usize> = (0..3).map(|master| cluster.failover(master)).collect();
    for (_, load) in &loads {
        load.serves(100).await;
    }
    for (limit, load) in loads {
        let subject = limit.algorithm().name();
        let answers = load.finish().await;
        answers.only_outages();
        within_bound(&limit, &answers.records);
        let used = used(&limiter, "handed over", subject.as_bytes(), &limit).await;
        assert!(used >= answers.allowed() && used <= answers.allowed() + answers.ambiguous(), "{limit}: {used}");
    }
    for node in promoted {
        every_key_expires(&cluster.nodes()[node]);
    }
}

/// A master that becomes a replica under an open connection: calls report it, and work again when it is master again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_only_server_is_not_charged_and_passes() {
    for flavour in flavours() {
        let (server, other) = (Server::of(flavour).start(), Server::of(flavour).start());
        let nobody = other.port().to_string();
        other.kill();
        let limiter = within(&server.url(), Duration::from_secs(2)).await;
        let limit = yearly(Algorithm::TokenBucket, 5);
        let check = Check::new(Key::new("read only", "s").unwrap(), &limit);
        limiter.check(check).await.unwrap();
        server.command(&["REPLICAOF", "127.0.0.1", &nobody]).ok();
        let error = limiter.check(check).await.unwrap_err();
        let CheckError::Store(error) = &error else { panic!("{error:?}") };
        assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
        let reason = error.reason();
        assert!(reason.contains("READONLY") || reason.contains("is a replica"), "{reason}");
        // The error of a log was taken for an answer: the client stayed, although the next connection may reach the master.
        let log = yearly(Algorithm::SlidingLog, 5);
        let both = [check, Check::new(Key::new("log", "s").unwrap(), &log)];
        server.command(&["REPLICAOF", "NO", "ONE"]).ok();
        limiter.check_all(&both).await.unwrap();
        server.command(&["REPLICAOF", "127.0.0.1", &nobody]).ok();
        let CheckError::Store(error) = limiter.check_all(&both).await.unwrap_err() else { panic!() };
        assert!(error.reason().contains("is a replica"), "{error}");
        server.command(&["REPLICAOF", "NO", "ONE"]).ok();
        assert_eq!(limiter.check(check).await.unwrap().binding().remaining(), 2);
        every_key_expires(&server);
    }
}
