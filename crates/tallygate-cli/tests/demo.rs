//! `demo`: the facts in the picture.

use super::run;

/// Admitted and peak, from the line that begins with `name` followed by a space.
fn facts(picture: &str, name: &str) -> (u64, u64) {
    let line = picture.lines().find(|line| line.starts_with(&format!("{name} "))).expect("every algorithm has a row");
    let numbers: Vec<u64> = line.split_whitespace().rev().take(2).map(|word| word.parse().expect("a number")).collect();
    (numbers[1], numbers[0])
}

#[test]
fn the_picture_tells_the_algorithms_apart() {
    let ran = run(["demo"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
    assert_eq!(facts(&ran.stdout, "fixed_window").1, 20, "twice the limit around the boundary");
    assert!(ran.stdout.contains("└───┘ 20 in "), "and it is bracketed:\n{}", ran.stdout);
    for exact in ["sliding_log", "sliding_window"] {
        assert!(facts(&ran.stdout, exact).1 <= 10, "{exact}");
    }
    let (admitted, peak) = facts(&ran.stdout, "token_bucket");
    assert!(peak > 10 && peak <= 20, "a bucket gives what it saved and what it gains: {peak}");
    assert!(admitted > facts(&ran.stdout, "sliding_log").0);
    assert!(ran.stdout.contains("docs/guide/choosing.md") && ran.stdout.contains("tallygate check"));
}

#[test]
fn it_is_the_same_every_time_plain_in_a_pipe_and_fits_the_terminal() {
    for limit in [
        "10/10s",
        "100/min",
        "1/s",
        "7/ms",
        "250 per 250ms",
        "1000000000/365d",
        "10/10s burst 3",
        "1/h burst 900",
        "1000000/s burst 3",
    ] {
        let (one, two) = (run(["demo", "--limit", limit]), run(["demo", "--limit", limit]));
        assert_eq!(one.code, 0, "{limit}: {}", one.stderr);
        assert_eq!(one.stdout, two.stdout, "{limit}");
        assert!(!one.stdout.contains('\x1b'), "{limit}");
        for line in one.stdout.lines() {
            assert!(line.chars().count() <= 80, "{limit}: {line}");
        }
    }
}

#[test]
fn the_traffic_scales_with_the_limit() {
    let ran = run(["demo", "--limit", "100/min"]);
    assert_eq!(facts(&ran.stdout, "fixed_window").1, 200);
    assert!(facts(&ran.stdout, "sliding_log").1 <= 100);
    assert!(ran.stdout.contains("2min"), "the axis follows the window");
}

/// The traffic of a large limit has calls of many units: a burst below that made the demo fail.
#[test]
fn a_burst_below_the_cost_of_a_call_is_drawn_as_one_call() {
    let ran = run(["demo", "--limit", "1000000/s burst 3"]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert!(ran.stdout.contains("drawn with a burst of 1000"), "{}", ran.stdout);
}
