//! Holds by descriptors, as Envoy sends them; with Envoy itself in `tests/proxies/envoy.rs`.

use prost_types::value::Kind;
use tallygate::hold::{HoldQuery, HoldTerms, OnAbandon};

use super::*;

fn reserving() -> Served {
    let terms = HoldTerms::DEFAULT.with_on_abandon(OnAbandon::Refund).with_longest(std::time::Duration::from_secs(30));
    let policies = vec![
        (policy("tokens", "1000/h fixed_window").with_holds(Some(terms)), by("user")),
        (policy("calls", "5/h fixed_window"), by("caller")),
    ];
    Served::new(app(still_store(), policies))
}

fn hits(entries: &[(&str, &str)], hits: u64) -> RateLimitDescriptor {
    RateLimitDescriptor { hits_addend: Some(hits), ..descriptor(entries) }
}

/// What the metadata of an answer has for the end of the stream.
fn hold_of(response: &RateLimitResponse) -> Option<String> {
    let value = response.dynamic_metadata.as_ref()?.fields.get("hold")?;
    match &value.kind {
        Some(Kind::StringValue(text)) => Some(text.clone()),
        other => panic!("{other:?}"),
    }
}

/// Units held and left of `ann`, and her calls left.
async fn seen(served: &Served) -> (u64, u32, u32) {
    let look = [hits(&[("user", "ann")], 0), hits(&[("caller", "ann")], 0)];
    let statuses = served.ask_about(&look).await.statuses;
    let page = served.app.store().open_holds(&HoldQuery::new()).await.unwrap();
    let held = page.holds.iter().flat_map(|hold| &hold.parts).filter(|part| part.policy == "edge/tokens");
    (held.map(|part| part.units).sum(), statuses[0].limit_remaining, statuses[1].limit_remaining)
}

async fn reserve(served: &Served, ttl: &str, units: u64) -> RateLimitResponse {
    let estimate = hits(&[("user", "ann"), ("tallygate.reserve", ttl)], units);
    served.ask_about(&[estimate, descriptor(&[("caller", "ann")])]).await
}

#[tokio::test]
async fn a_descriptor_reserves_and_another_settles() {
    let served = reserving();
    for (used, left) in [(Some(200), 800), (Some(0), 800), (None, 300)] {
        let answer = reserve(&served, "20s", 500).await;
        assert_eq!(codes(&answer), [Code::Ok; 3]);
        let hold = hold_of(&answer).unwrap();
        let settle = RateLimitDescriptor { hits_addend: used, ..descriptor(&[("tallygate.hold", &hold)]) };
        let again = hits(&[("tallygate.hold", &hold)], 1);
        // The first counts, and what else is in the request is decided.
        let done = served.ask_about(&[settle, hits(&[("user", "bob")], 1), again]).await;
        assert_eq!(codes(&done), [Code::Ok; 4]);
        assert!(done.statuses[0].current_limit.is_none() && done.statuses[1].current_limit.is_some());
        assert_eq!(seen(&served).await, (0, left, seen(&served).await.2));
    }
    assert_eq!(seen(&served).await.2, 2, "a call is a call");
    let denied = reserve(&served, "20s", 400).await;
    assert_eq!((denied.overall_code(), hold_of(&denied)), (Code::OverLimit, None));
    assert_eq!(seen(&served).await, (0, 300, 2), "all or none");
}

/// None of it is an error, with which a proxy would let the request pass; and none of it settles anything.
#[tokio::test]
async fn whatever_the_values_are_it_is_an_answer() {
    let served = reserving();
    let hold = hold_of(&reserve(&served, "20s", 500).await).unwrap();
    let (token, places) = hold.split_once('.').unwrap();
    let forged = [
        String::new(),
        token.to_owned(),
        format!("{token}.9"),
        format!("{token}.x"),
        format!("{}.{places}", token.replacen(&token[2..34], &"ab".repeat(16), 1)),
        "01.".to_owned(),
        "x".repeat(60_000),
    ];
    for value in forged {
        for used in [Some(0), Some(u64::MAX), None] {
            let settle = RateLimitDescriptor { hits_addend: used, ..descriptor(&[("tallygate.hold", &value)]) };
            let answer = served.ask_about(&[settle]).await;
            assert_eq!(codes(&answer), [Code::Ok; 2], "{} {used:?}: {answer:?}", &value[..value.len().min(200)]);
        }
        assert_eq!(seen(&served).await.0, 500, "{value}");
    }
    for ttl in ["", "0s", "never", "99999999999999999999d", "1000d", "-1s", "60s in Europe/Berlin"] {
        let answer = reserve(&served, ttl, 1).await;
        if answer.overall_code() == Code::Ok {
            let done = served.ask_about(&[hits(&[("tallygate.hold", &hold_of(&answer).unwrap())], 0)]).await;
            assert_eq!(codes(&done), [Code::Ok; 2], "{ttl}");
        }
    }
    assert_eq!(reserve(&served, "20s", 2_000_000_000).await.overall_code(), Code::OverLimit);
    assert_eq!(seen(&served).await.0, 500);
    let overrun = served.ask_about(&[hits(&[("tallygate.hold", &hold)], u64::MAX)]).await;
    assert_eq!(codes(&overrun), [Code::Ok; 2]);
    assert_eq!(seen(&served).await, (0, 0, 0), "it becomes a debt, of one capacity at most");
}

/// The policy grants half a minute: an hour is no error, and what is in the list expires then.
#[tokio::test]
async fn a_hold_is_never_longer_than_its_policy_grants() {
    let served = reserving();
    for (asked, granted) in [("1h", 30), ("5s", 5), ("nonsense", 30)] {
        let hold = hold_of(&reserve(&served, asked, 1).await).unwrap();
        let page = served.app.store().open_holds(&HoldQuery::new()).await.unwrap();
        assert_eq!(page.holds[0].expires_after().as_secs(), granted, "{asked}");
        served.ask_about(&[hits(&[("tallygate.hold", &hold)], 0)]).await;
    }
}
