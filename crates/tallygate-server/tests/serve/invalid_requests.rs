//! Requests that are refused, and what their answers say.

use serde_json::{Value, json};

use super::http::{POLICIES, raw};
use crate::support::served::{Served, bearer, body};

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
    refused("/v1/check", json!({"key": "a"}), 400, "Missing field `limit`");
    refused("/v1/check", json!({"key": "a", "limit": "ten/min"}), 400, "ten/min");
    refused("/v1/check", json!({"key": "", "limit": "1/s"}), 400, "subject is empty");
    refused("/v1/check", json!({"key": "a", "limit": "1/s", "algorithm": "sliding_lgo"}), 400, "sliding_log");
    refused("/v1/check", json!({"key": "a", "limit": "1/s", "cost": 0}), 400, "peek");
    refused("/v1/check", json!({"key": "a", "limit": "1/s", "cost": 2}), 400, "can never pass");
    refused("/v1/check", json!({"key": "a", "limit": "1/s", "cots": 1}), 400, "Unknown field `cots`");
    let up_to = |field: &str, value: Value| json!({"key": "a", "limit": "9/s", "cost": 3, "up_to": true, field: value});
    refused("/v1/check", up_to("up_to", json!("yes")), 400, "true or false, not a string");
    refused("/v1/check", up_to("at_least", json!(4)), 400, "`at_least` must be from 1 to `cost`, which is 3, not 4");
    refused("/v1/check", up_to("at_least", json!(0)), 400, "`at_least` must be from 1 to `cost`");
    refused("/v1/check", up_to("at_least", json!(-2)), 400, "`at_least` cannot be negative");
    let hopeless = json!({"key": "a", "limit": "9/s", "cost": 99, "up_to": true, "at_least": 10});
    refused("/v1/check", hopeless, 400, "At least 10 units can never pass `ad-hoc`");
    let hopeless = json!({"domain": "api", "descriptors": [{"user": "1"}], "cost": 99, "up_to": true, "at_least": 4});
    refused("/v1/check", hopeless, 400, "At least 4 units can never pass `per-user`");
    refused("/v1/check", json!({"key": "a", "limit": "9/s", "at_least": 1}), 400, "add \"up_to\":true");
    refused("/v1/peek", up_to("cost", json!(3)), 400, "`up_to` is for /v1/check, not for /v1/peek");
    refused("/v1/peek", json!({"key": "a", "limit": "9/s", "at_least": 1}), 400, "`at_least` is for /v1/check");
    refused("/v1/check", json!({"domain": "apu", "descriptors": [{"user": "1"}]}), 404, "did you mean `api`?");
    refused("/v1/check", json!({"domain": "api", "descriptors": []}), 400, "1 to 32 descriptors");
    refused("/v1/check", json!({"domain": "api", "descriptors": [{}]}), 400, "0 entries: 1 to 16 are allowed");
    refused(
        "/v1/check",
        json!({"domain": "api", "descriptors": [{"user": [1]}]}),
        400,
        "a string, a number or a boolean",
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

/// Most of these were answered in the words of the parser, without the field and without a remedy.
#[test]
fn an_invalid_body_is_refused_with_the_field_and_the_expected_form() {
    let server = Served::with(POLICIES);
    let by_policy = |fields: &str| format!("{{\"domain\":\"api\",{fields}}}");
    let cost = |cost: &str| by_policy(&format!("\"descriptors\":[{{\"user\":\"1\"}}],\"cost\":{cost}"));
    let example = r#"{"domain":"api","descriptors":[{"user":"42"}]}"#;
    let entry = r#"write {"user":"42"} here, or send Envoy's form to /json."#;
    let table: [(String, &str, String); 20] = [
        (String::new(), "invalid_json", format!("The body is empty: send a JSON object, for example {example}.")),
        ("[1]".into(), "invalid_json", format!("The body must be a JSON object, not a list: for example {example}.")),
        ("[object Object]".into(), "invalid_json", "The body is not valid JSON: expected value at line 1 column 2.".into()),
        (
            r#"{"domain":"api","domain":"api"}"#.into(),
            "invalid_json",
            "The body is not valid JSON: the member `domain` occurs twice at line 1 column 24.".into(),
        ),
        (by_policy(r#""cost":1"#), "invalid_field", format!("Missing field `descriptors`: write {example}.")),
        (
            by_policy(r#""descriptors":{"user":"42"}"#),
            "invalid_field",
            r#"`descriptors` must be a list of objects, not an object: write "descriptors":[{"user":"42"}]."#.into(),
        ),
        (
            by_policy(r#""descriptors":[["user","42"]]"#),
            "invalid_field",
            r#"`descriptors[0]` must be an object, not a list: write {"user":"42"}."#.into(),
        ),
        (
            by_policy(r#""descriptors":[{"entries":[{"key":"user","value":"42"}]}]"#),
            "invalid_field",
            format!("`entries` in `descriptors[0]` must be a string, a number or a boolean, not a list: {entry}"),
        ),
        (
            by_policy(r#""descriptors":[{"key":"user","value":"42"}]"#),
            "invalid_field",
            format!("`descriptors[0]` has the entries `key` and `value`: {entry}"),
        ),
        (
            by_policy(&format!(r#""descriptors":[{{"user":"{}"}}]"#, "x".repeat(2000))),
            "invalid_field",
            "`descriptors[0]`: the value of `user` has 2000 bytes; at most 1024 are allowed.".into(),
        ),
        (cost("-1"), "invalid_field", "`cost` cannot be negative: use /v1/refund to give units back.".into()),
        (cost("1.5"), "invalid_field", "`cost` must be a whole number of at most 64 bits, not 1.5.".into()),
        (
            cost("\"1\""),
            "invalid_field",
            "`cost` must be a whole number, not a string: for example \"cost\":1.".into(),
        ),
        (
            cost("1,\"cots\":1"),
            "invalid_field",
            "Unknown field `cots`: did you mean `cost`? The fields are domain, descriptors, cost, charged_at_us, up_to, at_least, request_id.".into(),
        ),
        (
            cost("4"),
            "cost_too_large",
            "A cost of 4 can never pass `per-user`, which holds at most 3: lower the cost or raise the limit.".into(),
        ),
        (
            by_policy(r#""key":"a","limit":"1/s""#),
            "invalid_field",
            "The body has a `domain` and a `key`: `domain` asks by policy, `key` with `limit` asks ad hoc; leave one out."
                .into(),
        ),
        (
            r#"{"key":42,"limit":"1/s"}"#.into(),
            "invalid_field",
            "`key` must be a string, not a number: write \"42\", in quotes.".into(),
        ),
        (
            r#"{"key":"a","limit":5}"#.into(),
            "invalid_field",
            "`limit` must be a string, not a number: write \"5/min\", in quotes.".into(),
        ),
        (
            r#"{"domain":"nowhere","descriptors":[{"user":"1"}]}"#.into(),
            "unknown_domain",
            "There is no domain `nowhere`: use one of `api`.".into(),
        ),
        (r#"{"domain":{"a":1}}"#.into(), "invalid_field", "`domain` must be a string, not an object.".into()),
    ];
    for (sent, code, detail) in table {
        let refused = body(&raw(&server, "/v1/check", &sent));
        assert_eq!((&refused["code"], &refused["detail"]), (&json!(code), &json!(detail)), "{sent}");
    }
    let counter = body(&raw(&server, "/v1/counters/visits", r#"{"by":"5"}"#));
    assert_eq!(counter["detail"], "`by` must be a whole number, not a string: for example \"by\":1.");
}

/// The answers named the mistake, but not what to write instead, or something that is refused again.
#[test]
fn a_common_mistake_in_a_body_is_answered_with_what_to_write() {
    let server = Served::with(POLICIES);
    for (sent, detail) in [
        (
            r#"{"key":"a","limit":"60/min","burst":3}"#,
            r#"Unknown field `burst`: the burst is part of the limit: write "limit":"60/min burst 3"."#,
        ),
        (
            r#"{"key":"a","limit":"1/s","nonsense":1}"#,
            "Unknown field `nonsense`: the fields are key, limit, algorithm, policy, cost, charged_at_us, up_to, at_least, request_id.",
        ),
        (r#"{"domian":"api","descriptors":[{"user":"1"}]}"#, "Unknown field `domian`: did you mean `domain`?"),
        (r#"{"kye":"a","limit":"1/s"}"#, "The body names neither a `domain` nor a `key`: write "),
        (r#"{"keys":"a","limit":"1/s"}"#, "Unknown field `keys`: did you mean `key`?"),
        (
            r#"{"domain":"api","descriptors":[{"user":"1"}],"limit":"1/s"}"#,
            "`limit` cannot be used with `domain`, whose limits are in the policy files: leave `limit` out, or ask ad hoc ",
        ),
        (
            r#"{"domain":"api","descr"#,
            "The body is not valid JSON: it ends too early, at line 1 column 22: is it cut off?",
        ),
        (
            "{\n 'domain':'api'}",
            "The body is not valid JSON: key must be a string at line 2 column 2: write double quotes (\"), not single ones.",
        ),
        (
            r#"{"domain":'api'}"#,
            "The body is not valid JSON: expected value at line 1 column 11: write double quotes (\"), not single ones.",
        ),
    ] {
        let answer = body(&raw(&server, "/v1/check", sent));
        let said = answer["detail"].as_str().unwrap();
        assert!(said.starts_with(detail), "{sent}: {said}");
    }
}

#[test]
fn a_path_that_does_not_take_a_method_names_those_it_takes() {
    let server = Served::with(POLICIES);
    let detail = |method, path| {
        let answer = tallygate_testkit::http::request(server.http, method, path, &[], b"");
        assert_eq!(answer.status, 405, "{method} {path}");
        body(&answer)["detail"].as_str().unwrap().to_owned()
    };
    assert_eq!(detail("GET", "/v1/check"), "/v1/check does not take GET: use POST.");
    assert_eq!(detail("PUT", "/v1/counters/visits"), "/v1/counters/visits does not take PUT: use GET, POST or DELETE.");
    let elsewhere = body(&server.get("/metrics"));
    assert_eq!(elsewhere["detail"], "`/metrics` is served by the admin listener, not by this one.");
}

#[test]
fn a_body_that_is_too_large_is_refused_with_the_number_of_bytes() {
    let server = Served::with(POLICIES);
    let refused = raw(&server, "/v1/check", &" ".repeat(200_000));
    assert_eq!(refused.status, 413);
    let detail = "The body is larger than 65536 bytes, the most that this server reads.";
    assert_eq!((&body(&refused)["detail"], &body(&refused)["code"]), (&json!(detail), &json!("body_too_large")));
}

/// It was read as JSON, and refused as invalid.
#[test]
fn a_compressed_body_is_an_unsupported_media_type() {
    let server = Served::with(POLICIES);
    for path in ["/v1/check", "/v1/counters/visits", "/json"] {
        let ask = |encoding| server.post_with(path, &json!({}), &[("content-encoding", encoding)]).status;
        assert_eq!((ask("gzip"), ask("identity") == 415), (415, false), "{path}");
    }
}

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
