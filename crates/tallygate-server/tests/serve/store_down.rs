//! A store that dies, hangs, or never lets us in.

use std::time::{Duration, Instant};

use serde_json::json;
use tallygate_server::store::StoreSpec;
use tallygate_testkit::http::request;
use tallygate_testkit::{Cluster, Flavour, Server};

use crate::support::served::{Served, body, until};

const POLICIES: &str = "
policies:
  - {name: open, domain: open, limit: 2/h, on_error: allow}
  - {name: closed, domain: closed, limit: 2/h, on_error: deny}
  - {name: own, domain: own, limit: 2/h, on_error: local}
";

fn served(url: &str) -> Served {
    Served::start(POLICIES, |settings| settings.store = StoreSpec::new(url))
}

fn ready(server: &Served) -> bool {
    request(server.http, "GET", "/readyz", &[], b"").status == 200
}

fn ask(server: &Served, domain: &str) -> (u16, String, Duration) {
    let began = clock();
    let answer = server.post("/v1/check", &json!({"domain": domain, "descriptors": [{"user": "1"}]}));
    (answer.status, body(&answer)["source"].as_str().unwrap().to_owned(), began.elapsed())
}

#[expect(clippy::disallowed_methods, reason = "a stopwatch: it decides nothing")]
fn clock() -> Instant {
    Instant::now()
}

/// Every policy answers by its `on_error`, and no call takes much longer than the deadline of 15 ms.
fn answers_follow_on_error(server: &Served) {
    assert_eq!(request(server.http, "GET", "/livez", &[], b"").status, 200);
    let answers = |domain: &str| [ask(server, domain), ask(server, domain), ask(server, domain)];
    let check = |domain: &str, expected: [(u16, &str); 3]| {
        let answers = answers(domain);
        let seen: Vec<(u16, &str)> = answers.iter().map(|(status, source, _)| (*status, source.as_str())).collect();
        assert_eq!(seen, expected, "{domain}");
        let slowest = answers.iter().map(|(.., took)| *took).max().unwrap();
        assert!(slowest < Duration::from_millis(250), "{domain}: {slowest:?}");
    };
    check("open", [(200, "on_error_allow"); 3]);
    check("closed", [(503, "on_error_deny"); 3]);
    // The body said that waiting does not help, beside a header that said to wait.
    let closed = server.post("/v1/check", &json!({"domain": "closed", "descriptors": [{"user": "1"}]}));
    assert_eq!((closed.header("retry-after"), &body(&closed)["retry_after_ms"]), (Some("1"), &json!(1000)));
    assert_eq!(body(&closed)["code"], "store_unavailable");
    check("own", [(200, "on_error_local"), (200, "on_error_local"), (429, "on_error_local")]);
}

#[test]
fn a_killed_redis_turns_readiness_red_and_policies_answer_for_themselves() {
    let redis = Server::redis().start();
    let server = served(&redis.url());
    until("the store", || ready(&server));
    assert_eq!(ask(&server, "closed").1, "store");
    redis.kill();
    until("red", || !ready(&server));
    let anyway = request(server.http, "GET", "/readyz?store=optional", &[], b"");
    assert_eq!(anyway.status, 200, "on_error answers here, and there may be no other server to turn to");
    answers_follow_on_error(&server);
    redis.restart();
    until("green", || ready(&server));
    assert_eq!(ask(&server, "closed").1, "store");
}

#[test]
fn a_hung_redis_costs_nobody_more_than_the_deadline() {
    let redis = Server::redis().start();
    let server = served(&redis.url());
    until("the store", || ready(&server));
    redis.stop();
    // Late is not down: a flood could bring that about, so nobody is allowed for it.
    let (status, source, took) = ask(&server, "open");
    assert_eq!((status, source.as_str()), (503, "shed"));
    assert!(took < Duration::from_millis(250), "{took:?}");
    assert_eq!(ask(&server, "closed").0, 503);
    until("red", || !ready(&server));
    answers_follow_on_error(&server);
    redis.cont();
    until("green", || ready(&server));
}

#[test]
fn a_wrong_password_at_the_start_is_no_reason_not_to_start() {
    let redis = Server::redis().password("right").start();
    let server = served(&format!("redis://:wrong@127.0.0.1:{}", redis.port()));
    answers_follow_on_error(&server);
    let red = request(server.http, "GET", "/readyz", &[], b"");
    assert_eq!(red.status, 503);
    let reason = || request(server.http, "GET", "/readyz", &[], b"").text().to_owned();
    until("the reason", || reason().contains("password is wrong"));
    assert!(!reason().contains("wrong@"), "{}", reason());
    assert_eq!(server.metric("tallygate_store_up"), Some(0.0));
}

fn readiness(server: &Served) -> (u16, serde_json::Value) {
    let answer = request(server.http, "GET", "/readyz", &[], b"");
    (answer.status, body(&answer))
}

/// A probe that only reads said that all was well.
#[test]
fn a_store_that_refuses_charges_is_not_ready_and_says_why() {
    let redis = Server::redis().acl("user app on >pw ~* &* +@all").start();
    let server = served(&redis.url_as("app", "pw"));
    until("the store", || ready(&server));
    assert_eq!(readiness(&server), (200, json!({"status": "ready", "store_served": 1.0})));
    let refused = r#"tallygate_store_finding{check="charge",severity="problem"}"#;
    assert_eq!(server.metric(refused), Some(0.0));
    redis.command(&["ACL", "SETUSER", "app", "-set"]).ok();
    until("red", || !ready(&server));
    let (_, said) = readiness(&server);
    assert!(said["reason"].as_str().is_some_and(|why| why.contains("+set")) && said["store_served"] == 1.0, "{said}");
    assert_eq!(server.metric(refused), Some(1.0));
    redis.command(&["ACL", "SETUSER", "app", "+set"]).ok();
    until("green", || ready(&server));
    until("no finding", || server.metric(refused) == Some(0.0));
}

#[test]
fn one_dead_shard_is_seen_in_the_share_of_the_keys_that_are_served() {
    let cluster = Cluster::start(Flavour::Redis, 3, 0);
    let server = served(&cluster.url());
    let ratio = || server.metric("tallygate_store_served_ratio").unwrap_or(0.0);
    let up = |at: usize| {
        let address = cluster.nodes()[at].addr();
        server.metric(&format!(r#"tallygate_store_server_up{{server="{address}"}}"#))
    };
    until("all shards", || ready(&server) && (0..3).all(|at| up(at) == Some(1.0)));
    assert_eq!((ratio(), &readiness(&server).1["store_served"]), (1.0, &json!(1.0)));
    cluster.nodes()[1].kill();
    until("one dead shard", || up(1) == Some(0.0));
    until("two thirds", || (0.6..0.7).contains(&ratio()));
    assert_eq!([up(0), up(2)], [Some(1.0); 2]);
    let served = readiness(&server).1["store_served"].as_f64().unwrap();
    assert!((0.6..0.7).contains(&served), "{served}");
}
