//! What is refused, with which words, and what no input can do to a terminal.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use super::{Ran, run};

fn refused(ran: &Ran, said: &str, case: &str) {
    assert_eq!(ran.code, 2, "{case}: {}", ran.stderr);
    assert_eq!(ran.stdout, "", "{case}");
    assert!(ran.stderr.starts_with("error: "), "{case}: {}", ran.stderr);
    assert!(ran.stderr.contains(said), "{case}: {}", ran.stderr);
}

#[test]
fn costs() {
    for (cost, said) in [
        ("0", "use `peek` to look without taking"),
        ("-3", "cannot be negative: use `refund`"),
        ("101", "a cost of 101 can never pass `cli`, which holds at most 100"),
        ("9007199254740993", "the largest is 1000000000"),
        ("99999999999999999999999", "the largest is 1000000000"),
        ("1.5", "whole number"),
        ("", "whole number"),
        ("two", "whole number"),
    ] {
        for verb in ["check", "peek"] {
            refused(&run([verb, "alice", "--limit", "100/min", "--cost", cost]), said, cost);
        }
    }
    refused(&run(["refund", "alice", "--limit", "100/min", "--cost", "0"]), "a cost of 0", "refund");
}

#[test]
fn limits() {
    for (limit, said) in [
        ("0/0s", "a window cannot be zero"),
        ("5/", "expected a unit"),
        ("1e9/day", "plain digits"),
        ("-3/min", "cannot be negative"),
        ("", "expected an amount"),
        ("5/month", "use days"),
        ("2000000000/s", "too large"),
        ("5/min sliding_log burst 9", "`burst` cannot be used"),
    ] {
        for verb in ["check", "peek", "refund", "reset"] {
            refused(&run([verb, "alice", "--limit", limit]), said, limit);
        }
        if !limit.contains("sliding_log") {
            refused(&run(["demo", "--limit", limit]), said, limit);
        }
    }
    let caret = run(["check", "alice", "--limit", "5/fortnight"]).stderr;
    assert!(caret.ends_with("\n  5/fortnight\n    ^\n"), "{caret}");
    refused(&run(["demo", "--limit", "5/min sliding_log"]), "leave `sliding_log` out", "demo");
    refused(&run(["demo", "--limit", "0/min"]), "nothing to see", "demo");
}

/// A mebibyte does not fit through one argument (Linux ends them at 128 KiB); what does fit is refused the same way.
#[test]
fn subjects() {
    refused(&run(["check", "", "--limit", "3/min"]), "the subject is empty", "empty");
    let long = "a".repeat(100_000);
    refused(&run(["check", &long, "--limit", "3/min"]), "the subject has 100000 bytes; at most 1024", "long");
    let policy = "p".repeat(129);
    refused(&run(["check", "a", "--limit", "3/min", "--policy", &policy]), "the policy name has 129 bytes", "policy");
    refused(&run(["check", "a", "--limit", "3/min", "--policy", ""]), "the policy name is empty", "policy");
}

#[test]
fn any_bytes_are_a_subject() {
    for subject in [&b"\xff\xfe\x80\x01"[..], b"{victim}", b"}{:%#", b"\x1b[2J\n\r", "zoë 日本".as_bytes()] {
        let args = [OsStr::new("check"), OsStr::from_bytes(subject), OsStr::new("--limit"), OsStr::new("3/min")];
        let ran = run(args);
        assert_eq!(ran.code, 0, "{subject:?}: {}", ran.stderr);
        assert!(ran.stdout.starts_with("allowed  2 of 3 left"), "{}", ran.stdout);
    }
}

#[test]
fn calls() {
    refused(&run(["check", "a", "--limit", "3/min", "--repeat", "0"]), "--repeat 0", "repeat");
    let many: Vec<&str> = ["check", "a"].into_iter().chain(["--limit", "3/min"].repeat(33)).collect();
    refused(&run(many), "a call has 1 to 32 checks; this one has 33", "many limits");
    refused(&run(["check", "a"]), "--limit", "no limit");
    refused(&run(["chekc", "a"]), "check", "a mistyped verb");
    refused(&run(["check", "a", "--limit", "3/min", "--store", "here"]), "redis://", "no URL");
}

/// Whatever is written, wherever: a terminal gets no command from it.
#[test]
fn no_control_character_reaches_the_terminal() {
    let evil = "x\x1b]0;owned\x07\r\n\u{9b}2J\u{202e}y";
    let dashed = format!("--{evil}");
    let limit = ["--limit", "3/min"];
    let cases: Vec<Vec<&str>> = vec![
        vec![evil],
        vec![&dashed],
        vec!["check", evil, &dashed],
        vec!["check", "a", "--limit", evil],
        vec!["check", "a", "--limit", "3/min", evil],
        [&["check", evil], &limit[..]].concat(),
        [&["check", "a", "--policy", evil], &limit[..]].concat(),
        [&["check", "a", "--policy", evil, "--json"], &limit[..]].concat(),
        [&["check", "a", "--policy", evil, "--limit", "5/s"], &limit[..]].concat(),
        [&["check", "a", "--policy", evil, "--cost", "7"], &limit[..]].concat(),
        [&["check", "a", "--algorithm", evil], &limit[..]].concat(),
        [&["check", "a", "--cost", evil], &limit[..]].concat(),
        [&["check", "a", "--repeat", evil], &limit[..]].concat(),
        [&["check", "a", "--store", evil], &limit[..]].concat(),
        [&["check", "a", "--store", "\x1b[1m://x"], &limit[..]].concat(),
        [&["refund", "a", "--policy", evil], &limit[..]].concat(),
        [&["reset", "a", "--policy", evil], &limit[..]].concat(),
        vec!["counter", evil],
        vec!["counter", "incr", evil, "--json"],
        vec!["counter", "incr-by", "a", evil],
        vec!["counter", "incr-by-float", "a", evil],
        vec!["counter", "incr", "a", "--ttl", evil],
        vec!["demo", "--limit", evil],
    ];
    for case in cases {
        let ran = run(&case);
        let raw = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
        assert!(!ran.stdout.contains(raw), "{case:?}: {:?}", ran.stdout);
        assert!(!ran.stderr.contains(raw), "{case:?}: {:?}", ran.stderr);
        let broken = |text: &str| text.lines().any(|line| line.starts_with("\\u{9b}") || line.starts_with("2J"));
        assert!(!broken(&ran.stdout) && !broken(&ran.stderr), "{case:?}: {:?}", ran.stderr);
    }
}

#[test]
fn a_hold_that_cannot_be_resolved_here_is_refused_with_the_remedy() {
    let refused = |args: &[&str], says: &str| {
        let ran = run(args);
        assert!(ran.code == 2 && ran.stderr.contains(says), "{args:?}: {} {}", ran.code, ran.stderr);
    };
    let token = format!("01{}", "ab".repeat(16));
    for verb in [&["settle"][..], &["cancel"], &["extend", "--ttl", "1s"]] {
        refused(&[verb, &[&token]].concat(), "--store memory keeps nothing");
        refused(&[verb, &["alice", "--store", "redis://127.0.0.1:1"]].concat(), "this is not a hold");
    }
    let settle = |units: &str, says: &str| {
        refused(&["settle", &token, "--store", "redis://127.0.0.1:1", "--units", units], says);
    };
    settle("-1", "a whole number from 0");
    settle("many", "a whole number from 0");
    settle("1000000001", "from 0 to 1000000000");
    refused(&["settle", &token, "--partial"], "--units");
    let reserve = ["reserve", "alice", "--limit", "9/h"];
    refused(&[&reserve[..], &["--ttl", "0s"]].concat(), "from 1ms to 24h");
    refused(&[&reserve[..], &["--ttl", "25h"]].concat(), "from 1ms to 24h");
    refused(&[&reserve[..], &["--cost", "10"]].concat(), "can never pass `cli`");
    refused(&[&reserve[..], &["--overrun", "ignore"]].concat(), "debt, cap, refuse");
    let held = run(reserve);
    assert!(held.code == 0 && held.stderr.contains("note: the embedded store forgets"), "{}", held.stderr);
}
