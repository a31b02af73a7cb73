//! Estimates that are learned from settlements.

use super::*;

/// Who does not say how much holds what others have used, and one call of the other policy.
#[test]
fn a_reservation_without_units_holds_what_was_learned() {
    let server = Served::with(POLICIES);
    let reserve = |user: &str, more: Value| {
        let mut question = json!({"domain": "guess", "descriptors": [{"user": user}]});
        question.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let answer = body(&server.post("/v1/reserve", &question));
        let held = ["0", "1"].map(|at| answer.pointer(&format!("/statuses/{at}/held")).unwrap().as_u64().unwrap());
        (answer["hold"].clone(), held)
    };
    let count = |name: &str, more: &str| {
        server.metric(&format!("tallygate_hold_{name}{{domain=\"guess\",policy=\"guess\"{more}}}")).unwrap()
    };
    for used in 0..40 {
        let (hold, held) = reserve("first", json!({}));
        assert_eq!(held, if used < 20 { [500, 1] } else { [607, 1] }, "{used}");
        // Above 512, a bucket is 32 wide.
        let used = if used < 20 { 600 } else { 100 };
        server.post("/v1/settle", &json!({"hold": hold, "units": {"guess": used}}));
    }
    assert_eq!((count("estimates_total", ",outcome=\"short\""), count("short_units_total", "")), (20.0, 2000.0));
    assert_eq!(count("estimates_total", ",outcome=\"enough\""), 20.0);
    for _ in 0..780 {
        let (hold, _) = reserve("second", json!({"units": 1}));
        server.post("/v1/settle", &json!({"hold": hold, "units": {"guess": 40}}));
    }
    let (_, [held, _]) = reserve("third", json!({}));
    assert!((40..=42).contains(&held), "what was long ago is one in twenty: {held}");
    assert_eq!(count("estimate_units", ""), f64::from(u32::try_from(held).unwrap()));
    // What teaches nothing: all that was reserved, and nothing at all.
    let before = count("estimates_total", ",outcome=\"enough\"");
    for (verb, more) in [("settle", json!({})), ("cancel", json!({})), ("settle", json!({"units": {"calls": 1}}))] {
        let (hold, _) = reserve("fourth", json!({}));
        let mut ask = json!({"hold": hold});
        ask.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        assert_eq!(server.post(&format!("/v1/{verb}"), &ask).status, 200);
    }
    assert_eq!(count("estimates_total", ",outcome=\"enough\""), before);
    assert_eq!(reserve("said", json!({"units": {"guess": 7}})).1, [7, 1]);
    assert_eq!(reserve("named", json!({"units": {"calls": 2}})).1, [held, 2]);
    assert_eq!(reserve("all", json!({"units": 3})).1, [3, 3]);
    let bold = body(&server.post("/v1/reserve", &json!({"domain": "bold", "descriptors": [{"user": "a"}]})));
    assert_eq!(bold["held"], 10, "no more than may be held: {bold}");
}
