//! `explain`: which policies, why, and what a call would get; and that nothing is charged by it.

use std::path::Path;

use serde_json::{Value, json};
use tallygate_testkit::Server;
use tempfile::TempDir;

use super::{Ran, assert_fields, run};

const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/policies");

fn explain(args: &[&str]) -> Ran {
    run([&["explain", "--config", EXAMPLES], args].concat())
}

fn explain_json(args: &[&str]) -> Value {
    let ran = explain(&[args, &["--json"]].concat());
    serde_json::from_str(&ran.stdout).unwrap_or_else(|error| panic!("{error}: {} {}", ran.stdout, ran.stderr))
}

fn config(text: &str) -> (TempDir, String) {
    let folder = TempDir::new().expect("a folder");
    let file = folder.path().join("policies.yaml");
    std::fs::write(&file, text).expect("it is ours");
    (folder, file.display().to_string())
}

/// The policies that apply, by name.
fn applying(explained: &Value) -> Vec<&str> {
    let policies = explained["policies"].as_array().expect("a list").iter();
    policies
        .filter(|policy| policy["applies"] == true)
        .map(|policy| policy["policy"].as_str().expect("a name"))
        .collect()
}

#[test]
fn people_see_what_applies_why_and_what_comes_of_it() {
    let explained = explain(&["user=42", "plan=pro", "path=/v1/search", "tenant=t1"]);
    assert_eq!(explained.code, 0, "{}", explained.stderr);
    assert!(explained.stderr.starts_with("note: ") && explained.stderr.contains("--store"), "{}", explained.stderr);
    assert_eq!(
        explained.stdout,
        "\
domain default, cost 1
  user=42  plan=pro  path=/v1/search  tenant=t1

applies          mode     limit                            left  answer
per-user         enforce  1000/min burst 200         200 of 200  allowed
  all conditions match; it counts user=42; an override applies
  others have 100/min burst 20
  key tallygate:{user=42}:default/per-user:tb
search           enforce  10/min sliding_window        10 of 10  allowed
  all conditions match; it counts user=42
  key tallygate:{user=42}:default/search:sw
per-tenant-next  shadow   5000/min               5,000 of 5,000  allowed
  all conditions match; it counts tenant=t1
  key tallygate:{tenant=t1}:default/per-tenant-next:tb

does not apply  because
anonymous       `user` must be absent, but it is `42`

allowed: search binds, 10 of 10 left
"
    );
}

#[test]
fn the_json_object_keeps_its_contract() {
    let explained = explain_json(&["user=42", "--cost", "3"]);
    let text = explain(&["user=42", "--cost", "3", "--json"]).stdout;
    assert_fields(&text, &explained, &["domain", "descriptors", "cost", "policies", "answer"]);
    assert_eq!(explained["descriptors"], json!([[{ "key": "user", "value": "42" }]]));
    assert_eq!((&explained["domain"], &explained["cost"]), (&json!("default"), &json!(3)));
    let mut first = explained["policies"][0].clone();
    let because = first.as_object_mut().unwrap().remove("because").unwrap();
    assert!(because.as_str().unwrap().contains("user=42"), "{because}");
    assert_eq!(
        first,
        json!({
            "policy": "per-user", "descriptor": 0, "applies": true, "mode": "enforce", "limit": "100/min burst 20",
            "own_limit": false, "subject": "user=42", "key": "tallygate:{user=42}:default/per-user:tb",
            "allowed": true, "source": "store", "remaining": 20, "would_charge": 3, "retry_after_ms": 0,
            "reset_after_ms": 0,
        })
    );
    let policies = &text[text.find("policies").unwrap()..];
    assert_fields(policies, &explained["policies"][1], &["policy", "descriptor", "applies", "because"]);
    let answer = &explained["answer"];
    assert_eq!(
        (&answer["allowed"], &answer["policy"], &answer["remaining"]),
        (&json!(true), &json!("per-user"), &json!(20))
    );
    assert_eq!(answer["statuses"].as_array().unwrap().len(), 1);
}

#[test]
fn every_format_is_explained() {
    let edge = |more: &[&str]| explain_json(&[&["--domain", "edge"], more].concat());
    let posts = edge(&["--descriptor", "method=POST,user=42"]);
    assert_eq!(applying(&posts), ["writes"]);
    let uploads = ["--descriptor", "method=POST,user=42", "--descriptor", r"route=/upload/a\,b,user=42"];
    let uploads = edge(&uploads);
    assert_eq!(applying(&uploads), ["route_/upload/*.user"], "it replaces the other");
    assert_eq!(uploads["policies"][0]["descriptor"], 1);
    assert_eq!(uploads["policies"][0]["subject"], r"route=/upload/a\,b,user=42");
    let free = edge(&["remote_address=198.51.100.7"]);
    assert_eq!((&free["policies"][0]["limit"], &free["policies"][0]["key"]), (&Value::Null, &Value::Null));
    assert_eq!(free["answer"]["source"], "unlimited");

    let shop = explain_json(&["--domain", "shop.example.org", "req.method=POST", "path=/cart", "user_id=7"]);
    assert_eq!(applying(&shop), ["everybody", "orders"]);
    let shut_out = explain(&["--domain", "edge", "remote_address=192.0.2.66"]);
    assert_eq!(shut_out.code, 1);
    assert!(shut_out.stdout.contains("denied: the limit is zero"), "{}", shut_out.stdout);
    assert!(shut_out.stdout.ends_with("denied: remote_address_192.0.2.66 binds, waiting does not help\n"));
}

#[test]
fn a_call_without_a_limit_is_allowed_with_the_reason() {
    for (call, answer) in [
        (&["--domain", "llm", "user=42"][..], "allowed: no policy applies"),
        (&["user=1"], "allowed: unlimited"),
        (&["--domain", "edge", "method=DELETE", "user=42"], "allowed: only shadow policies apply"),
    ] {
        let explained = explain(call);
        assert_eq!(explained.code, 0, "{}", explained.stderr);
        assert_eq!(explained.stdout.lines().last(), Some(answer), "{}", explained.stdout);
    }
}

/// The names of keys are those that the store has: `check` is sent to one of them.
#[test]
fn the_state_is_shown_and_left_as_it_is() {
    let server = Server::redis().start();
    let url = server.url();
    let on = |args: &[&str]| explain(&[args, &["--store", &url]].concat());
    let call = ["user=42", "path=/v1/search"];
    assert_eq!(on(&call).stderr, "", "there is nothing to note");
    assert_eq!(server.command(&["DBSIZE"]).int(), 0, "it writes nothing");

    let take = ["check", "user=42", "--policy", "default/search", "--limit", "10/min sliding_window", "--store", &url];
    assert_eq!(run([&take[..], &["--cost", "7"]].concat()).code, 0);
    let some_left = on(&[&call[..], &["--json"]].concat());
    let some_left: Value = serde_json::from_str(&some_left.stdout).unwrap();
    let search = &some_left["policies"][1];
    assert_eq!((&search["policy"], &search["remaining"]), (&json!("search"), &json!(3)));
    let key = search["key"].as_str().unwrap();
    assert_eq!(server.command(&["EXISTS", key]).int(), 1, "{key}");

    let before = server.command(&["DUMP", key]);
    let denied = on(&[&call[..], &["--cost", "4"]].concat());
    assert_eq!(denied.code, 1, "{}", denied.stderr);
    let answer = denied.stdout.lines().last().unwrap();
    assert!(answer.starts_with("denied: search binds, 3 of 10 left, retry in "), "{answer}");
    let too_much = on(&[&call[..], &["--cost", "11"]].concat());
    assert_eq!(too_much.code, 1);
    assert!(too_much.stdout.ends_with("denied: search binds, waiting does not help\n"), "{}", too_much.stdout);
    assert_eq!(on(&[&call[..], &["--cost", "3"]].concat()).code, 0);
    assert_eq!(format!("{before:?}"), format!("{:?}", server.command(&["DUMP", key])));
    assert_eq!(server.command(&["DBSIZE"]).int(), 1);

    let elsewhere = on(&[&call[..], &["--prefix", "other", "--json"]].concat());
    let elsewhere: Value = serde_json::from_str(&elsewhere.stdout).unwrap();
    assert_eq!(elsewhere["policies"][1]["key"], "other:{user=42}:default/search:sw");
    assert_eq!(elsewhere["policies"][1]["remaining"], 10);
}

/// Such a policy takes what remains, and the explanation says so.
#[test]
fn what_would_be_drained_is_reported_and_not_taken() {
    let server = Server::redis().start();
    let url = server.url();
    let call = ["--domain", "llm", "api_key=k", "model=m", "--cost", "150000", "--store", &url];
    let take = ["check", "api_key=k,model=m", "--policy", "llm/tokens-per-key", "--cost", "90000", "--store", &url];
    assert_eq!(run([&take[..], &["--limit", "200000/h sliding_counter"]].concat()).code, 0);
    for _ in 0..2 {
        let explained = explain_json(&call);
        let tokens = &explained["policies"][0];
        assert_eq!((&tokens["allowed"], &tokens["would_charge"]), (&json!(false), &json!(110_000)));
        assert_eq!(tokens["remaining"], 110_000);
    }
    assert!(explain(&call).stdout.contains("takes the 110,000 left"));
}

#[test]
fn one_quota_with_room_is_enough() {
    let quota = |name: &str, amount: u64| {
        format!("  - {{ name: {name}, partition: [user], limit: {amount}/day, mode: quota }}\n")
    };
    for (left, code) in [(5, 0), (0, 1)] {
        let (_folder, file) = config(&format!("policies:\n{}{}", quota("used-up", 0), quota("other", left)));
        let explained = run(["explain", "--config", &file, "user=42"]);
        assert_eq!(explained.code, code, "{}{}", explained.stdout, explained.stderr);
    }
}

#[test]
fn the_store_of_the_configuration_is_used_unless_another_is_named() {
    let server = Server::redis().start();
    let policies = "policies: [{ name: per-user, partition: [user], limit: 5/h }]";
    let (_folder, file) = config(&format!("store: {}\n{policies}", server.url()));
    let take = ["check", "user=42", "--policy", "default/per-user", "--limit", "5/h", "--cost", "5"];
    assert_eq!(run([&take[..], &["--store", &server.url()]].concat()).code, 0);
    let call = ["explain", "--config", &file, "user=42"];
    assert_eq!(run(call).code, 1);
    assert_eq!(run([&call[..], &["--store", "memory"]].concat()).code, 0);

    let (_folder, file) = config(&format!("store: redis://user:hunter2@127.0.0.1:1\n{policies}"));
    let unreachable = run(["explain", "--config", &file, "user=42"]);
    assert_eq!((unreachable.code, unreachable.stdout.as_str()), (3, ""));
    assert!(unreachable.stderr.contains("the store of the configuration"), "{}", unreachable.stderr);
    assert!(
        unreachable.stderr.contains("--store memory") && !unreachable.stderr.contains("hunter2"),
        "{}",
        unreachable.stderr
    );
}

#[test]
fn questions_that_make_no_sense_are_refused() {
    let refused = |args: &[&str], said: &str| {
        let ran = explain(args);
        assert_eq!((ran.code, ran.stdout.as_str()), (2, ""), "{args:?}: {}", ran.stderr);
        assert!(ran.stderr.starts_with("error: ") && ran.stderr.contains(said), "{args:?}: {}", ran.stderr);
    };
    refused(&["--domain", "defualt", "user=42"], "unknown domain `defualt`: did you mean --domain `default`?");
    refused(&["--domain", "somewhere", "user=42"], "use --domain with `edge`, `shop.example.org`, `default`, `llm`");
    refused(&[], "the call has no entries");
    refused(&["user"], "invalid entry `user`: write KEY=VALUE");
    refused(&["=42"], "invalid entry `=42`");
    refused(&["--descriptor", "user=42,path"], "--descriptor: invalid entry `path`");
    refused(&["user=42", "--cost", "0"], "a cost of 0");
    refused(&["user=42", "--prefix", "a b"], "--prefix");
    let unnamed = run(["explain", "user=42"]);
    assert_eq!(unnamed.code, 2);
    assert!(unnamed.stderr.contains("--config"), "{}", unnamed.stderr);
}

#[test]
fn a_wrong_configuration_is_an_error_with_its_findings() {
    let (_folder, file) = config("policies: [{ name: a, limt: 5/min }]");
    let refused = run(["explain", "--config", &file, "user=42"]);
    assert_eq!((refused.code, refused.stdout.as_str()), (2, ""));
    let line = format!("{file}:1:23: error: a policy has no field `limt`\n  help: did you mean `limit`?\n");
    assert!(refused.stderr.contains(&line), "{}", refused.stderr);
    let gone = Path::new(&file).with_file_name("gone.yaml").display().to_string();
    let gone = run(["explain", "--config", &gone, "user=42"]);
    assert_eq!(gone.code, 2);
    assert!(gone.stderr.contains("gone.yaml") && gone.stderr.contains("cannot be read"), "{}", gone.stderr);
}

/// Neither what the caller says nor what the file says.
#[test]
fn no_value_drives_the_terminal() {
    let evil = "x\x1b]0;owned\x07\r\n\u{9b}2J\u{202e}y";
    let quoted = serde_json::to_string(evil).unwrap();
    let (_folder, file) = config(&format!(
        "domain: {quoted}\ndescriptors: [{{ key: {quoted}, rate_limit: {{ unit: day, requests_per_unit: 5 }} }}]"
    ));
    let (entry, known) = (format!("{evil}={evil}"), format!("user={evil}"));
    let raw = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
    for args in [
        &["--config", &file, "--domain", evil, &entry][..],
        &["--config", &file, "--domain", evil, &known],
        &["--config", &file, "--domain", evil, &entry, "--json"],
        &["--config", &file, "--domain", evil, "--descriptor", evil],
        &["--config", &file, "--domain", "other", &known],
        &["--config", EXAMPLES, "--domain", evil, &known],
        &["--config", EXAMPLES, &known],
        &["--config", EXAMPLES, "user=42", &format!("path={evil}")],
        &["--config", EXAMPLES, evil],
    ] {
        let ran = run([&["explain"], args].concat());
        assert!(!ran.stdout.contains(raw) && !ran.stderr.contains(raw), "{args:?}: {:?}", ran.stdout);
        assert!(
            ran.stdout.lines().all(|line| !line.starts_with("\\u{9b}") && !line.starts_with("2J")),
            "{}",
            ran.stdout
        );
    }
}

#[test]
fn the_only_domain_of_a_file_is_taken() {
    let (_folder, file) = config("policies: [{ name: per-user, domain: api, partition: [user], limit: 5/h }]");
    let explained = run(["explain", "--config", &file, "user=42"]);
    assert!(explained.stdout.starts_with("domain api, cost 1\n"), "{}{}", explained.stdout, explained.stderr);
}

#[test]
fn a_file_without_config_before_it_is_refused_with_a_hint() {
    let refused = run(["explain", "policies.yaml", "user=42"]);
    assert_eq!(refused.code, 2);
    assert!(refused.stderr.contains("--config policies.yaml"), "{}", refused.stderr);
    let refused = run(["serve", "policies.yaml"]);
    assert_eq!(refused.code, 2);
    assert!(refused.stderr.contains("tip: to name a policy file, use '--config policies.yaml'"), "{}", refused.stderr);
}

/// The names of limitador's limits are long.
#[test]
fn explanations_fit_a_terminal_and_quotes_are_printed_as_they_are() {
    let limit = |value: &str| {
        format!(
            "- {{namespace: shop, max_value: 5, seconds: 60, variables: [\"descriptors[0]['user_id']\"], conditions: \
             [\"descriptors[0]['req.method'] == '{value}'\", \"descriptors[0]['req.path'] != '/a/rather/long/path'\"]}}\n"
        )
    };
    let (_folder, file) = config(&(limit("POST") + &limit("GET")));
    let explained = run(["explain", "--config", &file, "req.method=POST", "req.path=/", "user_id=7"]);
    assert_eq!(explained.code, 0, "{}", explained.stderr);
    let key = |line: &&str| line.trim_start().starts_with("key ");
    for line in explained.stdout.lines().filter(|line| !key(line)) {
        assert!(line.chars().count() <= 80, "{line}");
    }
    assert!(explained.stdout.contains("descriptors[0]['user_id']=7"), "{}", explained.stdout);
    assert!(!explained.stdout.contains(r"\'"), "{}", explained.stdout);
}

/// `-c` was the configuration of `serve` and the cost of `explain`.
#[test]
fn a_short_option_names_the_configuration_as_in_serve() {
    let (_folder, file) = config("policies: [{name: p, partition: [user], limit: 5/min}]");
    let explained = run(["explain", "-c", &file, "user=42", "--json"]);
    assert_eq!(explained.code, 0, "{}", explained.stderr);
}
