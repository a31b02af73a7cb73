//! Bodies that are settled while they pass, extended, cut, and made to fit.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response};
use http_body_util::BodyExt;
use tallygate::hold::Holds;
use tallygate_testkit::FaultyStore;
use tallygate_tower::{HoldTerms, Reserved};
use tokio::sync::Notify;

use super::rig::{Frames, Rig, TOKENS, by_words, frames, memory, rig, text, tokens};

const TERMS: HoldTerms = HoldTerms::DEFAULT;

#[tokio::test]
async fn parts_are_settled_while_they_pass() {
    let rig = rig(TERMS, by_words(tokens(8)));
    let mut body = rig.send(|_| frames(&["a", "b", "c d", "e"])).await.into_body();
    // A quarter of what was reserved is worth a settlement.
    for held in [8, 6, 4, 4] {
        body.frame().await.unwrap().unwrap();
        assert_eq!(rig.left().await[1], [TOKENS - 8, held, 0]);
    }
    assert!(body.frame().await.is_none());
    rig.settled(TOKENS - 5).await;
}

#[tokio::test]
async fn a_stream_is_cut_before_it_uses_more_than_was_reserved() {
    let stream = ["a ", "b ", "c d", "e"];
    for (reserved, last, passed, left) in [
        (7, "", "a b c de", TOKENS - 7),
        (6, "", "a b c d", TOKENS - 6),
        (5, " [cut]", "a b  [cut]", TOKENS - 5),
        (1, "", "", TOKENS - 1),
    ] {
        let rig = rig(TERMS, by_words(tokens(reserved)).cut(last));
        let response = rig.send(move |_| {
            let mut response = frames(&stream);
            response.headers_mut().insert("content-length", "8".parse().unwrap());
            response
        });
        let response = response.await;
        assert!(!response.headers().contains_key("content-length"), "it may become shorter");
        assert_eq!(text(response).await, passed);
        rig.settled(left).await;
    }
}

/// Answers with what was reserved.
fn echo(request: &Request<()>) -> Response<Frames> {
    let units = request.extensions().get::<Reserved>().unwrap().units();
    Response::builder().header("x-reserved", units).body(Frames::default()).unwrap()
}

/// What was reserved for each of three requests; zero for those that were denied.
async fn three<S: Holds + 'static>(rig: &Rig<S>) -> [u64; 3] {
    let mut reserved = [0; 3];
    for reserved in &mut reserved {
        let response = rig.send(echo).await;
        assert!(response.status() == 200 || response.status() == 429);
        *reserved = response.headers().get("x-reserved").map_or(0, |units| units.to_str().unwrap().parse().unwrap());
    }
    reserved
}

#[tokio::test]
async fn what_is_left_is_reserved_if_the_estimate_does_not_fit() {
    let at_once = rig(TERMS, tokens(600).at_least(100));
    let (store, clock) = memory();
    let waits = Rig::over(FaultyStore::new(store), clock, TERMS, |layer| layer, tokens(600).at_least(100));
    assert_eq!(three(&at_once).await, [600, 400, 0]);
    assert_eq!(three(&waits).await, [600, 400, 0]);
    assert_eq!((at_once.left().await, waits.left().await), ([[8, 0, 0], [0, 0, 0]], [[8, 0, 0], [0, 0, 0]]));
    // Less than the least is not worth a request.
    assert_eq!(three(&rig(TERMS, tokens(600).at_least(401))).await, [600, 0, 0]);
    // More than may be held at one time is never reserved.
    assert_eq!(three(&rig(TERMS.with_most_held(30), tokens(5000).at_least(10))).await, [300, 300, 300]);
}

/// The timer sleeps until the test wakes it.
#[tokio::test]
async fn a_hold_is_extended_for_as_long_as_its_response_takes() {
    let over = Arc::new(Notify::new());
    let timer = Arc::clone(&over);
    let sleep = move |time: Duration| {
        assert_eq!(time, Duration::from_secs(30));
        let over = Arc::clone(&timer);
        async move { over.notified().await }
    };
    let rig = rig(TERMS, by_words(tokens(8)).extend(sleep));
    let mut body = rig.send(|_| frames(&["a", "b", "c", "d", "e"])).await.into_body();
    for frame in 1..=5 {
        rig.clock.advance(Duration::from_secs(40));
        over.notify_one();
        poll_fn(|context| http_body::Body::poll_frame(std::pin::Pin::new(&mut body), context)).await.unwrap().unwrap();
        assert_eq!(rig.left().await[1][0], TOKENS - 8, "frame {frame}");
    }
    drop(body);
    rig.settled(TOKENS - 5).await;
}
