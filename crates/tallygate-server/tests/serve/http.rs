//! Questions over HTTP.

use std::time::Duration;

use serde_json::{Value, json};
use tallygate_http::Dialect;
use tallygate_testkit::http::Response;

use crate::support::served::{Served, TOKEN, bearer, body};

pub const POLICIES: &str = "
policies:
  - {name: per-user, domain: api, partition: [user], limit: 3/min, algorithm: sliding_log}
  - {name: everybody, domain: api, limit: 100/min}
  - {name: trial, domain: api, partition: [user], limit: 1/min, mode: shadow}
";

/// Sends `text` as it is.
pub fn raw(server: &Served, path: &str, text: &str) -> Response {
    let headers = [("content-type", "application/json")];
    tallygate_testkit::http::request(server.http, "POST", path, &headers, text.as_bytes())
}

#[test]
fn a_call_is_allowed_until_the_limit_and_then_denied_with_everything_a_client_needs() {
    let server = Served::with(POLICIES);
    for left in [2, 1, 0] {
        let allowed = server.check("42");
        assert_eq!(allowed.status, 200, "{}", allowed.text());
        let reported = body(&allowed);
        assert_eq!(
            (&reported["allowed"], &reported["policy"], &reported["remaining"]),
            (&json!(true), &json!("per-user"), &json!(left))
        );
        assert_eq!(reported["statuses"].as_array().unwrap().len(), 3);
        assert_eq!(allowed.header("ratelimit").unwrap().split(";t=").next(), Some(&*format!("\"per-user\";r={left}")));
    }
    let denied = server.check("42");
    assert_eq!(denied.status, 429);
    assert_eq!(denied.header("content-type"), Some("application/problem+json"));
    assert_eq!(denied.header("ratelimit-policy"), Some("\"per-user\";q=3;w=60, \"everybody\";q=100;w=60"));
    let wait: u64 = denied.header("retry-after").unwrap().parse().unwrap();
    assert!((58..=60).contains(&wait), "{wait}");
    let reported = body(&denied);
    assert_eq!(reported["type"], "https://iana.org/assignments/http-problem-types#quota-exceeded");
    assert_eq!(reported["violated-policies"], json!(["per-user"]));
    assert_eq!(
        (&reported["allowed"], &reported["source"], &reported["limit"]),
        (&json!(false), &json!("store"), &json!(3))
    );
    let shadow = &reported["statuses"][2];
    assert_eq!((&shadow["policy"], &shadow["shadow"]), (&json!("trial"), &json!(true)));
    // Nobody else is denied, and nothing of the denied call was charged.
    assert_eq!(server.check("43").status, 200);
    let everybody = body(&server.post("/v1/peek", &json!({"domain": "api", "descriptors": [{"x": "y"}]})));
    assert_eq!(everybody["remaining"], 96);
}

#[test]
fn a_caller_that_waits_for_retry_after_is_allowed_and_one_that_waits_less_is_not() {
    let server =
        Served::with("policies: [{name: p, domain: api, partition: [user], limit: 2 per 2s, algorithm: sliding_log}]");
    server.check("1");
    server.check("1");
    let denied = server.check("1");
    let exact = Duration::from_millis(body(&denied)["retry_after_ms"].as_u64().unwrap());
    let reported = Duration::from_secs(denied.header("retry-after").unwrap().parse().unwrap());
    assert!(reported >= exact && reported < exact + Duration::from_secs(1));
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

/// The end of a window of a calendar is an instant; what a calendar lacks is said.
#[test]
fn a_limit_by_calendar_says_when_its_window_ends() {
    let server = Served::with(POLICIES);
    let ask = |limit: &str| server.post("/v1/check", &json!({"key": "user:42", "limit": limit}));
    let month = body(&ask("50/month in Asia/Kathmandu from day 31"));
    let (decided_at, ends_at) =
        (month["decided_at_us"].as_u64().unwrap() / 1000, month["reset_at_ms"].as_u64().unwrap());
    assert!(decided_at < ends_at && ends_at <= decided_at + 31 * 86_400_000, "{month}");
    // Midnight there is at 18:15 UTC.
    assert_eq!((ends_at % 3_600_000, &month["statuses"][0]["reset_at_ms"]), (900_000, &month["reset_at_ms"]));
    assert_eq!(body(&ask("50/min")).get("reset_at_ms"), None);
    for (limit, said) in [
        ("5/month", "name a time zone"),
        ("5/month in Europe/Berln", "did you mean `Europe/Berlin`?"),
        ("5/month in UTC from day 32", "use 1 to 31"),
        ("5/year in UTC from february 30", "february has no day 30"),
    ] {
        let refused = ask(limit);
        assert_eq!(refused.status, 400, "{limit}");
        assert!(body(&refused)["detail"].as_str().unwrap().contains(said), "{limit}: {refused:?}");
    }
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
        let reported = peeked.each_ref().map(|answer| (answer.status, body(answer)["remaining"].clone()));
        assert_eq!(reported, [(200, json!(2)), (429, json!(2))]);
        assert!(peeked[1].header("retry-after").is_some(), "{}", peeked[1].text());
        // More than there can ever be is refused as it would be by a check.
        assert_eq!(server.post("/v1/peek", &ask(4)).status, 400);
        assert_eq!(server.post("/v1/check", &ask(2)).status, 200, "nothing was charged");
    }
}

#[test]
fn a_check_may_take_what_is_left() {
    let server = Served::with(POLICIES);
    let ask = |more: Value| {
        let mut question = json!({"domain": "api", "descriptors": [{"user": "1"}], "cost": 90, "up_to": true});
        question.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        server.post("/v1/check", &question)
    };
    let too_costly = ask(json!({"at_least": 4}));
    assert_eq!((too_costly.status, &body(&too_costly)["code"]), (400, &json!("cost_too_large")));
    let granted = ask(json!({}));
    assert_eq!((granted.status, &body(&granted)["granted"]), (200, &json!(3)));
    assert_eq!(body(&granted)["statuses"][0]["remaining"], 0);
    let denied = ask(json!({"at_least": 2}));
    assert_eq!((denied.status, &body(&denied)["granted"]), (429, &json!(0)));
    let everybody = body(&server.post("/v1/peek", &json!({"domain": "api", "descriptors": [{"x": "y"}]})));
    assert_eq!(everybody["remaining"], 97, "three units for each policy, and nothing for the denied call");
    let units = |outcome: &str| {
        server.metric(&format!("tallygate_units_total{{domain=\"api\",policy=\"per-user\",outcome=\"{outcome}\"}}"))
    };
    assert_eq!(
        (units("allowed"), units("denied")),
        (Some(3.0), Some(4.0 + 2.0)),
        "what was granted, and the least of the denied"
    );
    // A limit that comes along.
    let ad_hoc = |at_least| json!({"key": "k", "limit": "10/h", "cost": 8, "up_to": true, "at_least": at_least});
    let answers = [1, 1, 1].map(|at_least| body(&server.post("/v1/check", &ad_hoc(at_least)))["granted"].clone());
    assert_eq!(answers, [8, 2, 0]);
    // Without `up_to` there is nothing to grant.
    assert!(body(&server.check("2")).get("granted").is_none());
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

/// A cost of 8 with 6 left got the answer that the quota is used up.
#[test]
fn a_call_that_is_denied_with_units_left_is_told_how_many() {
    let server = Served::with("policies: [{name: t, domain: api, partition: [user], limit: 10/h}]");
    let check =
        |cost: u64| server.post("/v1/check", &json!({"domain": "api", "descriptors": [{"user": "1"}], "cost": cost}));
    assert_eq!(check(4).status, 200);
    let denied = body(&check(8));
    let detail = denied["detail"].as_str().unwrap();
    assert!(detail.starts_with("A cost of 8 does not fit now: `t` has 6 left; retry in "), "{detail}");
    assert_eq!((&denied["remaining"], &denied["code"]), (&json!(6), &json!("quota_exceeded")));
    let ad_hoc = |cost: u64| server.post("/v1/check", &json!({"key": "k", "limit": "10/h", "cost": cost}));
    ad_hoc(4);
    let detail = body(&ad_hoc(8))["detail"].as_str().unwrap().to_owned();
    assert!(detail.starts_with("A cost of 8 does not fit now: `ad-hoc` has 6 left; retry in "), "{detail}");
    ad_hoc(6);
    assert!(body(&ad_hoc(1))["detail"].as_str().unwrap().starts_with("The quota of `ad-hoc` is used up; retry in "));
}

/// One unit under two policies was reported as two.
#[test]
fn a_refund_reports_the_units_of_the_call_and_not_their_sum_over_policies() {
    let server = Served::with(POLICIES);
    server.check("42");
    let given = body(&server.post("/v1/refund", &json!({"domain": "api", "descriptors": [{"user": "42"}]})));
    assert_eq!((&given["refunded"], given["policies"].as_array().unwrap().len()), (&json!(1), 3));
}

/// The order was kept by a feature of serde_json that every crate of a binary would get.
#[test]
fn the_entries_of_a_descriptor_keep_their_order() {
    let server = Served::with(
        "
domain: api
descriptors:
  - {key: zone, value: eu, descriptors: [{key: app, value: web, rate_limit: {unit: hour, requests_per_unit: 7}}]}
",
    );
    let limit = |entries: &str| {
        let asked = format!(r#"{{"domain":"api","descriptors":[{{{entries}}}]}}"#);
        body(&raw(&server, "/v1/check", &asked))["limit"].clone()
    };
    assert_eq!(limit(r#""zone":"eu","app":"web""#), json!(7));
    assert_eq!(limit(r#""app":"web","zone":"eu""#), Value::Null);
}

#[test]
fn the_members_of_an_answer_keep_their_order() {
    let server = Served::with("policies: [{name: p, domain: api, limit: 1/h}]");
    assert!(
        server
            .check("1")
            .text()
            .starts_with(r#"{"allowed":true,"source":"store","policy":"p","limit":1,"remaining":0,"#)
    );
    let denied = server.check("1");
    let start = r#"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":""#;
    assert!(denied.text().starts_with(start), "{}", denied.text());
}

#[test]
fn reset_needs_the_token() {
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
