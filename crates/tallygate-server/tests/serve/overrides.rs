//! Limits that are changed live: through one server, obeyed by all.

use std::time::Duration;

use serde_json::{Value, json};
use tallygate_server::store::StoreSpec;
use tallygate_testkit::Server;
use tallygate_testkit::http::{Response, request};

use crate::support::served::{Served, bearer, body, until};

const POLICIES: &str = "policies:
  - {name: per-user, domain: api, partition: [user], limit: 5/h,
     overrides: [{match: {plan: pro}, limit: 7/h}]}
  - {name: other, domain: api, match: {path: /x}, limit: 100/h}
";

fn served(url: &str) -> Served {
    let store = StoreSpec { deadline: Duration::from_secs(5), ..StoreSpec::new(url) };
    let served = Served::start(POLICIES, |settings| settings.store = store);
    until("the store", || request(served.http, "GET", "/readyz", &[], b"").status == 200);
    served
}

fn ask(server: &Served, method: &str, path: &str, body: &Value) -> Response {
    let headers = [bearer(), ("content-type", "application/json")];
    request(server.admin, method, path, &headers, body.to_string().as_bytes())
}

fn put(server: &Served, entries: &Value, limit: &str, more: &[(&str, Value)]) -> Response {
    let mut asked =
        json!({"domain": "api", "policy": "per-user", "match": entries, "limit": limit, "reason": "launch day"});
    for (name, value) in more {
        asked[*name] = value.clone();
    }
    ask(server, "PUT", "/v1/overrides", &asked)
}

/// The capacity that a server goes by for a caller.
fn capacity(server: &Served, caller: &Value) -> u64 {
    let asked = json!({"domain": "api", "descriptors": [caller]});
    body(&server.post("/v1/peek", &asked))["limit"].as_u64().unwrap()
}

fn listed(server: &Served) -> Vec<Value> {
    body(&server.admin_get("/v1/overrides"))["overrides"].as_array().unwrap().clone()
}

#[test]
fn an_override_set_through_one_server_is_obeyed_by_the_other_until_it_ends() {
    let redis = Server::redis().start();
    let (one, other) = (served(&redis.url()), served(&redis.url()));
    let (user, pro) = (json!({"user": "1"}), json!({"user": "2", "plan": "pro"}));
    for _ in 0..5 {
        assert_eq!(other.check("1").status, 200);
    }
    assert_eq!(other.check("1").status, 429);
    assert_eq!([capacity(&other, &user), capacity(&other, &pro)], [5, 7]);
    let answer = put(&one, &user, "8/h", &[("author", json!("ada"))]);
    assert_eq!((answer.status, &body(&answer)["effective_after_ms"]), (200, &json!(800)), "{}", answer.text());
    assert_eq!(put(&one, &json!({"plan": "pro"}), "9/h", &[]).status, 200);
    until("the other server", || capacity(&other, &user) == 8 && capacity(&other, &pro) == 9);
    until("the first server", || capacity(&one, &user) == 8 && capacity(&one, &pro) == 9);
    // What was used stays used.
    for _ in 5..8 {
        assert_eq!(other.check("1").status, 200);
    }
    assert_eq!(other.check("1").status, 429);
    // Listed by both, with who and why, in the order in which they were set.
    let said: Vec<Value> = listed(&other);
    assert_eq!(said.len(), 2);
    let first = &said[0];
    assert_eq!((&first["match"], &first["limit"], &first["reason"]), (&user, &json!("8/h"), &json!("launch day")));
    assert_eq!(
        (&first["author"], &said[1]["author"], &first["in_force"]),
        (&json!("ada"), &json!("admin"), &json!(true))
    );
    assert_eq!((one.metric("tallygate_overrides "), other.metric("tallygate_overrides ")), (Some(2.0), Some(2.0)));
    // A server that starts knows them before its first decision.
    let third = served(&redis.url());
    assert_eq!(capacity(&third, &user), 8);
    // Removed through another server than it was set through.
    let target = json!({"domain": "api", "policy": "per-user", "match": user});
    assert_eq!(ask(&third, "POST", "/v1/overrides/remove", &target).status, 200);
    until("the limit of the file", || [&one, &other, &third].iter().all(|server| capacity(server, &user) == 5));
    until("its end", || listed(&one).len() == 1);
    let again = ask(&third, "POST", "/v1/overrides/remove", &target);
    assert_eq!((again.status, &body(&again)["code"]), (404, &json!("unknown_override")));
    for key in ["tallygate:{overrides}:overrides:o", "tallygate:{overrides}:overrides:o-revision"] {
        assert!(redis.command(&["PTTL", key]).int() > 0, "{key}");
    }
}

#[test]
fn an_override_expires_and_the_limit_of_the_file_is_back() {
    let server = Served::with(POLICIES);
    let user = json!({"user": "1"});
    let answer = put(&server, &user, "unlimited", &[("expires_after_ms", json!(1_500))]);
    assert_eq!(answer.status, 200, "{}", answer.text());
    let unlimited =
        || body(&server.post("/v1/peek", &json!({"domain": "api", "descriptors": [user]})))["limit"].is_null();
    until("no limit", unlimited);
    until("the limit of the file", || !unlimited() && capacity(&server, &user) == 5);
    until("no override", || listed(&server).is_empty());
}

/// A reload of the files took the overrides out of force.
#[test]
fn overrides_outlast_a_reload_of_the_files() {
    let server = Served::with(POLICIES);
    let (one, two) = (json!({"user": "1"}), json!({"user": "2"}));
    assert_eq!(put(&server, &one, "50/h", &[]).status, 200);
    until("the override", || capacity(&server, &one) == 50);
    std::fs::write(server.policy_file(), POLICIES.replace("5/h", "6/h")).unwrap();
    until("the new file", || {
        assert_eq!(capacity(&server, &one), 50);
        capacity(&server, &two) == 6
    });
}

#[test]
fn a_server_whose_store_is_gone_keeps_what_it_knows_and_says_so() {
    let redis = Server::redis().start();
    let server = served(&redis.url());
    let user = json!({"user": "1"});
    assert_eq!(put(&server, &user, "8/h", &[]).status, 200);
    until("the override", || capacity(&server, &user) == 8);
    redis.kill();
    until("the metric", || server.metric("tallygate_overrides_read_failures_total").is_some_and(|count| count > 0.0));
    assert_eq!(server.metric("tallygate_overrides "), Some(1.0));
    let refused = put(&server, &user, "9/h", &[]);
    assert_eq!((refused.status, &body(&refused)["code"]), (503, &json!("store_unavailable")));
    assert_eq!(server.admin_get("/v1/overrides").status, 503);
    // Decided here, with the share of the override.
    let status = body(&server.check("1"));
    assert_eq!((&status["source"], &status["limit"]), (&json!("on_error_local"), &json!(8)), "{status}");
}

/// The bytes of the state are the same before and after, and what is said comes true.
#[test]
fn a_preview_says_what_would_happen_and_changes_nothing() {
    let redis = Server::redis().start();
    let server = served(&redis.url());
    for _ in 0..4 {
        assert_eq!(server.check("1").status, 200);
    }
    let state = || redis.command(&["GET", "tallygate:{user=1}:api/per-user:tb"]).text();
    let other = || redis.command(&["EXISTS", "tallygate:{user=2}:api/per-user:tb"]).int();
    let before = (state(), other());
    let callers = json!([{"user": "1"}, {"user": "2"}, {"path": "/x"}]);
    let asked = json!({"domain": "api", "policy": "per-user", "match": {}, "limit": "3/h", "callers": callers});
    let answer = body(&ask(&server, "POST", "/v1/overrides/preview", &asked));
    assert_eq!((state(), other()), before);
    assert_eq!(before.1, 0);
    let seen = |place: usize, side: &str| {
        let side = &answer["callers"][place][side];
        (side["limit"].clone(), side["status"]["remaining"].clone(), side["status"]["allowed"].clone())
    };
    let (five, three) = (json!("5/h"), json!("3/h"));
    assert_eq!(seen(0, "present"), (five.clone(), json!(1), json!(true)), "{answer}");
    assert_eq!(seen(0, "proposed"), (three.clone(), json!(0), json!(false)));
    assert_eq!(
        (seen(1, "present"), seen(1, "proposed")),
        ((five, json!(5), json!(true)), (three, json!(3), json!(true)))
    );
    assert_eq!(answer["callers"][2]["present"], Value::Null, "the policy does not apply");
    assert_eq!(answer["denied"], json!({"present": 0, "proposed": 1}));
    assert!(answer["callers"][0]["proposed"]["status"]["retry_after_ms"].as_u64().unwrap() > 0);
}

#[test]
fn what_cannot_be_set_is_refused_with_a_code_and_the_remedy() {
    let server = Served::with(POLICIES);
    let user = json!({"user": "1"});
    let refused = |answer: Response| {
        let said = body(&answer);
        (answer.status, said["code"].as_str().unwrap().to_owned(), said["detail"].as_str().unwrap().to_owned())
    };
    let detail = |answer: Response, status: u16, code: &str, part: &str| {
        let (got, said, detail) = refused(answer);
        assert_eq!((got, said.as_str()), (status, code), "{detail}");
        assert!(detail.contains(part), "{detail}");
    };
    let field = "invalid_field";
    detail(put(&server, &user, "8 an hour", &[]), 400, field, "Invalid limit `8 an hour`");
    detail(put(&server, &user, "8/h sliding_log", &[]), 400, field, "algorithm in the policy file");
    detail(put(&server, &user, "8/h", &[("expires_after_ms", json!(10))]), 400, field, "choose a later expiry");
    detail(put(&server, &user, "8/h", &[("expires_after_ms", json!(-1))]), 400, field, "whole number");
    detail(put(&server, &user, "8/h", &[("reason", json!("x".repeat(257)))]), 400, field, "write 1 to 256");
    detail(put(&server, &user, "8/h", &[("author", json!(""))]), 400, field, "`author` has 0 bytes");
    detail(put(&server, &user, "8/h", &[("until", json!(1))]), 400, field, "Unknown field `until`");
    detail(put(&server, &json!("1"), "8/h", &[]), 400, field, "`match` must be an object");
    let many = json!({"a": "1", "b": "1", "c": "1", "d": "1", "e": "1"});
    detail(put(&server, &many, "8/h", &[]), 400, field, "at most 4 keys");
    detail(put(&server, &user, "8/h", &[("policy", json!("per-usr"))]), 404, "unknown_policy", "`per-user`");
    detail(put(&server, &user, "8/h", &[("domain", json!("ip"))]), 404, "unknown_policy", "Domain `ip`");
    assert_eq!(listed(&server), Vec::<Value>::new(), "nothing of it was set");
    let of_nobody = json!({"domain": "d".repeat(257), "policy": "per-user", "match": {}, "revision": 1});
    detail(ask(&server, "POST", "/v1/overrides/remove", &of_nobody), 400, field, "`domain` has 257 bytes");
    let revision = body(&put(&server, &user, "8/h", &[]))["revision"].as_u64().unwrap();
    detail(
        put(&server, &user, "9/h", &[("revision", json!(revision - 1))]),
        409,
        "overrides_conflict",
        "changed meanwhile",
    );
    assert_eq!(put(&server, &user, "9/h", &[("revision", json!(revision))]).status, 200);
    let without = request(server.admin, "PUT", "/v1/overrides", &[("content-type", "application/json")], b"{}");
    assert_eq!(without.status, 401);
    let nobody = json!({"domain": "api", "policy": "per-user", "match": {}, "limit": "3/h"});
    detail(ask(&server, "POST", "/v1/overrides/preview", &nobody), 400, field, "name the callers");
}
