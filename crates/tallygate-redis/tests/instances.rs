//! The count of the processes that share a store.

use std::time::Duration;

use tallygate_redis::RedisStore;
use tallygate_testkit::Server;
use tallygate_testkit::wait::PATIENCE;

const KEY: &str = "tallygate:{instances}:instances:i";
const TTL: Duration = Duration::from_secs(1000);

fn members(server: &Server) -> Vec<String> {
    server.command(&["ZRANGE", KEY, "0", "-1"]).items().iter().map(tallygate_testkit::Reply::text).collect()
}

/// Milliseconds on the clock of the server.
fn millis(server: &Server) -> i64 {
    let time = server.command(&["TIME"]);
    let part = |place: usize| time.items()[place].text().parse::<i64>().unwrap();
    part(0) * 1000 + part(1) / 1000
}

/// A process counts from when it said so until its TTL has passed, or until it says that it ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_count_until_they_end_or_are_not_seen() {
    let server = Server::redis().skewed_clock().start();
    let store = RedisStore::builder(&server.url()).deadline(PATIENCE).connect().await.unwrap();
    let alive = async |id: &str| store.count_instances(id, TTL).await.unwrap();
    let ends = async |id: &str| store.count_instances(id, Duration::ZERO).await.unwrap();
    let at = |seconds: i64| server.skew(seconds * 1_000_000);
    for (id, count) in [("one", 1), ("two", 2), ("one", 2), ("three", 3), ("four", 4)] {
        assert_eq!(alive(id).await, count, "{id}");
    }
    assert_eq!(ends("four").await, 3);
    assert_eq!(ends("unknown").await, 3);
    // Seen again in time.
    at(900);
    assert_eq!(alive("two").await, 3);
    // One and three were last seen more than a TTL ago.
    at(1100);
    assert_eq!(alive("five").await, 2);
    assert_eq!(members(&server), ["two", "five"]);
    // And then two.
    at(2000);
    assert_eq!(alive("five").await, 1);
    assert_eq!(members(&server), ["five"]);
    // Nobody says anything any more: the set ends with the last process.
    let left = server.command(&["PTTL", KEY]).int();
    assert!(left <= 1_000_000 && left > 1_000_000 - 60_000, "{left} ms");
    assert_eq!((ends("two").await, ends("five").await), (1, 0));
}

/// What is stored is exact to the millisecond, by the clock of the server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_is_seen_now_and_gone_a_ttl_later() {
    // Not Valkey: its clock sometimes steps back.
    let server = Server::redis().start();
    let store = RedisStore::builder(&server.url()).deadline(PATIENCE).connect().await.unwrap();
    let mut monitor = server.connect().unwrap();
    monitor.call(&["MONITOR"]).unwrap().ok();
    for round in 0..100 {
        let before = millis(&server);
        store.count_instances("one", TTL).await.unwrap();
        let after = millis(&server);
        let seen: i64 = server.command(&["ZSCORE", KEY, "one"]).text().parse().unwrap();
        assert!(seen >= before && seen <= after, "{before} {seen} {after}, round {round}");
        let gone = format!(r#"lua] "ZCOUNT" "{KEY}" "-inf" "({}""#, seen - 1_000_000);
        let counted = std::iter::repeat_with(|| monitor.receive().unwrap().text())
            .find(|line| line.contains(r#"lua] "ZCOUNT""#))
            .unwrap();
        assert!(counted.ends_with(&gone), "{counted}, seen at {seen}");
    }
}
