//! The commands on a real server: what one does, the next one sees.

use serde_json::Value;
use tallygate_testkit::Server;

use super::{Ran, run};

fn on(server: &Server, args: &[&str]) -> Ran {
    let url = server.url();
    let ran = run([args, &["--store", &url]].concat());
    assert!(!ran.stderr.contains("note:"), "{}", ran.stderr);
    ran
}

#[test]
fn state_outlives_the_command() {
    let server = Server::redis().start();
    let alice = ["alice", "--limit", "3/h sliding_log"];
    let with = |verb: &str, more: &[&str]| on(&server, &[&[verb], &alice[..], more].concat());

    let first: Value = serde_json::from_str(&with("check", &["--cost", "2", "--json"]).stdout).unwrap();
    assert_eq!(first["remaining"], 1);
    assert_eq!(with("check", &["--cost", "2"]).code, 1);
    assert!(with("peek", &[]).stdout.starts_with("allowed  1 of 3 left"));

    let decided_at = first["decided_at_us"].to_string();
    let refund = with("refund", &["--cost", "2", "--decided-at", &decided_at]);
    assert_eq!(refund.stdout, "cli: 2 of 2 given back\n", "{}", refund.stderr);
    assert_eq!(with("check", &["--repeat", "3"]).code, 0);
    assert_eq!(with("check", &[]).code, 1);
    assert_eq!(with("reset", &[]).stdout, "cli: forgotten\n");
    assert_eq!(with("reset", &[]).stdout, "cli: there was nothing to forget\n");
    assert_eq!(with("check", &[]).code, 0);
}

#[test]
fn what_one_command_reserves_another_settles() {
    let server = Server::redis().start();
    let alice = ["alice", "--limit", "1000/h fixed_window", "--policy", "tokens"];
    let reserve = |more: &[&str]| on(&server, &[&["reserve"], &alice[..], more].concat());
    let reserved = reserve(&["--cost", "900"]);
    let (text, token) = reserved.stdout.trim_end().rsplit_once('\n').unwrap();
    assert!(text.starts_with("allowed  100 of 1000 left, 900 held"), "{text}");
    assert!(token.bytes().all(|byte| byte.is_ascii_hexdigit()), "{token}");
    let part = on(&server, &["settle", token, "--units", "100", "--partial"]);
    assert!(part.stdout.starts_with("open, expires in "), "{}", part.stdout);
    assert!(
        part.stdout.contains("tokens  100 of 900 used, 0 given back, 800 held; 100 of 1000 left"),
        "{}",
        part.stdout
    );
    assert_eq!(on(&server, &["extend", token, "--ttl", "5min"]).code, 0);
    let settled = on(&server, &["settle", token, "--units", "tokens=50", "--json"]);
    let settled: Value = serde_json::from_str(&settled.stdout).unwrap();
    assert_eq!(
        (&settled["state"], &settled["settled"], &settled["refunded"]),
        (&"settled".into(), &150.into(), &750.into())
    );
    let again = on(&server, &["settle", token]);
    assert_eq!((again.code, again.stdout.lines().next()), (1, Some("settled")));
    assert!(again.stderr.contains("was settled before"), "{}", again.stderr);
    assert!(!again.stderr.contains(token), "the token is in an error");

    let reserved: Value =
        serde_json::from_str(&reserve(&["--cost", "7", "--overrun", "refuse", "--json"]).stdout).unwrap();
    let token = reserved["hold"].as_str().unwrap();
    assert_eq!(reserved["held"], 7);
    let refused = on(&server, &["settle", token, "--units", "8"]);
    assert!(refused.code == 1 && refused.stderr.contains("settle at most 7"), "{}", refused.stderr);
    let unknown = on(&server, &["settle", token, "--units", "requests=8"]);
    assert!(unknown.code == 2 && unknown.stderr.contains("it is of tokens"), "{}", unknown.stderr);
    assert_eq!(on(&server, &["cancel", token]).stdout.lines().next(), Some("cancelled"));
    assert_eq!(reserve(&["--cost", "851"]).code, 1, "only 850 are left");
}

#[test]
fn open_holds_are_listed_the_oldest_first_and_audited() {
    let server = Server::redis().start();
    let reserve = |subject: &str, policy: &str, cost: &str| {
        let asked = ["reserve", subject, "--limit", "1000/h", "--policy", policy, "--cost", cost, "--ttl", "1h"];
        let reserved = on(&server, &asked);
        assert_eq!(reserved.code, 0, "{}", reserved.stderr);
        reserved.stdout.lines().last().unwrap().to_owned()
    };
    assert_eq!(on(&server, &["holds"]).stdout, "no open holds\n");
    let token = reserve("ann", "tokens", "900");
    reserve("b\u{1b}ob", "requests", "3");
    let text = on(&server, &["holds"]);
    assert!(text.stdout.starts_with("2 open holds, 903 units held\n"), "{}", text.stdout);
    assert!(!text.stdout.contains('\x1b') && !text.stdout.contains(&token[2..34]), "{}", text.stdout);
    let json = |args: &[&str]| -> Value {
        let ran = on(&server, &[args, &["--json"]].concat());
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        serde_json::from_str(&ran.stdout).unwrap()
    };
    let first = json(&["holds", "--limit", "1"]);
    assert_eq!((&first["open"], &first["held"], first["holds"].as_array().unwrap().len()), (&2.into(), &903.into(), 1));
    assert_eq!(first["holds"][0]["policies"][0]["subject"], "ann");
    let one = json(&["holds", "--policy", "tokens", "--subject", "ann"]);
    assert_eq!((&one["open"], &one["held"]), (&1.into(), &900.into()));
    assert_eq!(json(&["holds", "--older-than", "1d"])["open"], 0);
    let usage = json(&["audit"]);
    let held = |policy: &str, kind: &str| {
        let all = usage["usage"].as_array().unwrap();
        let found = all.iter().find(|usage| usage["policy"] == policy && usage["algorithm"] == kind).unwrap();
        (found["open_holds"].clone(), found["held"].clone())
    };
    assert_eq!(held("tokens", "holds"), (1.into(), 900.into()));
    assert_eq!(held("tokens", "token_bucket"), (0.into(), 0.into()), "used units are not held ones");
    assert!(on(&server, &["audit"]).stdout.contains("open holds"));
    assert_eq!(on(&server, &["cancel", &token]).code, 0);
    assert_eq!(json(&["holds"])["held"], 3);
    let embedded = run(["holds"]);
    assert!(embedded.code == 2 && embedded.stderr.contains("--store redis://"), "{}", embedded.stderr);
    assert_eq!(run(["holds", "--store", "redis://127.0.0.1:1"]).code, 3);
}

#[test]
fn counters_outlive_the_command() {
    let server = Server::redis().start();
    assert_eq!(on(&server, &["counter", "incr-by", "visits", "5", "--ttl", "1h"]).stdout, "5\n");
    assert_eq!(on(&server, &["counter", "decr-by", "visits", "7"]).stdout, "-2\n");
    assert_eq!(on(&server, &["counter", "incr-by-float", "visits", "0.5"]).stdout, "-1.5\n");
    let refused = on(&server, &["counter", "incr", "visits"]);
    assert_eq!(refused.code, 2);
    assert!(refused.stderr.contains("-1.5, which is not an integer"), "{}", refused.stderr);
    assert_eq!(on(&server, &["counter", "delete", "visits"]).stdout, "-1.5\n");
    assert_eq!(on(&server, &["counter", "get", "visits"]).stdout, "0\n");
}

#[test]
fn a_store_that_is_not_there_is_an_error_and_no_answer() {
    let nobody = run(["check", "alice", "--limit", "3/min", "--store", "redis://127.0.0.1:1"]);
    assert_eq!((nobody.code, nobody.stdout.as_str()), (3, ""));
    assert!(nobody.stderr.starts_with("error: --store: "), "{}", nobody.stderr);
}
