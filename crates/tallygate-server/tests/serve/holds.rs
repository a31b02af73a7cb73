//! Units that are reserved, and settled later.

mod learned;
mod listing;

use std::time::Duration;

use serde_json::{Value, json};
use tallygate_server::store::StoreSpec;
use tallygate_testkit::Server;
use tallygate_testkit::http::request;

use crate::support::served::{Served, body, until};

const POLICIES: &str = "
policies:
  - {name: requests, domain: llm, partition: [user], limit: 10/h, algorithm: fixed_window, holds: {}}
  - {name: tokens, domain: llm, partition: [user], limit: 1000/h, algorithm: sliding_log, holds: {on_abandon: refund}}
  - {name: strict, domain: strict, partition: [user], limit: 10/h,
     holds: {overrun: refuse, max_open: 2, max_held: 50%, max_ttl: 10s}}
  - {name: capped, domain: capped, partition: [user], limit: 10/h, algorithm: fixed_window, holds: {overrun: cap}}
  - {name: guess, domain: guess, partition: [user], limit: 100000/h, algorithm: fixed_window, holds: {estimate: p95 from 500}}
  - {name: calls, domain: guess, partition: [user], limit: 1000/h, algorithm: fixed_window}
  - {name: bold, domain: bold, partition: [user], limit: 100/h, holds: {estimate: p95 from 5000, max_held: 10%}}
  - {name: trial, domain: trial, partition: [user], limit: 5/h, mode: shadow, holds: {}}
  - {name: free, domain: free, limit: unlimited}
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

fn llm(user: &str, more: Value) -> Value {
    let mut question = json!({"domain": "llm", "descriptors": [{"user": user}]});
    question.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    question
}

/// The token of a reservation that must be allowed.
fn reserved(server: &Served, question: &Value) -> String {
    let answer = server.post("/v1/reserve", question);
    assert_eq!(answer.status, 200, "{}", answer.text());
    body(&answer)["hold"].as_str().unwrap().to_owned()
}

/// The status of a call about a hold, and these members of its answer.
fn ended<const N: usize>(server: &Served, verb: &str, question: Value, members: [&str; N]) -> (u16, [Value; N]) {
    let answer = server.post(&format!("/v1/{verb}"), &question);
    let said = body(&answer);
    (answer.status, members.map(|member| said[member].clone()))
}

#[test]
fn what_was_not_used_is_given_back_under_each_policy() {
    on_both(|server| {
        let answer = body(&server.post("/v1/reserve", &llm("a", json!({"units": {"tokens": 900}, "ttl_ms": 5000}))));
        assert_eq!((&answer["allowed"], &answer["expires_after_ms"]), (&json!(true), &json!(5000)));
        let status = |at: usize| (answer["statuses"][at]["policy"].clone(), answer["statuses"][at]["held"].clone());
        assert_eq!([status(0), status(1)], [(json!("requests"), json!(1)), (json!("tokens"), json!(900))]);
        let hold = &answer["hold"];
        let answer = body(&server.post("/v1/settle", &json!({"hold": hold, "units": {"tokens": 12}})));
        assert_eq!(
            [&answer["state"], &answer["settled"], &answer["refunded"], &answer["held"], &answer["debt"]],
            [&json!("settled"), &json!(12), &json!(888), &json!(0), &json!(0)]
        );
        let part = |policy, settled, refunded, limit, remaining| {
            json!({
                "policy": policy, "reserved": settled + refunded, "held": 0, "settled": settled, "refunded": refunded,
                "unpaid": 0, "debt": 0, "limit": limit, "remaining": remaining,
            })
        };
        assert_eq!(answer["policies"], json!([part("requests", 1, 0, 10, 9), part("tokens", 12, 888, 1000, 988)]));
        // Once more: nothing changes, and the answer says how it was settled.
        let again =
            ended(server, "settle", json!({"hold": hold, "units": {"tokens": 500}}), ["code", "state", "settled"]);
        assert_eq!(again, (409, [json!("hold_ended"), json!("settled"), json!(12)]));
        let cancelled = ended(server, "cancel", json!({"hold": hold}), ["state", "refunded"]);
        assert_eq!(cancelled, (409, [json!("settled"), json!(888)]));
    });
}

#[test]
fn a_stream_settles_in_parts_and_its_hold_is_extended() {
    on_both(|server| {
        let question = json!({"key": "u", "limit": "1000/h", "units": 900, "ttl_ms": 2000});
        let hold = reserved(server, &question);
        let part = |units: u64| json!({"hold": hold, "units": units, "partial": true});
        let members = ["state", "settled", "held"];
        assert_eq!(ended(server, "settle", part(100), members), (200, [json!("open"), json!(100), json!(800)]));
        assert_eq!(ended(server, "settle", part(0), members), (200, [json!("open"), json!(100), json!(800)]));
        let (status, [state, after]) =
            ended(server, "extend", json!({"hold": hold, "ttl_ms": 60_000}), ["state", "expires_after_ms"]);
        assert_eq!((status, state), (200, json!("open")));
        assert!(after.as_u64().unwrap() > 50_000, "{after}");
        let shorter = ended(server, "extend", json!({"hold": hold, "ttl_ms": 1}), ["state", "expires_after_ms"]);
        assert!(shorter.1[1].as_u64().unwrap() > 50_000, "an extension shortened it: {shorter:?}");
        let end = json!({"hold": hold, "units": 50});
        let members = ["state", "settled", "refunded"];
        assert_eq!(ended(server, "settle", end, members), (200, [json!("settled"), json!(150), json!(750)]));
    });
}

#[test]
fn all_that_is_reserved_is_settled_without_a_number_and_given_back_by_a_cancellation() {
    on_both(|server| {
        let hold = reserved(server, &llm("a", json!({"units": {"tokens": 300}})));
        let members = ["state", "settled", "refunded"];
        let all = ended(server, "settle", json!({"hold": hold}), members);
        assert_eq!(all, (200, [json!("settled"), json!(300), json!(0)]));
        let hold = reserved(server, &llm("a", json!({"units": {"tokens": 300}})));
        let none = ended(server, "cancel", json!({"hold": hold}), members);
        assert_eq!(none, (200, [json!("cancelled"), json!(0), json!(300)]));
        let peek = body(&server.post("/v1/peek", &llm("a", json!({}))));
        let left = |at: usize| (peek["statuses"][at]["remaining"].clone(), peek["statuses"][at]["held"].clone());
        assert_eq!([left(0), left(1)], [(json!(9), json!(0)), (json!(700), json!(0))]);
    });
}

#[test]
fn an_overrun_becomes_a_debt_or_is_refused_as_the_policy_says() {
    on_both(|server| {
        let hold = reserved(server, &llm("a", json!({"units": {"tokens": 900}})));
        let settled = ended(server, "settle", json!({"hold": hold, "units": {"tokens": 1200}}), ["settled", "debt"]);
        assert_eq!(settled, (200, [json!(1200), json!(200)]));
        let denied = server.post("/v1/check", &llm("a", json!({})));
        assert_eq!((denied.status, &body(&denied)["debt"]), (429, &json!(200)));
        let hold =
            reserved(server, &json!({"domain": "strict", "descriptors": [{"user": "a"}], "units": 4, "ttl_ms": 9000}));
        let refused = server.post("/v1/settle", &json!({"hold": hold, "units": 5}));
        let answer = body(&refused);
        assert_eq!(
            (refused.status, &answer["code"], &answer["state"]),
            (409, &json!("overrun_refused"), &json!("open"))
        );
        assert!(answer["detail"].as_str().unwrap().contains("`strict` holds 4 units"), "{answer}");
        assert_eq!(ended(server, "settle", json!({"hold": hold, "units": 4}), ["settled"]), (200, [json!(4)]));
        let question = json!({"domain": "capped", "descriptors": [{"user": "a"}], "units": 4});
        let hold = reserved(server, &question);
        let capped =
            ended(server, "settle", json!({"hold": hold, "units": 25}), ["state", "settled", "unpaid", "debt"]);
        assert_eq!(capped, (200, [json!("settled"), json!(10), json!(15), json!(0)]), "what there is room for");
    });
}

#[test]
fn one_number_does_not_settle_different_reservations() {
    on_both(|server| {
        let hold = reserved(server, &llm("a", json!({"units": {"tokens": 900}})));
        let members = ["code", "state", "held"];
        let refused = ended(server, "settle", json!({"hold": hold, "units": 12}), members);
        assert_eq!(refused, (409, [json!("different_units"), json!("open"), json!(900)]));
        let hold = reserved(server, &llm("b", json!({"units": 7})));
        assert_eq!(ended(server, "settle", json!({"hold": hold, "units": 3}), ["settled"]), (200, [json!(3)]));
    });
}

#[test]
fn a_hold_that_nobody_settles_expires_and_says_so() {
    on_both(|server| {
        let hold = reserved(server, &llm("a", json!({"units": {"tokens": 900}, "ttl_ms": 50})));
        let peek = || body(&server.post("/v1/peek", &llm("a", json!({}))));
        until("the deadline", || peek()["statuses"][1]["held"] == 0);
        let late = ended(server, "settle", json!({"hold": hold}), ["code", "state"]);
        assert_eq!(late, (409, [json!("hold_ended"), json!("expired")]));
        let answer = body(&server.post("/v1/cancel", &json!({"hold": hold})));
        let part = |at: usize| (answer["policies"][at]["settled"].clone(), answer["policies"][at]["refunded"].clone());
        assert_eq!([part(0), part(1)], [(json!(1), json!(0)), (json!(0), json!(900))], "charge, and refund");
    });
}

#[test]
fn a_hold_of_a_call_without_a_limit_is_empty_and_can_be_settled() {
    on_both(|server| {
        for domain in ["free", "strict"] {
            let question = json!({"domain": domain, "descriptors": [{"nobody": "a"}], "ttl_ms": 9});
            for (verb, more) in
                [("settle", json!({"units": 3})), ("cancel", json!({})), ("extend", json!({"ttl_ms": 7}))]
            {
                let mut about = json!({"hold": reserved(server, &question)});
                about.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
                assert_eq!(ended(server, verb, about, ["settled", "policies"]), (200, [json!(0), json!([])]));
            }
        }
    });
}

#[test]
fn what_may_not_be_held_is_denied_in_these_words() {
    on_both(|server| {
        let reserve = |units: u64| {
            let question = json!({"domain": "strict", "descriptors": [{"user": "a"}], "units": units, "ttl_ms": 9000});
            server.post("/v1/reserve", &question)
        };
        assert_eq!(reserve(4).status, 200);
        let full = reserve(2);
        let answer = body(&full);
        assert_eq!((full.status, &answer["holds_full"], &answer["held"]), (429, &json!(true), &json!(4)));
        assert!(answer["detail"].as_str().unwrap().contains("no room for this hold"), "{answer}");
        assert!(full.header("retry-after").is_some());
        assert_eq!(reserve(1).status, 200);
        assert_eq!(body(&reserve(1))["holds_full"], true, "two are open");
        let check = server.post("/v1/check", &json!({"domain": "strict", "descriptors": [{"user": "a"}], "cost": 5}));
        assert_eq!((check.status, &body(&check)["held"]), (200, &json!(5)), "checks may take the rest");
    });
}

#[test]
fn a_reservation_that_makes_no_sense_is_refused_with_the_remedy() {
    let server = Served::with(POLICIES);
    let refused = |path: &str, question: Value, code: &str, says: &str| {
        let response = server.post(path, &question);
        let answer = body(&response);
        let status = if code == "unknown_domain" { 404 } else { 400 };
        assert_eq!((response.status, &answer["code"]), (status, &json!(code)), "{question}: {answer}");
        assert!(answer["detail"].as_str().unwrap().contains(says), "{question}: {answer}");
    };
    let reserve = |more: Value, code: &str, says: &str| refused("/v1/reserve", llm("a", more), code, says);
    let field = "invalid_field";
    reserve(json!({"units": 0}), field, "`units` is 0, which holds nothing");
    reserve(json!({"units": -1}), field, "`units` must be a whole number");
    reserve(json!({"units": "9"}), field, "`units` must be a whole number, not a string");
    reserve(json!({"units": [9]}), field, "`units` must be a whole number, not a list");
    reserve(json!({"units": 11}), "cost_too_large", "can never pass `requests`");
    reserve(json!({"units": 1_000_000_001}), "cost_too_large", "no limit holds more than 1000000000");
    reserve(json!({"units": {}}), field, "`units` names no policy");
    reserve(json!({"units": {"tokens": 0}}), field, "`units.tokens` is 0");
    reserve(json!({"units": {"tokens": "9"}}), field, "`units.tokens` must be a whole number of units, not a string");
    reserve(json!({"units": {"tokens": 1.5}}), field, "not 1.5");
    reserve(json!({"units": {"tokens": null}}), field, "not null");
    reserve(json!({"units": {"tokns": 9}}), field, "The domain has no policy `tokns`: did you mean `tokens`?");
    reserve(json!({"units": {"tokens": 1001}}), "cost_too_large", "can never pass `tokens`");
    reserve(json!({"cost": 9}), field, "Unknown field `cost`");
    reserve(json!({"up_to": true}), field, "Unknown field `up_to`");
    reserve(json!({"ttl_ms": 0}), field, "`ttl_ms` must be from 1 to 86400000");
    reserve(json!({"ttl_ms": 86_400_001}), field, "`ttl_ms` must be from 1 to 86400000");
    reserve(json!({"ttl_ms": 3_600_001}), field, "lasts from 1 ms to 3600s");
    reserve(json!({"ttl_ms": "1s"}), field, "`ttl_ms` must be a whole number");
    refused("/v1/reserve", json!({"domain": "lmm", "descriptors": [{"user": "a"}]}), "unknown_domain", "did you mean");
    let strict = |more: Value| {
        let mut question = json!({"domain": "strict", "descriptors": [{"user": "a"}]});
        question.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        question
    };
    refused("/v1/reserve", strict(json!({"units": 6, "ttl_ms": 9})), "cost_too_large", "at most 5 may be held");
    refused("/v1/reserve", strict(json!({"units": 11, "ttl_ms": 9})), "cost_too_large", "can never pass `strict`");
    refused("/v1/reserve", strict(json!({"ttl_ms": 10_001})), field, "from 1 ms to 10s");
    refused("/v1/reserve", strict(json!({})), field, "not 60s");
    let ad_hoc = |more: Value| {
        let mut question = json!({"key": "a", "limit": "9/h"});
        question.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        question
    };
    refused("/v1/reserve", ad_hoc(json!({"units": {"a": 1}})), field, "`units` names policies");
    refused("/v1/reserve", ad_hoc(json!({"units": 10})), "cost_too_large", "can never pass `ad-hoc`");
    refused("/v1/reserve", ad_hoc(json!({"ttl_ms": 3_600_001})), field, "lasts from 1 ms to 3600s");
    refused("/v1/check", ad_hoc(json!({"units": 1})), field, "Unknown field `units`");

    let hold = reserved(&server, &llm("a", json!({"units": {"tokens": 9}})));
    let settle = |more: Value, says: &str| {
        let mut question = json!({"hold": hold});
        question.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        refused("/v1/settle", question, field, says);
    };
    settle(json!({"units": -1}), "`units` must be a whole number");
    settle(json!({"units": "1"}), "not a string");
    settle(json!({"units": 1_000_000_001}), "no limit holds more than");
    settle(json!({"units": {}}), "`units` names no policy");
    settle(json!({"units": {"tokns": 1}}), "not of a policy `tokns`: did you mean `tokens`?");
    settle(json!({"units": {"strict": 1}}), "use one of `requests`, `tokens`");
    settle(json!({"partial": true}), "needs `units`");
    settle(json!({"partial": 1, "units": 1}), "`partial` must be true or false");
    settle(json!({"cost": 1}), "Unknown field `cost`");
    for path in ["/v1/settle", "/v1/cancel", "/v1/extend"] {
        refused(path, json!({}), field, "Missing field `hold`");
        refused(path, json!({"hold": 1}), field, "`hold` must be a string");
        for token in ["", "0", "alice", &hold[..hold.len() - 1], &format!("{hold}zz"), &hold.replacen("01", "02", 1)] {
            refused(path, json!({"hold": token}), field, "this is not a hold");
        }
    }
    refused("/v1/cancel", json!({"hold": hold, "units": 1}), field, "Unknown field `units`");
    refused("/v1/extend", json!({"hold": hold}), field, "Missing field `ttl_ms`");
    refused("/v1/extend", json!({"hold": hold, "ttl_ms": 0}), field, "from 1 to 86400000");
    refused("/v1/extend", json!({"hold": hold, "ttl_ms": 3_600_001}), field, "lasts from 1 ms to 3600s");
    assert_eq!(
        ended(&server, "cancel", json!({"hold": hold}), ["state"]),
        (200, [json!("cancelled")]),
        "nothing was done"
    );
}

/// A token cannot be aimed at what it was not given for.
#[test]
fn a_hold_that_is_not_known_is_told_so() {
    on_both(|server| {
        let hold = reserved(server, &json!({"key": "alice", "limit": "9/h", "units": 5}));
        // Another name, another subject, another policy.
        let hex = |text: &str| text.bytes().map(|byte| format!("{byte:02x}")).collect::<String>();
        let other_id = format!("{}{}{}", &hold[..2], "ab".repeat(16), &hold[34..]);
        let others =
            [other_id, hold.replace(&hex("alice"), &hex("alicf")), hold.replace(&hex("ad-hoc"), &hex("ad-hod"))];
        for other in others {
            assert_ne!(other, hold);
            let answer = server.post("/v1/settle", &json!({"hold": other, "units": 0}));
            let said = body(&answer);
            assert_eq!((answer.status, &said["state"]), (409, &json!("no_longer_known")), "{said}");
            assert_eq!(said.get("settled"), None, "nobody knows");
            assert!(!answer.text().contains(&hold[2..34]), "the answer repeats a secret");
        }
        assert_eq!(ended(server, "settle", json!({"hold": hold}), ["settled"]), (200, [json!(5)]));
    });
}

#[test]
fn a_store_that_is_gone_is_told_and_a_reservation_follows_on_error() {
    let redis = Server::redis().start();
    let served = Served::start(POLICIES, |settings| settings.store = StoreSpec::new(&redis.url()));
    until("the store", || request(served.http, "GET", "/readyz", &[], b"").status == 200);
    let hold = reserved(&served, &llm("a", json!({"units": {"tokens": 9}})));
    drop(redis);
    until("the end of the store", || served.post("/v1/settle", &json!({"hold": hold})).status == 503);
    for verb in ["settle", "cancel", "extend"] {
        let about = if verb == "extend" { json!({"hold": hold, "ttl_ms": 9}) } else { json!({"hold": hold}) };
        assert_eq!(ended(&served, verb, about, ["code"]), (503, [json!("store_unavailable")]));
    }
    // `on_error: local` answers; there is nothing to settle.
    let empty = reserved(&served, &llm("a", json!({"units": {"tokens": 9}})));
    assert_eq!(ended(&served, "settle", json!({"hold": empty, "units": 3}), ["state"]), (200, [json!("settled")]));
}

#[test]
fn holds_and_their_units_are_counted_for_policies_of_files() {
    let server = Served::with(POLICIES);
    let hold = reserved(&server, &llm("a", json!({"units": {"tokens": 900}})));
    server.post("/v1/settle", &json!({"hold": hold, "units": {"tokens": 100}, "partial": true}));
    server.post("/v1/settle", &json!({"hold": hold, "units": {"tokens": 20}}));
    let hold = reserved(&server, &llm("a", json!({"units": {"tokens": 50}})));
    server.post("/v1/cancel", &json!({"hold": hold}));
    reserved(&server, &json!({"key": "k", "limit": "9/h", "policy": "somebody"}));
    let count = |metric: &str, outcome: &str| {
        server.metric(&format!("tallygate_{metric}_total{{domain=\"llm\",policy=\"tokens\",outcome=\"{outcome}\"}}"))
    };
    let holds = ["reserved", "settled", "cancelled", "expired"].map(|outcome| count("holds", outcome).unwrap());
    assert_eq!(holds, [2.0, 1.0, 1.0, 0.0]);
    let units = ["reserved", "settled", "refunded", "unpaid"].map(|outcome| count("hold_units", outcome).unwrap());
    assert_eq!(units, [950.0, 120.0, 830.0, 0.0]);
    let page = server.admin_get("/metrics");
    assert!(!page.text().contains("somebody"), "a name of a caller is a label");
    let decisions = "tallygate_decisions_total{domain=\"llm\",policy=\"tokens\",outcome=\"allowed\",source=\"store\"}";
    assert_eq!(server.metric(decisions), Some(2.0), "a reservation is a decision");
}

/// A limit on trial reserves what there is, and refuses nobody: reservations can be switched off without their callers.
#[test]
fn a_limit_on_trial_refuses_no_reservation() {
    on_both(|server| {
        let trial = |units: u64| json!({"domain": "trial", "descriptors": [{"user": "a"}], "units": units});
        for (reserved_units, held) in [(4, 4), (4, 0)] {
            let answer = server.post("/v1/reserve", &trial(reserved_units));
            assert_eq!((answer.status, &body(&answer)["allowed"]), (200, &json!(true)), "{}", answer.text());
            let settled = ended(server, "settle", json!({"hold": body(&answer)["hold"]}), ["state", "settled"]);
            assert_eq!(settled, (200, [json!("settled"), json!(held)]));
        }
    });
}
