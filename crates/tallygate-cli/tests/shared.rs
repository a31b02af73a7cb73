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
