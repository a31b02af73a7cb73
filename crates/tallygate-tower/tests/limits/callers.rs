//! Who is calling, and who only claims to be.

use std::sync::Arc;

use http::Request;
use proptest::prelude::*;
use tallygate::MemoryStore;
use tallygate_tower::{Caller, RateLimit, Rule, Trust};

use super::rig::{from, statuses, verdict};

fn layer(caller: Caller) -> RateLimit {
    RateLimit::new().rule(Rule::new("r", "1/h").unwrap().by(caller))
}

/// The subjects that these requests are counted as.
fn subjects(layer: &RateLimit, requests: Vec<Request<()>>) -> Vec<String> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let mut subjects = Vec::new();
        for request in requests {
            subjects.push(verdict(layer, request).await.rulings()[0].subject().to_owned());
        }
        subjects
    })
}

#[tokio::test]
async fn rotation_inside_a_network_gains_nothing() {
    let layer = layer(Caller::address());
    let v6 = |last: &str| from(&format!("[2001:db8:1:2::{last}]"), "/");
    assert_eq!(statuses(&layer, vec![v6("1"), v6("2"), v6("ffff:1")]).await, [200, 429, 429]);
    assert_eq!(statuses(&layer, vec![from("[2001:db8:1:3::1]", "/")]).await, [200]);
    let mapped = from("[::ffff:192.0.2.9]", "/");
    assert_eq!(statuses(&layer, vec![mapped, from("192.0.2.9", "/")]).await, [200, 429]);
}

#[tokio::test]
async fn the_unknown_share_one_limit_and_may_have_one_of_their_own() {
    let by_key = Caller::header("x-api-key");
    let strict = RateLimit::new().rule(Rule::new("r", "9/h").unwrap().by(by_key).anonymous("1/h").unwrap());
    let keyless = || Request::builder().body(()).unwrap();
    let keyed = |key: &str| Request::builder().header("x-api-key", key).body(()).unwrap();
    let twice = Request::builder().header("x-api-key", "a").header("x-api-key", "b").body(()).unwrap();
    let calls = vec![keyless(), keyless(), keyed("a"), keyed(""), twice];
    assert_eq!(statuses(&strict, calls).await, [200, 429, 200, 429, 429]);
    let verdict = verdict(&strict, keyed("a")).await;
    assert!(!verdict.rulings()[0].subject().contains("=a"), "the key itself is kept nowhere");
}

/// `X-Api-Key` and `x-api-key` were two callers.
#[tokio::test]
async fn a_header_is_the_same_however_it_is_written() {
    let store = Arc::new(MemoryStore::new());
    let key = || Request::builder().header("x-api-key", "k").body(()).unwrap();
    for (name, status) in [("x-api-key", 200), ("X-Api-Key", 429)] {
        let layer = layer(Caller::header(name)).store(Arc::clone(&store));
        assert_eq!(statuses(&layer, vec![key()]).await, [status]);
    }
}

/// Any word is a method: a caller had as many limits as it could invent.
#[tokio::test]
async fn invented_methods_are_one() {
    let layer = layer(Caller::address().and(Caller::method()));
    let call = |method: &str| {
        let mut request = from("192.0.2.1", "/");
        *request.method_mut() = method.parse().unwrap();
        request
    };
    let calls = ["GET", "PATCH", "GET0", "GET1", "get"].map(call).into();
    assert_eq!(statuses(&layer, calls).await, [200, 200, 200, 429, 429]);
}

#[tokio::test]
async fn combinations_count_each_pair_apart() {
    #[derive(Clone)]
    struct User(u64);
    let layer = layer(Caller::extension(|user: &User| user.0.to_string()).and(Caller::method()));
    let call = |user: u64, method: &str| Request::builder().method(method).extension(User(user)).body(()).unwrap();
    let calls = vec![call(1, "GET"), call(1, "POST"), call(2, "GET"), call(1, "GET")];
    assert_eq!(statuses(&layer, calls).await, [200, 200, 200, 429]);
}

fn header_name() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "x-forwarded-for",
        "forwarded",
        "x-real-ip",
        "cf-connecting-ip",
        "true-client-ip",
        "x-client-ip",
        "via",
        "x-api-key",
        "host",
        "authorization",
    ])
}

proptest! {
    #[test]
    fn no_header_changes_the_caller_unless_somebody_is_trusted(
        headers in prop::collection::vec((header_name(), "[ -~]{0,40}"), 0..6),
    ) {
        let plain = from("192.0.2.1", "/");
        let mut dressed = from("192.0.2.1", "/");
        for (name, value) in headers {
            dressed.headers_mut().append(name, value.parse().unwrap());
        }
        let subjects = subjects(&layer(Caller::address()), vec![plain, dressed]);
        prop_assert_eq!(&subjects[0], &subjects[1]);
    }

    #[test]
    fn with_a_trusted_proxy_only_what_it_wrote_counts(written in "[ -~]{0,60}", other in "[ -~]{0,60}") {
        let trust = Trust { proxies: "10.0.0.0/8".parse().unwrap(), ..Trust::default() };
        let layer = layer(Caller::address()).trust(trust);
        let through = |peer: &str, claim: &str| {
            let mut request = from(peer, "/");
            let chain = format!("{claim}, 203.0.113.7");
            request.headers_mut().insert("x-forwarded-for", chain.parse().unwrap());
            request
        };
        let subjects = subjects(&layer, vec![
            through("10.0.0.1", &written), through("10.0.0.1", &other), through("192.0.2.1", &written),
        ]);
        prop_assert_eq!(&subjects[0], "address=203.0.113.7");
        prop_assert_eq!(&subjects[1], "address=203.0.113.7");
        prop_assert_eq!(&subjects[2], "address=192.0.2.1");
    }
}
