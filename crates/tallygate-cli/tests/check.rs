//! `check`, `peek`, `refund` and `reset`.

use serde_json::Value;

use super::{assert_fields, run};

fn json(args: &[&str]) -> Value {
    let ran = run(args);
    serde_json::from_str(&ran.stdout).unwrap_or_else(|error| panic!("{error}: {} {}", ran.stdout, ran.stderr))
}

#[test]
fn the_exit_code_is_the_answer() {
    assert_eq!(run(["check", "alice", "--limit", "3/min"]).code, 0);
    assert_eq!(run(["check", "alice", "--limit", "0/min"]).code, 1);
    assert_eq!(run(["check", "alice", "--limit", "nonsense"]).code, 2);
    assert_eq!(run(["check", "alice", "--limit", "3/min", "--repeat", "3"]).code, 0);
    assert_eq!(run(["check", "alice", "--limit", "3/min", "--repeat", "4"]).code, 1);
    assert_eq!(run(["peek", "alice", "--limit", "3/min"]).code, 0);
    assert_eq!(run(["peek", "alice", "--limit", "0/min"]).code, 1);
}

#[test]
fn repeated_calls_print_a_line_each_and_a_summary() {
    let ran = run(["check", "alice", "--limit", "3/min", "--repeat", "5"]);
    let lines: Vec<&str> = ran.stdout.lines().collect();
    assert_eq!(lines.len(), 6, "{}", ran.stdout);
    assert!(lines[0].starts_with("1  allowed  2 of 3 left"), "{}", lines[0]);
    // 20 s, less what the calls before it took.
    let wait = lines[3].strip_prefix("4  denied   0 of 3 left, retry in ");
    assert!(wait.is_some_and(|wait| wait.starts_with("20s") || wait.starts_with("19.")), "{}", lines[3]);
    assert_eq!(lines[5], "3 of 5 allowed, 2 denied");
    assert_eq!(ran.stderr, "");
}

#[test]
fn a_check_may_take_what_is_left() {
    let args = ["check", "alice", "--limit", "10/h", "--cost", "8", "--up-to", "--at-least", "2", "--repeat", "3"];
    let ran = run(args);
    let lines: Vec<&str> = ran.stdout.lines().collect();
    assert!(lines[0].starts_with("1  allowed  2 of 10 left") && lines[0].ends_with("(granted: 8)"), "{}", lines[0]);
    assert!(lines[1].starts_with("2  allowed  0 of 10 left") && lines[1].ends_with("(granted: 2)"), "{}", lines[1]);
    assert!(lines[2].starts_with("3  denied   0 of 10 left") && !lines[2].contains("granted"), "{}", lines[2]);
    assert_eq!(json(&["check", "alice", "--limit", "3/min", "--cost", "8", "--up-to", "--json"])["granted"], 3);
    let refused = run(["check", "alice", "--limit", "9/min", "--cost", "2", "--up-to", "--at-least", "3"]);
    assert!(refused.code == 2 && refused.stderr.contains("at least 3 units"), "{}", refused.stderr);
    let refused = run(["check", "alice", "--limit", "9/min", "--at-least", "3"]);
    assert!(refused.code == 2 && refused.stderr.contains("--up-to"), "{}", refused.stderr);
}

#[test]
fn a_single_call_on_the_embedded_store_says_that_it_is_forgotten() {
    for verb in ["check", "peek", "refund", "reset"] {
        let ran = run([verb, "alice", "--limit", "3/min"]);
        assert_eq!(ran.code, 0, "{verb}");
        assert!(ran.stderr.starts_with("note: ") && ran.stderr.contains("--store"), "{verb}: {}", ran.stderr);
    }
}

#[test]
fn the_json_object_keeps_its_contract() {
    let answer = json(&["check", "alice", "--limit", "3/min", "--json"]);
    let text = run(["check", "alice", "--limit", "3/min", "--json"]).stdout;
    let status = ["allowed", "source", "policy", "limit", "remaining", "held", "retry_after_ms", "reset_after_ms"];
    assert_fields(&text, &answer, &[&status[..], &["split", "decided_at_us", "statuses"]].concat());
    assert_fields(&text[text.find("statuses").unwrap()..], &answer["statuses"][0], &status);
    assert_eq!(answer["allowed"], true);
    assert_eq!(answer["source"], "store");
    assert_eq!(answer["policy"], "cli");
    assert_eq!(answer["remaining"], 2);
    assert_eq!(answer["retry_after_ms"], 0);
    assert_eq!(answer["reset_after_ms"], 20_000);
    assert!(answer["decided_at_us"].as_u64().unwrap() > 1_700_000_000_000_000);
}

#[test]
fn milliseconds_are_rounded_up() {
    let answer = json(&["check", "alice", "--limit", "3/s", "--json"]);
    assert_eq!(answer["reset_after_ms"], 334, "a third of a second is 333.33 ms");
}

#[test]
fn a_wait_that_does_not_help_is_null() {
    let answer = json(&["check", "alice", "--limit", "0/s", "--json"]);
    assert_eq!(answer["allowed"], false);
    assert_eq!(answer["source"], "zero_limit");
    assert_eq!(answer["retry_after_ms"], Value::Null);
}

#[test]
fn json_of_repeated_calls_is_an_object_on_each_line() {
    let ran = run(["check", "alice", "--limit", "2/min", "--repeat", "3", "--json"]);
    let allowed: Vec<bool> = ran
        .stdout
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["allowed"].as_bool().unwrap())
        .collect();
    assert_eq!(allowed, [true, true, false]);
}

#[test]
fn several_limits_are_charged_all_or_none() {
    let limits = ["--limit", "10/min", "--limit", "2/min fixed_window_from_first_call"];
    let args = [&["check", "alice", "--repeat", "4", "--json"][..], &limits].concat();
    let last: Value = serde_json::from_str(run(args).stdout.lines().last().unwrap()).unwrap();
    assert_eq!((&last["allowed"], &last["policy"]), (&Value::from(false), &Value::from("cli-2")));
    assert_eq!(last["statuses"][0]["policy"], "cli");
    assert_eq!(last["statuses"][0]["remaining"], 8, "two denied calls took nothing");

    let text = run([&["check", "alice"][..], &limits].concat()).stdout;
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("allowed  1 of 2 left") && lines[0].ends_with("(cli-2 binds)"), "{text}");
    assert!(lines[1].starts_with("  cli    allowed  9 of 10 left"), "{text}");
    assert!(lines[2].starts_with("  cli-2  allowed  1 of 2 left"), "{text}");
}

#[test]
fn each_limit_has_a_policy_of_its_own() {
    let policies = |names: &[&str]| {
        let limits = ["check", "a", "--json", "--limit", "1/s", "--limit", "2/s", "--limit", "3/s"];
        let named: Vec<&str> = names.iter().flat_map(|name| ["--policy", name]).collect();
        run([&limits[..], &named].concat())
    };
    let names = |names: &[&str]| {
        let answer: Value = serde_json::from_str(&policies(names).stdout).unwrap();
        let statuses = answer["statuses"].as_array().unwrap().clone();
        statuses.iter().map(|status| status["policy"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names(&[]), ["cli", "cli-2", "cli-3"]);
    assert_eq!(names(&["api"]), ["api", "api-2", "api-3"]);
    assert_eq!(names(&["x", "y", "z"]), ["x", "y", "z"]);
    for (wrong, said) in [(&["x", "y"][..], "2 policy names for 3 limits"), (&["x", "x", "y"], "its own policy name")] {
        let ran = policies(wrong);
        assert_eq!(ran.code, 2);
        assert!(ran.stderr.contains(said), "{}", ran.stderr);
    }
}

#[test]
fn an_algorithm_may_be_named_in_either_place_but_not_differently() {
    let with = |limit: &str, algorithm: &str| run(["check", "a", "--limit", limit, "--algorithm", algorithm]);
    assert_eq!(with("5/min", "sliding_log").code, 0);
    assert_eq!(with("5/min sliding_log", "sliding_log").code, 0);
    let differ = with("5/min sliding_log", "fixed_window");
    assert_eq!(differ.code, 2);
    for word in ["sliding_log", "fixed_window", "--algorithm", "leave one of them out"] {
        assert!(differ.stderr.contains(word), "{}", differ.stderr);
    }
    let unknown = with("5/min", "sliding_logs");
    assert_eq!(unknown.code, 2);
    assert!(unknown.stderr.contains("did you mean `sliding_log`"), "{}", unknown.stderr);
    let burst = with("5/min burst 9", "fixed_window");
    assert_eq!(burst.code, 2);
    assert!(burst.stderr.contains("burst"), "{}", burst.stderr);
}

#[test]
fn refund_and_reset_say_what_they_did() {
    let refund = run(["refund", "alice", "--limit", "3/min", "--cost", "2", "--decided-at", "1700000000000000"]);
    assert_eq!((refund.code, refund.stdout.as_str()), (0, "cli: 0 of 2 given back\n"));
    let reset = run(["reset", "alice", "--limit", "3/min"]);
    assert_eq!((reset.code, reset.stdout.as_str()), (0, "cli: there was nothing to forget\n"));
    let refund = json(&["refund", "alice", "--limit", "3/min", "--limit", "5/h", "--json"]);
    assert_eq!(refund["refunds"][1], serde_json::json!({ "policy": "cli-2", "cost": 1, "refunded": 0 }));
    let reset = json(&["reset", "alice", "--limit", "3/min", "--json"]);
    assert_eq!(reset["resets"][0], serde_json::json!({ "policy": "cli", "existed": false }));
}

#[test]
fn a_call_with_an_id_is_charged_once_and_another_under_it_is_an_error() {
    let args = ["check", "alice", "--limit", "10/h", "--cost", "3", "--request-id", "mail-4711", "--repeat", "2"];
    let ran = run(args);
    let lines: Vec<&str> = ran.stdout.lines().collect();
    assert!(lines[0].starts_with("1  allowed  7 of 10 left") && !lines[0].contains("replayed"), "{}", lines[0]);
    assert!(lines[1].starts_with("2  allowed  7 of 10 left") && lines[1].ends_with("(replayed: not charged again)"));
    let redis = tallygate_testkit::Server::redis().start();
    let url = redis.url();
    let of = |verb: &'static str, more: &[&str]| {
        let args = [verb, "alice", "--limit", "10/h", "--json", "--request-id", "one", "--store", &url];
        run([&args[..], more].concat())
    };
    let answer = |ran: super::Ran| serde_json::from_str::<Value>(&ran.stdout).unwrap();
    let first = answer(of("reserve", &["--cost", "4"]));
    let again = answer(of("reserve", &["--cost", "4"]));
    assert_eq!((&first["hold"], first.get("replayed")), (&again["hold"], None));
    assert_eq!((&again["replayed"], &again["held"]), (&Value::Bool(true), &Value::from(4)));
    for conflict in [of("reserve", &["--cost", "5"]), of("check", &["--cost", "4"])] {
        assert!(conflict.code == 2 && conflict.stderr.contains("used for another call"), "{}", conflict.stderr);
    }
    for (arg, value, says) in [
        ("--request-id", "", "the request id is empty"),
        ("--request-id-ttl", "0s", "remembered from 1ms to 24h"),
        ("--request-id-ttl", "25h", "remembered from 1ms to 24h"),
    ] {
        let refused = run(["check", "alice", "--limit", "10/h", arg, value, "--request-id=x"]);
        let refused = if arg == "--request-id" { run(["check", "a", "--limit", "10/h", arg, value]) } else { refused };
        assert!(refused.code == 2 && refused.stderr.contains(says), "{arg} {value}: {}", refused.stderr);
    }
}
