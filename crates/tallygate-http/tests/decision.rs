//! The decision as JSON: the same members everywhere, in the same order, and no wait rounded down.

use std::time::Duration;

use proptest::prelude::*;
use serde_json::{Value, json};
use tallygate::clock::Timestamp;
use tallygate::decision::Source;
use tallygate::{Decision, Limit, Status};
use tallygate_http::{Answer, NO_POLICY, Part, decision_json, millis_up};

const MEMBERS: [&str; 8] =
    ["allowed", "source", "policy", "limit", "remaining", "held", "retry_after_ms", "reset_after_ms"];

/// The members of an object, in the order of its text.
fn members(text: &str) -> Vec<&str> {
    let known = MEMBERS.into_iter().chain(["split", "decided_at_us", "shadow", "statuses"]);
    let mut found: Vec<_> = known.filter_map(|name| Some((text.find(&format!("\"{name}\":"))?, name))).collect();
    found.sort_unstable();
    found.into_iter().map(|(_, name)| name).collect()
}

#[test]
fn a_decision_starts_with_the_limit_that_binds_and_lists_each() {
    let (minute, day): (Limit, Limit) = ("10/min".parse().unwrap(), "100/day".parse().unwrap());
    let statuses = vec![
        Status::from_parts(&minute, false, 0, 5_999_001, 60_000_000),
        Status::from_parts(&day, true, 40, 0, 51_840_000_000),
    ];
    let decision = Decision::new(false, statuses, Source::Store, Timestamp::from_micros(1_700_000_000_000_001));
    assert_eq!(
        decision_json(&["minute", "day"], &decision.into_split()),
        json!({
            "allowed": false,
            "source": "store",
            "policy": "minute",
            "limit": 10,
            "remaining": 0,
            "held": 0,
            "retry_after_ms": 6000,
            "reset_after_ms": 60_000,
            "split": true,
            "decided_at_us": 1_700_000_000_000_001_u64,
            "statuses": [
                {
                    "allowed": false, "source": "store", "policy": "minute", "limit": 10, "remaining": 0, "held": 0,
                    "retry_after_ms": 6000, "reset_after_ms": 60_000,
                },
                {
                    "allowed": true, "source": "store", "policy": "day", "limit": 100, "remaining": 40, "held": 0,
                    "retry_after_ms": 0, "reset_after_ms": 51_840_000,
                },
            ],
        })
    );
}

/// The instant at which the window of a calendar ends, in milliseconds of Unix time; only while something is used.
#[test]
fn a_calendar_says_when_its_window_ends() {
    let (month, minute): (Limit, Limit) = ("10/month in Europe/Berlin".parse().unwrap(), "10/min".parse().unwrap());
    let statuses = vec![
        Status::from_parts(&month, true, 9, 0, 1_500_500_001),
        Status::from_parts(&minute, true, 9, 0, 6_000_000),
        Status::untouched(&month),
    ];
    let at = Timestamp::from_micros(1_700_000_000_499_999);
    let decision = Decision::new(true, statuses, Source::Store, at);
    let json = decision_json(&["month", "minute", "unused"], &decision);
    let ends: Vec<_> = json["statuses"].as_array().unwrap().iter().map(|status| status.get("reset_at_ms")).collect();
    assert_eq!(ends, [Some(&json!(1_700_001_501_000_u64)), None, None]);
    let denied = Status::from_parts(&month, false, 0, 1_500_500_001, 1_500_500_001);
    let answer = |source| decision_json(&["month"], &Decision::of_one(denied, source, at));
    assert_eq!(answer(Source::Store)["reset_at_ms"], 1_700_001_501_000_u64);
    assert_eq!(answer(Source::DenyCache).get("reset_at_ms"), None, "decided_at is that of the first denial");
}

#[test]
fn what_is_held_stands_beside_what_remains_and_a_debt_where_there_is_one() {
    let limit: Limit = "10/min".parse().unwrap();
    let status = Status::from_parts(&limit, true, 3, 0, 1).with_holds(4, 0);
    let part =
        |status: Status| Answer::new(true, vec![Part::new("p", &status, Source::Store, false)], Some(0)).to_json();
    let object = part(status);
    assert_eq!((&object["held"], object.get("debt"), object.get("holds_full")), (&json!(4), None, None));
    let full = part(status.with_holds(10, 2).into_holds_full(5));
    assert_eq!((&full["held"], &full["debt"], &full["remaining"]), (&json!(10), &json!(2), &json!(0)));
    assert_eq!(full["statuses"][0]["holds_full"], true);
}

#[test]
fn a_wait_that_never_ends_is_null() {
    let limit: Limit = "0/min".parse().unwrap();
    let never = Status::from_parts(&limit, false, 0, u64::MAX, 0);
    let decision = Decision::of_one(never, Source::ZeroLimit, Timestamp::from_micros(0));
    let object = decision_json(&["closed"], &decision);
    assert_eq!(object["retry_after_ms"], Value::Null);
    assert_eq!(object["source"], "zero_limit");
}

#[test]
fn shadow_parts_are_marked_and_never_bind() {
    let limit: Limit = "10/min".parse().unwrap();
    let denied = Status::from_parts(&limit, false, 0, 6_000_000, 60_000_000);
    let parts = vec![Part::new("trial", &denied, Source::Store, true)];
    let object = Answer::new(true, parts, Some(0)).to_json();
    assert_eq!((&object["allowed"], &object["source"]), (&json!(true), &json!(NO_POLICY)));
    assert_eq!((&object["policy"], &object["retry_after_ms"]), (&Value::Null, &json!(0)));
    assert_eq!(object["statuses"][0]["shadow"], true);
    assert_eq!(object["statuses"][0]["allowed"], false);
}

#[test]
fn a_part_without_a_limit_has_no_numbers() {
    let limit: Limit = "10/min".parse().unwrap();
    let status = Status::from_parts(&limit, true, 10, 0, 0);
    let parts = vec![Part::new("staff", &status, Source::Unlimited, false)];
    let object = Answer::new(true, parts, None).to_json();
    assert_eq!(
        object["statuses"][0],
        json!({
            "allowed": true, "source": "unlimited", "policy": "staff", "limit": null, "remaining": null, "held": null,
            "retry_after_ms": 0, "reset_after_ms": 0,
        })
    );
}

/// The top said `no_policy` although an unlimited policy applied.
#[test]
fn the_source_of_an_unlimited_call_is_the_unlimited_policy() {
    let limit: Limit = "10/min".parse().unwrap();
    let status = Status::from_parts(&limit, true, 10, 0, 0);
    let part = |shadow| Part::new("staff", &status, Source::Unlimited, shadow);
    let object = |shadow| Answer::new(true, vec![part(shadow)], None).to_json();
    assert_eq!((&object(false)["source"], &object(false)["policy"]), (&json!("unlimited"), &json!("staff")));
    assert_eq!((&object(false)["limit"], &object(false)["remaining"]), (&Value::Null, &Value::Null));
    assert_eq!((&object(true)["source"], &object(true)["policy"]), (&json!(NO_POLICY), &Value::Null));
}

/// The header said `Retry-After: 1`, and the body that waiting does not help.
#[test]
fn a_policy_that_fails_closed_reports_the_wait_of_its_header() {
    let limit: Limit = "10/min".parse().unwrap();
    let unknown = Status::from_parts(&limit, false, 0, u64::MAX, 0);
    let object = Answer::new(false, vec![Part::new("p", &unknown, Source::OnErrorDeny, false)], Some(0)).to_json();
    assert_eq!((&object["retry_after_ms"], &object["statuses"][0]["retry_after_ms"]), (&json!(1000), &json!(1000)));
}

#[test]
fn a_denial_without_a_policy_never_says_at_once() {
    let object = Answer::new(false, Vec::new(), None).to_json();
    assert_eq!((&object["allowed"], &object["retry_after_ms"]), (&json!(false), &Value::Null));
}

proptest! {
    #[test]
    fn every_answer_has_the_same_members(
        parts in prop::collection::vec(("[^{}]*", any::<bool>(), any::<bool>(), any::<u64>(), any::<u64>()), 0..4),
        binding: Option<usize>, allowed: bool, split: bool,
    ) {
        let limit: Limit = "10/min".parse().unwrap();
        let status = |&(_, _, allowed, retry, reset): &(_, _, _, _, _)| {
            Status::from_parts(&limit, allowed, 3, retry, reset)
        };
        let statuses: Vec<Status> = parts.iter().map(status).collect();
        let listed_parts = parts.iter().zip(&statuses)
            .map(|((policy, shadow, ..), status)| Part::new(policy, status, Source::Store, *shadow))
            .collect();
        let binding = binding.map(|index| index % 5);
        let answer = Answer::new(allowed, listed_parts, binding).decided(None, split);
        let text = serde_json::to_string(&answer).unwrap();
        let object: Value = serde_json::from_str(&text).unwrap();
        prop_assert_eq!(&answer.to_json(), &object);
        let (own, listed) = text.split_once("\"statuses\":").unwrap();
        prop_assert_eq!(members(own), MEMBERS.into_iter().chain(["split", "decided_at_us"]).collect::<Vec<_>>());
        for (text, part) in listed.split("},{").zip(&parts) {
            prop_assert_eq!(members(text), MEMBERS.into_iter().chain(part.1.then_some("shadow")).collect::<Vec<_>>());
        }
        prop_assert_eq!(&object["allowed"], &json!(allowed));
        for ((listed, part), status) in object["statuses"].as_array().unwrap().iter().zip(&parts).zip(&statuses) {
            prop_assert_eq!(listed.as_object().unwrap().len(), MEMBERS.len() + usize::from(part.1));
            let wait = listed["retry_after_ms"].as_u64().map(Duration::from_millis);
            prop_assert_eq!(wait.is_some(), status.retry_after().is_some());
            prop_assert!(wait >= status.retry_after());
        }
    }

    #[test]
    fn milliseconds_are_the_next_whole_one(secs in 0_u64..1 << 40, nanos in 0_u32..1_000_000_000) {
        let span = Duration::new(secs, nanos);
        let up = Duration::from_millis(millis_up(span));
        prop_assert!(up >= span && up - span < Duration::from_millis(1));
    }
}
