//! Calls that are repeated under their id.

use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};
use tallygate_server::store::StoreSpec;
use tallygate_testkit::Server;
use tallygate_testkit::http::request;

use crate::support::served::{Served, body, until};

const POLICIES: &str = "
policies:
  - {name: requests, domain: mail, partition: [user], limit: 10/h, algorithm: fixed_window, holds: {}}
  - {name: all, domain: mail, partition: [], limit: 1000/h, algorithm: sliding_window, holds: {}}
  - {name: trial, domain: mail, partition: [user], limit: 2/h, mode: shadow}
";

/// A server on the embedded store, and one on Redis.
fn on_both(test: impl Fn(&Served)) {
    test(&Served::with(POLICIES));
    let redis = Server::redis().start();
    let store = StoreSpec { deadline: Duration::from_secs(5), ..StoreSpec::new(&redis.url()) };
    let served = Served::start(POLICIES, |settings| settings.store = store);
    until("the store", || request(served.http, "GET", "/readyz", &[], b"").status == 200);
    test(&served);
}

fn with(question: &Value, more: Value) -> Value {
    let mut question = question.clone();
    question.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    question
}

fn mail(user: &str, more: Value) -> Value {
    with(&json!({"domain": "mail", "descriptors": [{"user": user}]}), more)
}

/// The answer without what says that it is a repeat.
fn first_of(mut answer: Value) -> Value {
    assert_eq!(answer.as_object_mut().unwrap().remove("replayed"), Some(json!(true)), "{answer}");
    answer
}

#[test]
fn a_repeat_has_the_first_answer_and_is_charged_once() {
    on_both(|server| {
        let ad_hoc = json!({"key": "alice", "limit": "10/h"});
        for (name, question) in [("policies", mail("alice", json!({}))), ("ad hoc", ad_hoc)] {
            for (verb, more) in [
                ("check", json!({})),
                ("check", json!({"cost": 3})),
                ("check", json!({"cost": 8, "up_to": true, "at_least": 2})),
                ("reserve", json!({"units": 1, "ttl_ms": 60_000})),
            ] {
                let path = format!("/v1/{verb}");
                let call = with(&with(&question, json!({"request_id": format!("{name} {verb} {more}")})), more);
                let first = server.post(&path, &call);
                if first.status == 429 {
                    assert_eq!(verb, "reserve", "a reservation finds nothing left: {}", first.text());
                    server.post("/v1/reset", &question);
                    continue;
                }
                assert_eq!((first.status, body(&first).get("replayed")), (200, None), "{name} {call}");
                let left = body(&server.post("/v1/peek", &question))["statuses"].clone();
                for _ in 0..3 {
                    let again = server.post(&path, &call);
                    assert_eq!((again.status, first_of(body(&again))), (200, body(&first)), "{name} {call}");
                    assert_eq!(again.header("ratelimit-policy"), first.header("ratelimit-policy"));
                }
                let now = body(&server.post("/v1/peek", &question))["statuses"].clone();
                let remaining = |statuses: &Value, at: usize| statuses[at]["remaining"].as_u64();
                assert!(remaining(&now, 0) >= remaining(&left, 0), "{name} {call}: {now} after {left}");
            }
        }
    });
}

#[test]
fn another_call_under_the_same_id_is_refused_and_charged_nothing() {
    on_both(|server| {
        let ad_hoc = json!({"key": "alice", "limit": "10/h", "request_id": "one"});
        for (question, other_subject) in [
            (mail("alice", json!({"request_id": "one"})), mail("bob", json!({"request_id": "one"}))),
            (ad_hoc.clone(), with(&ad_hoc, json!({"key": "bob"}))),
        ] {
            assert_eq!(server.post("/v1/check", &question).status, 200);
            let refused = |path: &str, more: Value| {
                let answer = server.post(path, &with(&question, more));
                let said = body(&answer);
                assert_eq!((answer.status, &said["code"]), (409, &json!("request_id_conflict")), "{said}");
                assert!(said["detail"].as_str().unwrap().contains("used for another call"), "{said}");
                assert_eq!((said.get("allowed"), answer.header("retry-after")), (None, None), "it is no denial");
            };
            refused("/v1/check", json!({"cost": 2}));
            refused("/v1/check", json!({"up_to": true}));
            refused("/v1/reserve", json!({}));
            assert_eq!(body(&server.post("/v1/check", &other_subject)).get("replayed"), None, "an id of somebody else");
            assert_eq!(first_of(body(&server.post("/v1/check", &question)))["remaining"], 9);
        }
    });
}

/// Two holds for one reservation would be settled once.
#[test]
fn a_reservation_that_is_repeated_has_the_same_hold() {
    on_both(|server| {
        for question in [mail("alice", json!({})), json!({"key": "alice", "limit": "10/h"})] {
            let call = with(&question, json!({"units": 4, "request_id": "one", "ttl_ms": 60_000}));
            let holds = [(); 3].map(|()| body(&server.post("/v1/reserve", &call))["hold"].as_str().unwrap().to_owned());
            assert!(holds.iter().all(|hold| *hold == holds[0]), "three holds for one call");
            let settle = json!({"hold": holds[0], "units": 1});
            assert_eq!(body(&server.post("/v1/settle", &settle))["refunded"], 3);
            let peek = body(&server.post("/v1/peek", &question));
            assert_eq!((&peek["remaining"], &peek["held"]), (&json!(9), &json!(0)));
            // Repeated once more, it is the same: nothing is charged or held anew.
            assert_eq!(body(&server.post("/v1/reserve", &call))["hold"], holds[0]);
            assert_eq!(body(&server.post("/v1/peek", &question))["remaining"], 9);
        }
    });
}

/// The hold of a caller that hangs up is cancelled: one that can ask again would have been given a hold that is gone.
#[test]
fn a_caller_that_hung_up_and_asks_again_has_an_open_hold() {
    on_both(|server| {
        let question = mail("alice", json!({"units": 4, "ttl_ms": 60_000}));
        let call = with(&question, json!({"request_id": "one"})).to_string();
        let mut left = TcpStream::connect(server.http).unwrap();
        write!(
            left,
            "POST /v1/reserve HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{call}",
            call.len()
        )
        .unwrap();
        drop(left);
        let held = || body(&server.post("/v1/peek", &mail("alice", json!({}))))["statuses"][1]["held"].clone();
        let again = body(&server.post("/v1/reserve", &serde_json::from_str(&call).unwrap()));
        assert_eq!(held(), json!(4), "{again}");
        let settled = body(&server.post("/v1/settle", &json!({"hold": again["hold"], "units": 4})));
        assert_eq!((&settled["state"], &settled["settled"]), (&json!("settled"), &json!(4)));
    });
}

#[test]
fn a_denied_call_is_decided_anew() {
    on_both(|server| {
        let call = mail("alice", json!({"cost": 10, "request_id": "denied"}));
        assert_eq!(server.post("/v1/check", &mail("alice", json!({"cost": 10}))).status, 200);
        let denied = server.post("/v1/check", &call);
        assert_eq!((denied.status, body(&denied).get("replayed")), (429, None));
        assert_eq!(server.post("/v1/refund", &mail("alice", json!({"cost": 10}))).status, 200);
        let allowed = server.post("/v1/check", &call);
        assert_eq!((allowed.status, body(&allowed).get("replayed")), (200, None));
        first_of(body(&server.post("/v1/check", &call)));
    });
}

/// An answer is forgotten after the time that the server was given.
#[test]
fn an_answer_is_remembered_for_as_long_as_the_server_says() {
    let server = Served::start(POLICIES, |settings| settings.request_id_ttl = Duration::from_millis(30));
    let call = mail("alice", json!({"request_id": "one"}));
    let first = body(&server.post("/v1/check", &call));
    until("the end of its time", || body(&server.post("/v1/check", &call))["decided_at_us"] != first["decided_at_us"]);
}

#[test]
fn a_repeat_is_counted_as_a_call_and_its_units_once() {
    let server = Served::with(POLICIES);
    let call = mail("alice", json!({"cost": 4, "request_id": "one"}));
    for _ in 0..3 {
        assert_eq!(server.post("/v1/check", &call).status, 200);
    }
    assert_eq!(server.post("/v1/check", &with(&call, json!({"cost": 1}))).status, 409);
    let hold = mail("alice", json!({"units": 2, "request_id": "two"}));
    for _ in 0..2 {
        assert_eq!(server.post("/v1/reserve", &hold).status, 200);
    }
    let of_policy = |metric: &str, more: &str| {
        server.metric(&format!("tallygate_{metric}{{domain=\"mail\",policy=\"requests\"{more}}}"))
    };
    assert_eq!(of_policy("units_total", ",outcome=\"allowed\""), Some(6.0));
    assert_eq!(of_policy("decisions_total", ",outcome=\"allowed\",source=\"store\""), Some(2.0));
    assert_eq!(of_policy("holds_total", ",outcome=\"reserved\""), Some(1.0));
    assert_eq!(of_policy("hold_units_total", ",outcome=\"reserved\""), Some(2.0));
    let calls = |outcome: &str| {
        server.metric(&format!("tallygate_calls_total{{api=\"http\",outcome=\"{outcome}\"}}")).unwrap_or_default()
    };
    assert_eq!((calls("allowed"), calls("invalid")), (5.0, 1.0));
    assert_eq!(server.metric("tallygate_replayed_calls_total{api=\"http\"}"), Some(3.0));
}

#[test]
fn an_id_that_makes_no_sense_is_refused_with_the_remedy() {
    let server = Served::with(POLICIES);
    for question in [mail("alice", json!({})), json!({"key": "alice", "limit": "10/h"})] {
        for (verb, id, says) in [
            ("check", json!(""), "The request id is empty"),
            ("reserve", json!("x".repeat(129)), "has 129 bytes; at most 128"),
            ("check", json!(4711), "must be a string, not a number: write \"4711\""),
            ("check", json!(["a"]), "must be a string, not a list"),
            ("peek", json!("one"), "`request_id` is for /v1/check and /v1/reserve, not for /v1/peek"),
            ("refund", json!("one"), "not for /v1/refund"),
        ] {
            let answer = server.post(&format!("/v1/{verb}"), &with(&question, json!({"request_id": id})));
            let said = body(&answer);
            assert_eq!((answer.status, &said["code"]), (400, &json!("invalid_field")), "{verb} {id}: {said}");
            assert!(said["detail"].as_str().unwrap().contains(says), "{verb} {id}: {said}");
        }
        for id in ["x".repeat(128), "\u{0}\n\u{1b}[31m".to_owned(), "é".repeat(64)] {
            assert_eq!(server.post("/v1/check", &with(&question, json!({"request_id": id}))).status, 200);
        }
        assert_eq!(server.post("/v1/check", &with(&question, json!({"request_id": null}))).status, 200);
    }
}
