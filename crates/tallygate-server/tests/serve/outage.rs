//! Two servers on one Redis, and what they admit between them while it is gone.

use std::time::Duration;

use serde_json::json;
use tallygate_server::store::StoreSpec;
use tallygate_testkit::proxy::{FaultProxy, Mode};
use tallygate_testkit::{Reply, Server, http};

use crate::support::served::{Served, body, until};

const POLICIES: &str = "
policies:
  - {name: own, domain: api, partition: [user], limit: 100/h, algorithm: fixed_window, on_error: local}
  - {name: fixed, domain: fixed, partition: [user], limit: 100/h, algorithm: fixed_window, on_error: local 10%}
  - {name: cached, domain: cached, partition: [user], limit: 5/h, cache_denials: true}
";

fn served(url: &str) -> Served {
    let served = Served::start(POLICIES, |settings| {
        // On a busy machine a call that is late is decided locally, and may be charged in the store all the same.
        settings.store = StoreSpec { deadline: Duration::from_secs(1), ..StoreSpec::new(url) };
        settings.source_header = true;
    });
    until("the store", || ready(&served));
    served
}

fn ready(server: &Served) -> bool {
    http::request(server.http, "GET", "/readyz", &[], b"").status == 200
}

/// Two servers, once each has counted both.
fn two(urls: [&str; 2]) -> [Served; 2] {
    let servers = urls.map(served);
    until("two instances", || servers.iter().all(|server| server.metric("tallygate_instances ") == Some(2.0)));
    servers
}

/// How many of these calls are admitted.
fn admitted(server: &Served, domain: &str, user: &str, calls: usize) -> usize {
    let question = json!({"domain": domain, "descriptors": [{"user": user}]});
    let answers = (0..calls).map(|_| server.post("/v1/check", &question));
    let answers: Vec<_> = answers.inspect(|answer| assert!(matches!(answer.status, 200 | 429))).collect();
    answers.iter().filter(|answer| answer.status == 200).count()
}

/// 300 of 100 were admitted in one window: 100 from the store, and 100 by each server on its own.
#[test]
fn a_redis_that_is_stopped_gives_nobody_a_fresh_limit() {
    let redis = Server::redis().start();
    let [one, other] = two([&redis.url(), &redis.url()]);
    // One user has used up his limit at both servers, the next at one, and the last has not come yet.
    assert_eq!(admitted(&one, "api", "used-up", 70) + admitted(&other, "api", "used-up", 70), 100);
    assert_eq!(admitted(&one, "api", "at-one", 150), 100);
    redis.stop();
    until("red", || !ready(&one) && !ready(&other));
    let local = |domain, user| (admitted(&one, domain, user, 120), admitted(&other, domain, user, 120));
    assert_eq!(local("api", "used-up"), (0, 0));
    assert_eq!(local("api", "at-one"), (0, 50), "the other server was not told");
    assert_eq!(local("api", "new"), (50, 50));
    assert_eq!(local("fixed", "new"), (10, 10));
    let denied = one.check("new");
    assert_eq!((denied.header("x-tallygate-source"), &body(&denied)["limit"]), (Some("on_error_local"), &json!(50)));
    redis.cont();
    until("green", || ready(&one) && ready(&other));
    // Nothing that was admitted meanwhile is known to the store: the limit and all shares are the most of a window.
    assert_eq!(admitted(&one, "api", "new", 120) + admitted(&other, "api", "new", 120), 100);
    assert_eq!(one.check("at-one").header("x-tallygate-source"), Some("store"));
}

#[test]
fn one_server_that_is_cut_off_admits_its_share_and_no_more() {
    let redis = Server::redis().start();
    let way = FaultProxy::start(redis.addr());
    let [near, far] = two([&redis.url(), &way.url()]);
    way.set(Mode::BlackHole);
    until("red", || !ready(&far));
    assert_eq!(admitted(&near, "api", "a", 150), 100);
    assert_eq!(admitted(&far, "api", "a", 150), 50);
    // It counts both, until long after the other one is gone.
    assert_eq!([&near, &far].map(|server| server.metric("tallygate_instances ")), [Some(2.0); 2]);
    way.set(Mode::Pass);
    until("green", || ready(&far));
    assert_eq!(admitted(&far, "api", "a", 10), 0);
}

/// Every key of the store expires, and an instance that stops is not counted.
#[test]
fn instances_are_counted_by_one_key_that_expires() {
    let redis = Server::redis().start();
    let [one, other] = two([&redis.url(), &redis.url()]);
    let key = "tallygate:{instances}:instances:i";
    assert_eq!(redis.command(&["ZCARD", key]), Reply::Int(2));
    assert!(matches!(redis.command(&["PTTL", key]), Reply::Int(1..=30_000)));
    other.stop().unwrap();
    assert_eq!(redis.command(&["ZCARD", key]), Reply::Int(1));
    drop(one);
}

#[test]
fn a_hot_key_that_is_denied_costs_the_store_one_call_a_second() {
    let redis = Server::redis().start();
    let server = served(&redis.url());
    assert_eq!(admitted(&server, "cached", "hot", 1005), 5);
    let count = |source: &str| {
        let labels = format!("domain=\"cached\",policy=\"cached\",outcome=\"denied\",source=\"{source}\"");
        server.metric(&format!("tallygate_decisions_total{{{labels}}}")).unwrap()
    };
    assert_eq!(count("store") + count("deny_cache"), 1000.0);
    assert!(count("deny_cache") > 900.0, "{}", count("deny_cache"));
    let denied = server.post("/v1/check", &json!({"domain": "cached", "descriptors": [{"user": "hot"}]}));
    assert_eq!((denied.status, &body(&denied)["remaining"]), (429, &json!(0)));
    // A refund here takes effect at once.
    let refund = json!({"domain": "cached", "descriptors": [{"user": "hot"}], "cost": 2});
    assert_eq!(server.post("/v1/refund", &refund).status, 200);
    assert_eq!(admitted(&server, "cached", "hot", 10), 2);
}
