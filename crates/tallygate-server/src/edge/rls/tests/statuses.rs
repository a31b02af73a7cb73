//! The status of each descriptor.

use std::time::Duration;

use super::*;
use crate::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::RateLimitOverride;
use crate::proto::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
use crate::proto::envoy::service::ratelimit::v3::rate_limit_response::{DescriptorStatus, RateLimit};
use crate::proto::envoy::r#type::v3::RateLimitUnit;
use Code::{Ok as Fine, OverLimit};

fn seconds(status: &DescriptorStatus) -> f64 {
    Duration::try_from(status.duration_until_reset.unwrap()).unwrap().as_secs_f64()
}

fn units(count: u64, descriptor: RateLimitDescriptor) -> RateLimitDescriptor {
    RateLimitDescriptor { hits_addend: Some(count), ..descriptor }
}

fn remaining(response: &RateLimitResponse) -> Vec<u32> {
    response.statuses.iter().map(|status| status.limit_remaining).collect()
}

#[tokio::test]
async fn a_status_has_the_limit_and_what_is_left() {
    let served = Served::common();
    let alice = [descriptor(&[("user", "alice")])];
    for left in [2, 1, 0] {
        let response = served.ask_about(&alice).await;
        assert_eq!(codes(&response), [Fine, Fine]);
        assert_eq!(remaining(&response), [left]);
        let limit = RateLimit { name: "per-user".to_owned(), requests_per_unit: 3, unit: Unit::Minute.into() };
        assert_eq!(response.statuses[0].current_limit.as_ref(), Some(&limit));
        assert_eq!(seconds(&response.statuses[0]), 50.0);
    }
    let response = served.ask_about(&alice).await;
    assert_eq!(codes(&response), [OverLimit, OverLimit]);
    assert_eq!((remaining(&response), seconds(&response.statuses[0])), (vec![0], 50.0));
    assert_eq!(codes(&served.ask_about(&[descriptor(&[("user", "bob")])]).await), [Fine, Fine]);
}

#[tokio::test]
async fn statuses_stand_in_the_order_of_their_descriptors() {
    let served = Served::common();
    let descriptors = [
        descriptor(&[("nothing", "matches")]),
        descriptor(&[("path", "/login")]),
        descriptor(&[("role", "staff")]),
        descriptor(&[("user", "alice")]),
    ];
    let response = served.ask_about(&descriptors).await;
    assert_eq!(codes(&response), [Fine; 5]);
    let [unmatched, login, staff, user] = &response.statuses[..] else { panic!("{response:?}") };
    assert_eq!(unmatched, &DescriptorStatus { code: Fine.into(), ..Default::default() });
    assert_eq!(staff, &DescriptorStatus { code: Fine.into(), limit_remaining: u32::MAX, ..Default::default() });
    let login = login.current_limit.as_ref().unwrap();
    assert_eq!((login.name.as_str(), login.unit()), ("login", Unit::Unknown), "there is no unit of 90 s");
    assert_eq!(user.limit_remaining, 2);

    let response = served.ask_about(&descriptors).await;
    assert_eq!(codes(&response), [OverLimit, Fine, OverLimit, Fine, Fine]);
    assert_eq!(response.statuses[3].limit_remaining, 2, "a denied call charges nobody");
}

#[tokio::test]
async fn of_several_policies_the_tightest_is_reported() {
    let served = Served::common();
    let both = [descriptor(&[("both", "x")])];
    let reported = |response: &RateLimitResponse| response.statuses[0].current_limit.clone().unwrap().name;
    for _ in 0..2 {
        assert_eq!(reported(&served.ask_about(&both).await), "tight");
    }
    let response = served.ask_about(&both).await;
    assert_eq!((codes(&response), reported(&response)), (vec![OverLimit; 2], "tight".to_owned()));
}

#[tokio::test]
async fn units_come_from_the_descriptor_or_else_from_the_request() {
    let served = Served::common();
    let [alice, bob] = ["alice", "bob"].map(|user| descriptor(&[("user", user)]));
    let of_both = RateLimitRequest { hits_addend: 2, ..request(vec![alice.clone(), units(1, bob.clone())]) };
    assert_eq!(remaining(&served.ask(of_both).await), [1, 2]);

    let looked = served.ask_about(&[units(0, alice.clone()), units(0, bob.clone())]).await;
    assert_eq!((codes(&looked), remaining(&looked)), (vec![Fine; 3], vec![1, 2]));
    assert_eq!(remaining(&served.ask_about(std::slice::from_ref(&alice)).await), [0]);
    assert_eq!(codes(&served.ask_about(&[units(0, alice)]).await), [OverLimit; 2], "not one more would fit");

    let too_many = served.ask_about(&[units(4, bob.clone())]).await;
    assert_eq!((codes(&too_many), seconds(&too_many.statuses[0])), (vec![OverLimit; 2], 60.0));
    assert_eq!(codes(&served.ask_about(&[units(u64::MAX, bob.clone())]).await), [OverLimit; 2]);
    assert_eq!(remaining(&served.ask_about(&[units(0, bob)]).await), [2]);
}

/// The cost was capped at what the largest limit holds, and passed it.
#[tokio::test]
async fn no_limit_holds_a_cost_above_the_largest_limit() {
    let largest = policy("largest", "1000000000/365d fixed_window");
    let served = Served::new(app(still_store(), vec![(largest, by("user"))]));
    let alice = descriptor(&[("user", "alice")]);
    for too_many in [1_000_000_001, u64::from(u32::MAX), u64::MAX] {
        assert_eq!(codes(&served.ask_about(&[units(too_many, alice.clone())]).await), [OverLimit; 2], "{too_many}");
    }
    assert_eq!(codes(&served.ask_about(&[units(1_000_000_000, alice)]).await), [Fine; 2], "nothing was charged before");
}

#[tokio::test]
async fn units_can_be_given_back() {
    let served = Served::common();
    let alice = descriptor(&[("user", "alice")]);
    assert_eq!(remaining(&served.ask_about(&[units(3, alice.clone())]).await), [0]);
    let back = RateLimitDescriptor { is_negative_hits: true, ..units(2, alice.clone()) };
    let response = served.ask_about(&[back]).await;
    assert_eq!((codes(&response), remaining(&response)), (vec![Fine; 2], vec![2]));
    let one_back = RateLimitDescriptor { is_negative_hits: true, ..alice.clone() };
    assert_eq!(remaining(&served.ask_about(std::slice::from_ref(&one_back)).await), [3]);
    assert_eq!(remaining(&served.ask_about(&[one_back]).await), [3], "never more than the limit");
}

#[tokio::test]
async fn a_request_can_bring_its_limit_along() {
    let served = Served::common();
    let with = |user, requests_per_unit, unit: RateLimitUnit| {
        let limit = Some(RateLimitOverride { requests_per_unit, unit: unit.into() });
        RateLimitDescriptor { limit, ..descriptor(&[("user", user)]) }
    };
    let hourly = with("alice", 2, RateLimitUnit::Hour);
    for left in [1, 0] {
        let response = served.ask_about(std::slice::from_ref(&hourly)).await;
        assert_eq!((codes(&response), remaining(&response)), (vec![Fine; 2], vec![left]));
        let limit = RateLimit { name: "requested".to_owned(), requests_per_unit: 2, unit: Unit::Hour.into() };
        assert_eq!(response.statuses[0].current_limit.as_ref(), Some(&limit));
    }
    let response = served.ask_about(&[hourly]).await;
    assert_eq!((codes(&response), seconds(&response.statuses[0])), (vec![OverLimit; 2], 3590.0));
    assert_eq!(remaining(&served.ask_about(&[descriptor(&[("user", "alice")])]).await), [2], "its own is untouched");

    for none in [with("bob", 0, RateLimitUnit::Day), with("bob", 0, RateLimitUnit::Unknown)] {
        assert_eq!(codes(&served.ask_about(&[none]).await), [OverLimit; 2]);
    }
    let largest = served.ask_about(&[with("carol", u32::MAX, RateLimitUnit::Year)]).await;
    assert_eq!((codes(&largest), remaining(&largest)), (vec![Fine; 2], vec![999_999_999]));
}

#[tokio::test]
async fn an_unknown_domain_has_no_limits() {
    let served = Served::common();
    let descriptors = vec![descriptor(&[("role", "nobody")]), descriptor(&[])];
    let asked = RateLimitRequest { domain: "elsewhere".to_owned(), ..request(descriptors) };
    let response = served.ask(asked).await;
    assert_eq!(codes(&response), [Fine; 3]);
    assert!(response.statuses.iter().all(|status| status.current_limit.is_none()));
    assert_eq!(response.response_headers_to_add, []);
}

#[tokio::test]
async fn a_shadow_shows_its_numbers_and_never_refuses() {
    let served = Served::common();
    let watched = [descriptor(&[("watched", "x")])];
    for _ in 0..3 {
        let response = served.ask_about(&watched).await;
        assert_eq!((codes(&response), remaining(&response)), (vec![Fine; 2], vec![0]));
        assert_eq!(response.statuses[0].current_limit.as_ref().unwrap().unit(), Unit::Hour);
        assert_eq!(header(&response, "ratelimit"), None, "a shadow is not in the headers");
    }
    let with_user = served.ask_about(&[descriptor(&[("watched", "x"), ("user", "u")])]).await;
    assert_eq!(with_user.statuses[0].current_limit.as_ref().unwrap().name, "per-user");
}

#[tokio::test]
async fn quotas_refuse_only_together() {
    let served = Served::common();
    let both = [descriptor(&[("paid", "x")]), descriptor(&[("free", "x")])];
    assert_eq!(codes(&served.ask_about(&both).await), [Fine; 3]);
    for left in [3, 2, 1, 0] {
        let response = served.ask_about(&both).await;
        assert_eq!(codes(&response), [Fine, OverLimit, Fine], "one is used up, {left} left of the other");
        assert_eq!((remaining(&response), response.raw_body.len()), (vec![0, left], 0));
        assert_eq!(header(&response, "retry-after"), None);
    }
    assert_eq!(codes(&served.ask_about(&both).await), [OverLimit; 3]);
}
