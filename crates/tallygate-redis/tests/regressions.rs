//! Regressions, each with what happened.

use std::time::Duration;

use tallygate::{Check, Cost, Key, Limit, Limiter};
use tallygate_redis::RedisStore;
use tallygate_testkit::Server;

/// A log that was converted to a changed limit by a denied call got a TTL of one window. A call charged later in that
/// window did not extend it, so the log vanished while that call still counted.
#[tokio::test]
async fn an_adopted_log_outlives_the_calls_charged_after_it() {
    let server = Server::redis().start();
    let limiter = Limiter::new(RedisStore::connect(&server.url()).await.unwrap());
    let key = Key::new("p", "s").unwrap();
    let (before, after): (Limit, Limit) = ("10/h sliding_log".parse().unwrap(), "10/2h sliding_log".parse().unwrap());
    let cost = |units| Cost::new(units).unwrap();
    assert!(limiter.check(Check::new(key, &before).cost(cost(5))).await.unwrap().allowed());
    assert!(!limiter.check(Check::new(key, &after).cost(cost(6))).await.unwrap().allowed());
    // Longer than the slack of every key: only real time can show the difference.
    tokio::time::sleep(Duration::from_millis(1200)).await;
    let charged = limiter.check(Check::new(key, &after)).await.unwrap();
    assert!(charged.allowed());
    let ttl = server.command(&["PTTL", "tallygate:{s}:p:sl"]).int();
    let counts = i64::try_from(charged.binding().reset_after().as_millis()).unwrap();
    assert!(ttl >= counts, "the key lives for {ttl} ms, the call counts for {counts} ms");
}

/// Permissions revoked after the check on connecting stopped a log's script between ZADD and PEXPIRE: the key was left
/// without a TTL, and charged, although the answer said that nothing was.
#[tokio::test]
async fn permissions_revoked_later_leave_no_log_without_a_ttl() {
    let server = Server::redis().acl("user app on >secret ~tallygate:* +@all").start();
    let limiter = Limiter::new(RedisStore::connect(&server.url_as("app", "secret")).await.unwrap());
    let key = Key::new("p", "s").unwrap();
    let (limit, changed): (Limit, Limit) = ("10/h sliding_log".parse().unwrap(), "10/2h sliding_log".parse().unwrap());
    let state = "tallygate:{s}:p:sl";
    assert!(!server.command(&["ACL", "SETUSER", "app", "-pexpire"]).is_error());
    let refused = limiter.check(Check::new(key, &limit)).await.unwrap_err();
    assert!(refused.to_string().contains("pexpire"), "{refused}");
    assert_eq!(server.command(&["EXISTS", state]).int(), 0, "a call that was refused is not charged");

    assert!(!server.command(&["ACL", "SETUSER", "app", "+pexpire"]).is_error());
    assert!(limiter.check(Check::new(key, &limit)).await.unwrap().allowed());
    assert!(!server.command(&["ACL", "SETUSER", "app", "-pexpire"]).is_error());
    assert!(limiter.check(Check::new(key, &changed)).await.is_err());
    assert_eq!(server.command(&["ZCARD", state]).int(), 1, "what was used is still there");
    assert!(server.command(&["PTTL", state]).int() > 0);
}
