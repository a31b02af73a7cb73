//! The server does what its description says, whatever it is sent.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use serde_json::Value;
use tallygate_testkit::{Tool, http};

use crate::support::served::{Served, TOKEN, bearer, body};

/// The domain that the examples name; some of what is sent meets its limits, and some does not.
const STRICT: &str = "
policies:
  - {name: per-client, domain: default, partition: [client], limit: 20/s, near: 60}
  - {name: per-path, domain: default, partition: [path], limit: 5/s}
  - {name: trial, domain: default, partition: [client], limit: 1/s, mode: shadow}
";

/// Here everything that makes sense is allowed.
const LENIENT: &str = "policies: [{name: all, domain: default, limit: unlimited}]";

/// Every check is on by default (`--checks` would overrule this file), and the warnings listed fail the run. What is not as it would be by default:
///
/// - `use_after_free` is off: a counter that was deleted is 0 and not 404, as one that never was, and `GET` says so.
/// - 413 rejects what is invalid, too: some of it is larger than is read at all.
/// - 400 for what a question's schema allows: a cost above the limit it comes with (JSON Schema cannot compare the two),
///   a limit outside of what can be counted, `limit` and `algorithm` that name different algorithms;
///   for Envoy, a limit without a unit. That the examples are accepted is held by a test of its own.
/// - Of the warnings, `missing_test_data` and `validation_mismatch` are left out: made-up domains are not there (404), and
///   many made-up limits are refused for the reason above.
const CHECKS: &str = r#"
[checks]
use_after_free.enabled = false
negative_data_rejection.expected-statuses = ["400", "401", "403", "404", "405", "413", "415", "429", "503"]

[[operations]]
include-path-regex = "^/v1/(check|peek|refund|reset)$"
checks.positive_data_acceptance.expected-statuses = ["2xx", "400", "401", "403", "404", "429"]

[[operations]]
include-path = "/json"
checks.positive_data_acceptance.expected-statuses = ["2xx", "400", "429"]
"#;

/// A denied forward-auth answers as `deny_status` says: whatever from 400 to 599.
const WITH_TOKEN: &str = r#"
[[operations]]
include-path = "/v1/forward-auth"
checks.not_a_server_error.expected-statuses = ["2xx", "4xx", "5xx"]
checks.positive_data_acceptance.expected-statuses = ["2xx", "4xx", "5xx"]

[warnings]
display = ["missing_auth", "missing_deserializer", "unused_openapi_auth", "unsupported_regex"]
fail-on = true
"#;

/// A server without a token answers 403 to what needs one, whatever is sent along: 401 would ask for what cannot be had.
const WITHOUT_TOKEN: &str = r#"
[[operations]]
include-name = ["POST /v1/reset", "DELETE /v1/counters/{name}"]
checks.missing_required_header.enabled = false

[warnings]
display = ["missing_deserializer", "unused_openapi_auth", "unsupported_regex"]
fail-on = true
"#;

/// Made from the description: its examples, its edges, and much at random; always the same.
fn fuzz(http: SocketAddr, checks: &str, headers: &[String]) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("schemathesis.toml"), format!("{CHECKS}{checks}")).unwrap();
    let mut command = Tool::Schemathesis.command();
    command.current_dir(folder.path()).args(["--config-file", "schemathesis.toml", "run"]);
    command.arg(format!("http://{http}/openapi.json"));
    command.args(["--phases", "examples,coverage,fuzzing,stateful", "--mode", "all"]);
    command.args(["--max-examples", "60", "--seed", "20", "--generation-database", "none", "--request-timeout", "5"]);
    command.args(["--continue-on-failure", "--no-color"]);
    for header in headers {
        command.args(["--header", header]);
    }
    let output = command.output().unwrap();
    let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    assert!(output.status.success(), "{command:?}:\n{said}");
    // It leaves out HEAD, whose answers have nothing to look at.
    let described = operations().iter().filter(|(method, _)| method != "HEAD").count();
    assert!(said.contains(&format!("Tested: {described}\n")), "{described} are described:\n{said}");
}

/// Method and path of everything described.
fn operations() -> BTreeSet<(String, String)> {
    const METHODS: [&str; 8] = ["get", "head", "post", "put", "patch", "delete", "options", "trace"];
    let document: Value = serde_json::from_str(include_str!("../../openapi.json")).unwrap();
    let paths = document["paths"].as_object().unwrap();
    let described = paths.iter().flat_map(|(path, item)| {
        let methods = METHODS.into_iter().filter(|method| item.get(*method).is_some());
        methods.map(|method| (method.to_uppercase(), path.clone()))
    });
    described.collect()
}

#[test]
fn whoever_holds_the_token_meets_nothing_that_is_not_described() {
    let server = Served::with(STRICT);
    fuzz(server.http, WITH_TOKEN, &[format!("Authorization: Bearer {TOKEN}")]);
}

#[test]
fn whoever_has_no_token_meets_nothing_that_is_not_described() {
    let server = Served::start(LENIENT, |settings| settings.token = None);
    fuzz(server.http, WITHOUT_TOKEN, &[]);
}

#[test]
fn the_examples_are_accepted() {
    let server = Served::with(STRICT);
    let document = body(&server.get("/openapi.json"));
    let examples = document["components"]["examples"].as_object().unwrap();
    assert!(!examples.is_empty());
    for (name, example) in examples {
        if name == "envoy" {
            assert_eq!(server.post("/json", &example["value"]).status, 200);
            continue;
        }
        for path in ["/v1/check", "/v1/peek", "/v1/refund", "/v1/reset"] {
            let answer = server.post_with(path, &example["value"], &[bearer()]);
            assert_eq!(answer.status, 200, "{name} {path}: {}", answer.text());
        }
    }
}

#[test]
fn every_method_that_is_described_is_served_and_no_other() {
    let server = Served::with(STRICT);
    let described = operations();
    let paths: BTreeSet<&String> = described.iter().map(|(_, path)| path).collect();
    for path in paths {
        let target = path.replace("{name}", "some");
        let answer = http::request(server.http, "PATCH", &target, &[], b"");
        assert_eq!(answer.status, 405, "{path}");
        let allowed: BTreeSet<&str> = answer.header("allow").unwrap().split(',').map(str::trim).collect();
        let named = described.iter().filter(|(_, other)| other == path).map(|(method, _)| method.as_str());
        let mut expected: BTreeSet<&str> = named.collect();
        // Whoever serves GET serves HEAD; where it matters to callers, it is described.
        if expected.contains("GET") {
            expected.insert("HEAD");
        }
        assert_eq!(allowed, expected, "{path}");
    }
}

#[test]
fn head_answers_as_get_does_without_the_body() {
    let server = Served::with(LENIENT);
    for (path, status) in [("?header=x-a", 200), ("?domain=nowhere", 404), ("?cost=0", 400), ("?header=%20", 400)] {
        let ask = |method| http::request(server.http, method, &format!("/v1/forward-auth{path}"), &[], b"");
        let (get, head) = (ask("GET"), ask("HEAD"));
        assert_eq!((get.status, head.status), (status, status), "{path}");
        for name in ["content-type", "ratelimit", "ratelimit-policy"] {
            assert_eq!(get.header(name), head.header(name), "{path}: {name}");
        }
    }
}
