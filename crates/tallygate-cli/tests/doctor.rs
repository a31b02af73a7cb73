//! `doctor` as its users meet it: what it prints, and what it exits with.

use serde_json::Value;
use tallygate_testkit::{Flavour, Sentinel, Server};

use super::{Ran, assert_fields, run};

fn doctor(url: &str, more: &[&str]) -> Ran {
    run([&["doctor", "--store", url], more].concat())
}

#[test]
fn a_sound_store_exits_with_0_and_a_problem_with_1() {
    let server = Server::redis().arg("--maxmemory", "256mb").arg("--appendonly", "yes").start();
    let sound = doctor(&server.url(), &["--deadline", "2s"]);
    assert_eq!(sound.code, 0, "{}", sound.stdout);
    assert!(sound.stdout.contains("ok       charge") && sound.stdout.contains("0 problems"), "{}", sound.stdout);
    assert!(!sound.stdout.contains('\x1b') && sound.stderr.is_empty(), "{}", sound.stderr);

    server.command(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]).ok();
    let forgetful = doctor(&server.url(), &["--deadline", "2s"]);
    assert_eq!(forgetful.code, 1);
    let words = ["problem  eviction_policy", "means: ", "section 7", "fix:   CONFIG SET maxmemory-policy noeviction"];
    for words in words {
        assert!(forgetful.stdout.contains(words), "{words}: {}", forgetful.stdout);
    }
    assert!(forgetful.stdout.find("problem ") < forgetful.stdout.find("ok  "), "findings come first");
    assert!(forgetful.stdout.contains("1 problem, "), "{}", forgetful.stdout);
}

#[test]
fn json_has_a_stable_shape_and_no_password() {
    let server = Server::redis().password("hunter2").start();
    let ran = doctor(&server.url(), &["--json", "--deadline", "2s"]);
    assert!(!ran.stdout.contains("hunter2"), "{}", ran.stdout);
    let report: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_fields(&ran.stdout, &report, &["store", "worst", "findings", "servers"]);
    let finding =
        report["findings"].as_array().unwrap().iter().find(|finding| finding["severity"] == "warning").unwrap();
    let fields = ["check", "severity", "server", "found", "consequence", "guarantee", "remedy"];
    assert_fields(&ran.stdout, finding, &fields);
    let fields = [
        "address",
        "version",
        "used_memory",
        "maxmemory",
        "evicted_keys",
        "clock_offset_us",
        "clock_uncertainty_us",
        "latency",
    ];
    assert_fields(&ran.stdout, &report["servers"][0], &fields);
    assert_fields(&ran.stdout, &report["servers"][0]["latency"], &["decisions", "min_us", "median_us", "p99_us"]);
    assert_eq!(report["worst"], "warning", "{report:#}");
}

#[test]
fn one_missing_permission_is_one_line_for_all_checks_that_need_it() {
    let server = Server::redis().acl("user ops on >pw ~* &* +@all -info").start();
    let ran = doctor(&server.url_as("ops", "pw"), &["--deadline", "2s"]);
    assert_eq!(ran.stdout.matches("the user may not run INFO").count(), 1, "{}", ran.stdout);
    assert!(ran.stdout.contains("unknown  version, eviction_policy"), "{}", ran.stdout);
}

#[test]
fn sentinels_are_part_of_the_examination() {
    let sentinel = Sentinel::start(Flavour::Redis);
    let ran = doctor(&sentinel.url(), &["--deadline", "2s"]);
    assert_eq!(ran.code, 0, "{}", ran.stdout);
    assert!(ran.stdout.contains("3 sentinels with quorum 2"), "{}", ran.stdout);
    assert!(ran.stdout.contains("min-replicas-to-write"), "{}", ran.stdout);
}

#[test]
fn what_cannot_be_examined_is_an_error() {
    let nowhere = "redis://127.0.0.1:1";
    for (args, code, said) in [
        (&["doctor"][..], 2, "--store"),
        (&["doctor", "--store", nowhere], 3, "nothing is listening"),
        (&["doctor", "--store", nowhere, "--prefix", "*"], 2, "--prefix"),
        (&["doctor", "--store", nowhere, "--deadline", "soon"], 2, "--deadline"),
    ] {
        let ran = run(args);
        assert_eq!(ran.code, code, "{args:?}");
        assert!(ran.stderr.contains(said), "{args:?}: {}", ran.stderr);
    }
}
