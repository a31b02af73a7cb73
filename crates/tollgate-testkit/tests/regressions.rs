//! Bugs that were found, each with its story.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on must stop")]

use std::time::Duration;

use tollgate::{Check, Cost, Key, Limit, Limiter, ManualClock, MemoryStore, Timestamp};
use tollgate_redis::RedisStore;
use tollgate_testkit::Server;

/// A log that was made to fit a changed limit by a call that was denied got a time to live of one window. A call charged
/// later in that window did not prolong it, so the log vanished while that call still counted.
#[tokio::test]
async fn an_adopted_log_outlives_the_calls_charged_after_it() {
    let server = Server::redis().start();
    let limiter = Limiter::new(RedisStore::connect(&server.url()).await.unwrap());
    let key = Key::new("p", "s").unwrap();
    let (before, after): (Limit, Limit) = ("10/h sliding_log".parse().unwrap(), "10/2h sliding_log".parse().unwrap());
    let cost = |units| Cost::new(units).unwrap();
    assert!(limiter.check(Check::new(key, &before).cost(cost(5))).await.unwrap().allowed());
    assert!(!limiter.check(Check::new(key, &after).cost(cost(6))).await.unwrap().allowed());
    // Longer than the slack that every key has: nothing but real time can show the difference.
    tokio::time::sleep(Duration::from_millis(1200)).await;
    let charged = limiter.check(Check::new(key, &after)).await.unwrap();
    assert!(charged.allowed());
    let ttl = server.command(&["PTTL", "tollgate:{s}:p:sl"]).int();
    let counts = i64::try_from(charged.binding().reset_after().as_millis()).unwrap();
    assert!(ttl >= counts, "the key lives for {ttl} ms, the call counts for {counts} ms");
}

/// Each change of the numbers rounded what was used up to whole units. With two versions of a limit in use at once, as
/// during a rolling deployment, nothing was ever regained: no call of 100 in ten seconds passed.
#[tokio::test]
async fn two_rates_in_turn_do_not_starve_a_bucket() {
    let clock = ManualClock::new(Timestamp::from_micros(1_700_000_000_000_000));
    let limiter = Limiter::new(MemoryStore::builder().clock(clock.clone()).build());
    let limits: [Limit; 2] = ["1/s burst 5".parse().unwrap(), "2/s burst 5".parse().unwrap()];
    let key = Key::new("p", "s").unwrap();
    let mut admitted = 0;
    for call in 0..100 {
        let limit = &limits[call % 2];
        admitted += u64::from(limiter.check_now(Check::new(key, limit)).unwrap().allowed());
        clock.advance(Duration::from_millis(100));
    }
    // Between what the slower and what the faster rate would have given.
    assert!((5 + 9..=5 + 20).contains(&admitted), "{admitted} calls were admitted");
}
