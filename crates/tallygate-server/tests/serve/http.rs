//! Questions over HTTP.

use std::time::Duration;

use serde_json::{Value, json};
use tallygate_http::Dialect;

use crate::support::served::{Served, TOKEN, bearer, body};

const POLICIES: &str = "
policies:
  - {name: per-user, domain: api, partition: [user], limit: 3/min, algorithm: sliding_log}
  - {name: everybody, domain: api, limit: 100/min}
  - {name: trial, domain: api, partition: [user], limit: 1/min, mode: shadow}
";

#[test]
fn a_call_is_allowed_until_the_limit_and_then_denied_with_everything_a_client_needs() {
    let server = Served::with(POLICIES);
    for left in [2, 1, 0] {
        let allowed = server.check("42");
        assert_eq!(allowed.status, 200, "{}", allowed.text());
        let told = body(&allowed);
        assert_eq!(
            (&told["allowed"], &told["policy"], &told["remaining"]),
            (&json!(true), &json!("per-user"), &json!(left))
        );
        assert_eq!(told["statuses"].as_array().unwrap().len(), 3);
        assert_eq!(allowed.header("ratelimit").unwrap().split(";t=").next(), Some(&*format!("\"per-user\";r={left}")));
    }
    let denied = server.check("42");
    assert_eq!(denied.status, 429);
    assert_eq!(denied.header("content-type"), Some("application/problem+json"));
    assert_eq!(denied.header("ratelimit-policy"), Some("\"per-user\";q=3;w=60, \"everybody\";q=100;w=60"));
    let wait: u64 = denied.header("retry-after").unwrap().parse().unwrap();
    assert!((58..=60).contains(&wait), "{wait}");
    let told = body(&denied);
    assert_eq!(told["type"], "https://iana.org/assignments/http-problem-types#quota-exceeded");
    assert_eq!(told["violated-policies"], json!(["per-user"]));
    assert_eq!((&told["allowed"], &told["source"], &told["limit"]), (&json!(false), &json!("store"), &json!(3)));
    let shadow = &told["statuses"][2];
    assert_eq!((&shadow["policy"], &shadow["shadow"]), (&json!("trial"), &json!(true)));
    // Nobody else is denied, and nothing of the denied call was charged.
    assert_eq!(server.check("43").status, 200);
    let everybody = body(&server.post("/v1/peek", &json!({"domain": "api", "descriptors": [{"x": "y"}]})));
    assert_eq!(everybody["remaining"], 96);
}

#[test]
fn whoever_waits_as_long_as_retry_after_says_is_let_in_and_whoever_waits_less_is_not() {
    let server =
        Served::with("policies: [{name: p, domain: api, partition: [user], limit: 2 per 2s, algorithm: sliding_log}]");
    server.check("1");
    server.check("1");
    let denied = server.check("1");
    let exact = Duration::from_millis(body(&denied)["retry_after_ms"].as_u64().unwrap());
    let told = Duration::from_secs(denied.header("retry-after").unwrap().parse().unwrap());
    assert!(told >= exact && told < exact + Duration::from_secs(1));
    std::thread::sleep(exact - Duration::from_millis(200));
    assert_eq!(server.check("1").status, 429);
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(server.check("1").status, 200);
}

#[test]
fn a_question_may_bring_its_limit_along() {
    let server = Served::with(POLICIES);
    let ask = |cost: u64| {
        server.post("/v1/check", &json!({"key": "user:42", "limit": "5/min", "algorithm": "sliding_log", "cost": cost}))
    };
    let first = body(&ask(4));
    assert_eq!((&first["policy"], &first["remaining"]), (&json!("ad-hoc"), &json!(1)));
    assert_eq!(ask(2).status, 429);
    assert_eq!(ask(1).status, 200);
    let back =
        json!({"key": "user:42", "limit": "5/min sliding_log", "cost": 3, "charged_at_us": first["decided_at_us"]});
    assert_eq!(body(&server.post("/v1/refund", &back))["refunded"], 3);
    let peek = body(&server.post("/v1/peek", &json!({"key": "user:42", "limit": "5/min sliding_log"})));
    assert_eq!(peek["remaining"], 3);
}

/// A peek by policy was answered as if it cost one unit, whatever it said.
#[test]
fn a_peek_is_answered_as_a_check_of_the_same_cost_would_be() {
    let server = Served::with(POLICIES);
    server.check("42");
    let by_policy = |cost: u64| json!({"domain": "api", "descriptors": [{"user": "42"}], "cost": cost});
    let ad_hoc = |cost: u64| json!({"key": "user:42", "limit": "3/min sliding_log", "cost": cost});
    server.post("/v1/check", &ad_hoc(1));
    for ask in [&by_policy as &dyn Fn(u64) -> Value, &ad_hoc] {
        let peeked = [2, 3].map(|cost| server.post("/v1/peek", &ask(cost)));
        let told = peeked.each_ref().map(|answer| (answer.status, body(answer)["remaining"].clone()));
        assert_eq!(told, [(200, json!(2)), (429, json!(2))]);
        assert!(peeked[1].header("retry-after").is_some(), "{}", peeked[1].text());
        // More than there can ever be is refused as it would be by a check.
        assert_eq!(server.post("/v1/peek", &ask(4)).status, 400);
        assert_eq!(server.post("/v1/check", &ask(2)).status, 200, "nothing was charged");
    }
}

#[test]
fn refunds_go_back_to_every_policy_that_was_charged() {
    let server = Served::with(POLICIES);
    let question = json!({"domain": "api", "descriptors": [{"user": "42"}], "cost": 2});
    let charged = body(&server.post("/v1/check", &question));
    let mut back = question.clone();
    back["charged_at_us"] = charged["decided_at_us"].clone();
    let given = body(&server.post("/v1/refund", &back));
    assert_eq!(given["policies"][0], json!({"policy": "per-user", "refunded": 2}));
    assert_eq!(body(&server.post("/v1/peek", &question))["remaining"], 3);
}

#[test]
fn what_makes_no_sense_is_refused_with_the_remedy() {
    let server = Served::with(POLICIES);
    let refused = |path: &str, question: Value, status: u16, says: &str| {
        let response = server.post(path, &question);
        assert_eq!(response.status, status, "{question}: {}", response.text());
        assert_eq!(response.header("content-type"), Some("application/problem+json"));
        let detail = body(&response)["detail"].as_str().unwrap().to_owned();
        assert!(detail.contains(says), "{question}: {detail}");
    };
    refused("/v1/check", json!({}), 400, "neither a `domain` nor a `key`");
    refused("/v1/check", json!({"key": "a"}), 400, "missing field `limit`");
    refused("/v1/check", json!({"key": "a", "limit": "ten/min"}), 400, "ten/min");
    refused("/v1/check", json!({"key": "", "limit": "1/s"}), 400, "subject is empty");
    refused("/v1/check", json!({"key": "a", "limit": "1/s", "algorithm": "sliding_lgo"}), 400, "sliding_log");
    refused("/v1/check", json!({"key": "a", "limit": "1/s", "cost": 0}), 400, "peek");
    refused("/v1/check", json!({"key": "a", "limit": "1/s", "cost": 2}), 400, "can never pass");
    refused("/v1/check", json!({"key": "a", "limit": "1/s", "cots": 1}), 400, "unknown field `cots`");
    refused("/v1/check", json!({"domain": "apu", "descriptors": [{"user": "1"}]}), 404, "did you mean `api`?");
    refused("/v1/check", json!({"domain": "api", "descriptors": []}), 400, "1 to 32 descriptors");
    refused("/v1/check", json!({"domain": "api", "descriptors": [{}]}), 400, "1 to 16 entries");
    refused(
        "/v1/check",
        json!({"domain": "api", "descriptors": [{"user": [1]}]}),
        400,
        "a text, a number or a boolean",
    );
    refused("/v1/check", json!({"domain": "api", "descriptors": [{"user": "x".repeat(1025)}]}), 400, "1025 bytes");
    refused(
        "/v1/check",
        json!({"domain": "api", "descriptors": [{"user": "1"}], "cost": 4}),
        400,
        "can never pass `per-user`",
    );
    refused("/v1/chekc", json!({}), 404, "did you mean `/v1/check`?");
    let form =
        tallygate_testkit::http::request(server.http, "POST", "/v1/check", &[("content-type", "text/plain")], b"{}");
    assert_eq!(form.status, 415);
    let get = server.get("/v1/check");
    assert_eq!((get.status, get.header("allow")), (405, Some("POST")));
}

#[test]
fn reset_is_for_whoever_holds_the_token() {
    let server = Served::with(POLICIES);
    let question = json!({"domain": "api", "descriptors": [{"user": "42"}]});
    for _ in 0..4 {
        server.check("42");
    }
    assert_eq!(server.post("/v1/reset", &question).status, 401);
    assert_eq!(
        server.post_with("/v1/reset", &question, &[("authorization", "Bearer wrong token, wrong token")]).status,
        401
    );
    assert_eq!(server.check("42").status, 429);
    let reset = server.post_with("/v1/reset", &question, &[bearer()]);
    assert_eq!((reset.status, &body(&reset)["forgotten"]), (200, &json!(3)));
    assert_eq!(server.check("42").status, 200);
    let tokenless = Served::start(POLICIES, |settings| settings.token = None);
    let refused = tokenless.post_with("/v1/reset", &question, &[("authorization", TOKEN)]);
    assert_eq!(refused.status, 403);
    assert!(refused.text().contains("TALLYGATE_TOKEN"), "{}", refused.text());
}

#[test]
fn counters_count() {
    let server = Served::with(POLICIES);
    assert_eq!(body(&server.post("/v1/counters/visits", &json!({"by": 5})))["value"], 5);
    let plain = tallygate_testkit::http::request(server.http, "POST", "/v1/counters/visits", &[], b"");
    assert_eq!(body(&plain)["value"], 6);
    assert_eq!(body(&server.get("/v1/counters/visits"))["value"], 6);
    assert_eq!(body(&server.post("/v1/counters/visits", &json!({"by_float": 0.5})))["value"], 6.5);
    assert_eq!(server.post("/v1/counters/visits", &json!({"by": 1, "by_float": 1.0})).status, 400);
    let delete = |headers| tallygate_testkit::http::request(server.http, "DELETE", "/v1/counters/visits", headers, b"");
    assert_eq!(delete(&[]).status, 401);
    assert_eq!(delete(&[bearer()]).status, 200);
    assert_eq!(body(&server.get("/v1/counters/visits"))["value"], 0);
}

#[test]
fn limits_are_told_in_the_dialect_that_was_chosen() {
    for &dialect in Dialect::ALL {
        let server = Served::start(POLICIES, |settings| settings.dialect = dialect);
        let names: Vec<String> = server.check("42").headers.into_iter().map(|(name, _)| name.to_lowercase()).collect();
        let has = |name: &str| names.iter().any(|other| other == name);
        let expected = dialect.expose_headers().split(", ").map(str::to_lowercase).filter(|name| name != "retry-after");
        for name in expected.filter(|name| !name.is_empty()) {
            assert!(has(&name), "{dialect}: {name} is not in {names:?}");
        }
        let spoken = names.iter().any(|name| name.contains("ratelimit"));
        assert_eq!(spoken, dialect != Dialect::Off, "{dialect}: {names:?}");
    }
}

#[test]
fn overrides_give_a_plan_or_a_customer_a_limit_of_its_own() {
    let server = Served::with(
        "
policies:
  - name: per-user
    domain: api
    partition: [user]
    limit: 1/min
    overrides:
      - {match: {user: root}, limit: unlimited}
      - {match: {plan: pro}, limit: 5/min}
",
    );
    let limit = |descriptor: Value| {
        body(&server.post("/v1/check", &json!({"domain": "api", "descriptors": [descriptor]})))["limit"].clone()
    };
    assert_eq!(limit(json!({"user": "1"})), json!(1));
    assert_eq!(limit(json!({"user": "2", "plan": "pro"})), json!(5));
    assert_eq!(limit(json!({"user": "root"})), Value::Null);
}

#[test]
fn health_says_whether_to_send_calls_here() {
    let server = Served::with(POLICIES);
    for path in ["/livez", "/readyz", "/healthcheck"] {
        assert_eq!(server.get(path).status, 200, "{path}");
    }
    let openapi = body(&server.get("/openapi.json"));
    assert_eq!(openapi["openapi"], "3.1.0");
    server.stop().unwrap();
}

// What follows was found by sending what the description allows, and what it does not.

#[test]
fn a_name_that_is_no_text_is_refused_as_everything_else_is() {
    let server = Served::with(POLICIES);
    for method in ["GET", "POST", "DELETE"] {
        let answer = tallygate_testkit::http::request(server.http, method, "/v1/counters/%ff", &[bearer()], b"");
        assert_eq!((answer.status, answer.header("content-type")), (400, Some("application/problem+json")), "{method}");
    }
}

#[test]
fn a_list_is_no_addition() {
    let server = Served::with(POLICIES);
    for list in [json!([]), json!([5, null, null]), json!([null, 0.5])] {
        assert_eq!(server.post("/v1/counters/visits", &list).status, 400, "{list}");
    }
}

#[test]
fn a_counter_cannot_be_made_to_outlive_what_stores_can_count() {
    let server = Served::with(POLICIES);
    let ttl = |ttl: u64| server.post("/v1/counters/visits", &json!({"ttl_ms": ttl})).status;
    assert_eq!(ttl(100 * 365 * 86_400_000), 200);
    assert_eq!(ttl(100 * 365 * 86_400_000 + 1), 400);
    assert_eq!(ttl(u64::MAX), 400);
}

#[test]
fn a_whole_number_may_be_written_with_a_point_but_is_never_rounded() {
    let server = Served::with(POLICIES);
    let add = |by: &str| {
        let headers = [("content-type", "application/json")];
        let body = format!("{{\"by\":{by}}}");
        tallygate_testkit::http::request(server.http, "POST", "/v1/counters/sum", &headers, body.as_bytes())
    };
    assert_eq!(body(&add("2.0"))["value"], 2);
    assert_eq!(body(&add("-1e0"))["value"], 1);
    for not_whole in ["0.5", "-9223372036854775809", "9223372036854775808", "1e19", "18446744073709551616", "\"1\""] {
        assert_eq!(add(not_whole).status, 400, "{not_whole}");
    }
    let cost = |cost: f64| server.post("/v1/check", &json!({"key": "a", "limit": "9/h", "cost": cost})).status;
    assert_eq!((cost(4.0), cost(0.5), cost(-1.0)), (200, 400, 400));
}

#[test]
fn forward_auth_refuses_headers_it_would_have_to_leave_out() {
    let server = Served::with(POLICIES);
    let asked = |count: usize, kind: &str| {
        let query: String = (0..count).map(|at| format!("&{kind}=x-{at}")).collect();
        server.get(&format!("/v1/forward-auth?domain=api{query}")).status
    };
    for kind in ["header", "secret"] {
        assert_eq!((asked(6, kind), asked(7, kind)), (200, 400), "{kind}");
    }
    assert_eq!(server.get(&format!("/v1/forward-auth?domain=api&header={}", "x".repeat(129))).status, 400);
}

/// An ad hoc question with another limit for the state of a policy emptied it, which takes the token.
#[test]
fn an_ad_hoc_question_cannot_reach_the_state_of_a_policy() {
    let server = Served::with("policies: [{name: per-user, domain: api, partition: [user], limit: 1/h}]");
    assert_eq!([server.check("42").status, server.check("42").status], [200, 429]);
    for policy in ["api/per-user", "#0123456789abcdef0123456789abcdef"] {
        for path in ["/v1/check", "/v1/peek", "/v1/refund"] {
            let refused = server.post(path, &json!({"policy": policy, "key": "user=42", "limit": "1000000/ms"}));
            assert_eq!(refused.status, 400, "{path} {policy}");
        }
    }
    assert_eq!(server.check("42").status, 429);
}
