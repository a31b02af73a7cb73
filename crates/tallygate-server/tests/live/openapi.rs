//! The server does what its description says, whatever it is sent.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use serde_json::Value;
use tallygate_http::ProblemCode;
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
///   a hold that nobody has reserved; for Envoy, a limit without a unit; for counters, `by` beside `by_float` (a schema that forbids it generates clients
///   that can send neither). That the examples are accepted is held by a test of its own.
/// - Of the warnings, `missing_test_data` and `validation_mismatch` are left out: made-up domains are not there (404), and
///   many made-up limits are refused for the reason above.
const CHECKS: &str = r#"
[checks]
use_after_free.enabled = false
negative_data_rejection.expected-statuses = ["400", "401", "403", "404", "405", "413", "415", "429", "503"]

[[operations]]
include-path-regex = "^/v1/(check|peek|refund|reset|reserve)$"
checks.positive_data_acceptance.expected-statuses = ["2xx", "400", "401", "403", "404", "409", "429"]

[[operations]]
include-path-regex = "^/v1/(settle|cancel|extend|renew)$"
checks.positive_data_acceptance.expected-statuses = ["2xx", "400", "401", "403", "409"]

[[operations]]
include-path = "/json"
checks.positive_data_acceptance.expected-statuses = ["2xx", "400", "429"]

[[operations]]
include-name = "POST /v1/counters/{name}"
checks.positive_data_acceptance.expected-statuses = ["2xx", "400", "401", "403", "404", "409", "5xx"]
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

const WARNINGS: &str = r#"
[warnings]
display = ["missing_auth", "missing_deserializer", "unused_openapi_auth", "unsupported_regex"]
fail-on = true
"#;

/// A server without a token answers 403 to what needs one, whatever is sent along: 401 would ask for what cannot be had.
const WITHOUT_TOKEN: &str = r#"
[[operations]]
include-name = ["POST /v1/reset", "DELETE /v1/counters/{name}", "GET /v1/holds"]
checks.missing_required_header.enabled = false

[warnings]
display = ["missing_deserializer", "unused_openapi_auth", "unsupported_regex"]
fail-on = true
"#;

/// The two documents: of the HTTP listener, and of the admin listener.
const HTTP: &str = include_str!("../../openapi.json");
const ADMIN: &str = include_str!("../../openapi-admin.json");

/// Made from the description: its examples, its edges, and much at random; always the same.
fn fuzz(http: SocketAddr, document: &str, checks: &str, headers: &[String]) {
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
    // It leaves out the document itself.
    let described = operations(document).iter().filter(|(_, path)| path != "/openapi.json").count();
    assert!(said.contains(&format!("Tested: {described}\n")), "{described} are described:\n{said}");
}

/// Method and path of everything described.
fn operations(document: &str) -> BTreeSet<(String, String)> {
    const METHODS: [&str; 8] = ["get", "head", "post", "put", "patch", "delete", "options", "trace"];
    let document: Value = serde_json::from_str(document).unwrap();
    let paths = document["paths"].as_object().unwrap();
    let described = paths.iter().flat_map(|(path, item)| {
        let methods = METHODS.into_iter().filter(|method| item.get(*method).is_some());
        methods.map(|method| (method.to_uppercase(), path.clone()))
    });
    described.collect()
}

#[test]
fn with_the_token_nothing_happens_that_is_not_described() {
    let server = Served::with(STRICT);
    fuzz(server.http, HTTP, WITH_TOKEN, &[format!("Authorization: Bearer {TOKEN}")]);
}

#[test]
fn without_a_token_nothing_happens_that_is_not_described() {
    let server = Served::start(LENIENT, |settings| settings.token = None);
    fuzz(server.http, HTTP, WITHOUT_TOKEN, &[]);
}

/// It was described nowhere.
#[test]
fn the_admin_listener_does_what_its_description_says() {
    let server = Served::with(STRICT);
    fuzz(server.admin, ADMIN, WARNINGS, &[format!("Authorization: Bearer {TOKEN}")]);
}

/// Every error has a code, and the lists of them are complete.
#[test]
fn every_problem_code_is_in_the_descriptions_and_in_the_guide() {
    let guide = include_str!("../../../../docs/guide/server.md");
    let codes: Vec<Value> = ProblemCode::ALL.iter().map(|code| code.name().into()).collect();
    for document in [HTTP, ADMIN] {
        let document: Value = serde_json::from_str(document).unwrap();
        assert_eq!(
            document["components"]["schemas"]["Problem"]["properties"]["code"]["enum"],
            Value::from(codes.clone())
        );
    }
    for code in ProblemCode::ALL {
        let row = format!("| `{}` | {} |", code.name(), code.status().as_u16());
        assert!(guide.contains(&row), "the guide has no row {row}");
    }
}

/// Generated clients had one class per tag `default`, and named their methods after words of ours.
#[test]
fn every_operation_has_a_tag_an_id_and_a_summary() {
    for document in [HTTP, ADMIN] {
        let document: Value = serde_json::from_str(document).unwrap();
        let tags: BTreeSet<&str> =
            document["tags"].as_array().unwrap().iter().map(|tag| tag["name"].as_str().unwrap()).collect();
        let mut ids = BTreeSet::new();
        for (path, item) in document["paths"].as_object().unwrap() {
            for (method, operation) in item.as_object().unwrap().iter().filter(|(method, _)| *method != "parameters") {
                assert!(tags.contains(operation["tags"][0].as_str().unwrap()), "{method} {path}");
                assert!(operation["summary"].is_string(), "{method} {path}");
                assert!(ids.insert(operation["operationId"].as_str().unwrap()), "{method} {path}");
            }
        }
    }
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
        let reserves = name.starts_with("reserve");
        let paths: &[&str] =
            if reserves { &["/v1/reserve"] } else { &["/v1/check", "/v1/peek", "/v1/refund", "/v1/reset"] };
        for path in paths {
            let answer = server.post_with(path, &example["value"], &[bearer()]);
            assert_eq!(answer.status, 200, "{name} {path}: {}", answer.text());
        }
    }
}

#[test]
fn every_method_that_is_described_is_served_and_no_other() {
    let server = Served::with(STRICT);
    for (address, document) in [(server.http, HTTP), (server.admin, ADMIN)] {
        allows_what_is_described(address, document);
    }
}

fn allows_what_is_described(address: SocketAddr, document: &str) {
    let described = operations(document);
    let paths: BTreeSet<&String> = described.iter().map(|(_, path)| path).collect();
    for path in paths {
        let target = path.replace("{name}", "some");
        let answer = http::request(address, "PATCH", &target, &[bearer()], b"");
        assert_eq!(answer.status, 405, "{path}");
        let allowed: BTreeSet<&str> = answer.header("allow").unwrap().split(',').map(str::trim).collect();
        let named = described.iter().filter(|(_, other)| other == path).map(|(method, _)| method.as_str());
        let mut expected: BTreeSet<&str> = named.collect();
        // A path that serves GET serves HEAD; it is described where it matters to callers.
        if expected.contains("GET") {
            expected.insert("HEAD");
        }
        assert_eq!(allowed, expected, "{path}");
        let detail = body(&answer)["detail"].as_str().unwrap().to_owned();
        let named = described.iter().filter(|(_, other)| other == path);
        assert!(named.clone().all(|(method, _)| detail.contains(method.as_str())), "{path}: {detail}");
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
