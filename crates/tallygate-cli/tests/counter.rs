//! `counter`.

use serde_json::{Value, json};

use super::run;

fn counter(args: &[&str]) -> (i32, String, String) {
    let ran = run([&["counter"], args].concat());
    (ran.code, ran.stdout, ran.stderr)
}

#[test]
fn they_count() {
    for (args, sum) in [
        (&["incr", "visits"][..], "1"),
        (&["decr", "visits"], "-1"),
        (&["incr-by", "visits", "5"], "5"),
        (&["incr-by", "visits", "-5"], "-5"),
        (&["incr-by", "visits", "--ttl", "1h", "-5"], "-5"),
        (&["decr-by", "visits", "-7"], "7"),
        (&["incr-by", "visits", "-9223372036854775808"], "-9223372036854775808"),
        (&["incr-by-float", "visits", "0.25"], "0.25"),
        (&["incr-by-float", "visits", "-1.5e3"], "-1500"),
        (&["get", "visits"], "0"),
        (&["delete", "visits"], "0"),
    ] {
        let (code, stdout, stderr) = counter(args);
        assert_eq!((code, stdout.as_str()), (0, format!("{sum}\n").as_str()), "{args:?}: {stderr}");
        assert!(stderr.contains("--store"), "{stderr}");
    }
}

#[test]
fn they_print_json() {
    let value = |args: &[&str]| serde_json::from_str::<Value>(&counter(args).1).unwrap();
    assert_eq!(value(&["incr-by", "a", "9223372036854775807", "--json"]), json!({ "name": "a", "value": i64::MAX }));
    assert_eq!(value(&["incr-by-float", "a", "-0.5", "--json"]), json!({ "name": "a", "value": -0.5 }));
}

#[test]
fn a_time_to_live_is_a_number_and_a_unit() {
    for ttl in ["250ms", "30s", "5min", "1h", "2d"] {
        assert_eq!(counter(&["incr", "a", "--ttl", ttl]).0, 0, "{ttl}");
    }
    for (ttl, said) in [
        ("5", "a number and a unit"),
        ("-5s", "a number and a unit"),
        ("1.5h", "a number and a unit"),
        ("0s", "1 ms to 100 years"),
        ("40000d", "1 ms to 100 years"),
        ("99999999999999999999d", "too long"),
    ] {
        let (code, _, stderr) = counter(&["incr", "a", "--ttl", ttl]);
        assert_eq!(code, 2, "{ttl}");
        assert!(stderr.starts_with("error: ") && stderr.contains(said), "{ttl}: {stderr}");
    }
}

#[test]
fn what_cannot_be_counted_is_refused() {
    let long = "n".repeat(1025);
    for (args, said) in [
        (&["incr", ""][..], "1 to 1024 bytes"),
        (&["incr", &long], "1 to 1024 bytes"),
        (&["incr-by", "a", "1.5"], "incr-by-float"),
        (&["incr-by", "a", "9223372036854775808"], "64-bit"),
        (&["decr-by", "a", "-9223372036854775808"], "overflow"),
        (&["incr-by-float", "a", "inf"], "must be finite"),
        (&["incr-by-float", "a", "1e999"], "must be finite"),
        (&["incr-by-float", "a", "NaN"], "must be finite"),
        (&["incr-by-float", "a", "much"], "is not a number"),
        (&["get", "a", "--ttl", "1h"], "--ttl"),
    ] {
        let (code, stdout, stderr) = counter(args);
        assert_eq!((code, stdout.as_str()), (2, ""), "{args:?}");
        assert!(stderr.contains("error: ") && stderr.contains(said), "{args:?}: {stderr}");
    }
}

#[test]
fn a_ttl_of_zero_is_refused_with_what_was_written() {
    let (code, _, stderr) = counter(&["incr", "a", "--ttl", "0s"]);
    assert_eq!(code, 2);
    assert!(stderr.contains("'0s'") && !stderr.contains("0ns"), "{stderr}");
}
