//! However a request ends, its hold ends once, at once, and with the right number.

use std::convert::Infallible;
use std::future::{Future, pending, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use http::{HeaderName, Request, Response};
use http_body_util::BodyExt;
use tallygate::hold::Learned;
use tallygate_testkit::FaultyStore;
use tallygate_tower::{HoldTerms, OnAbandon, Overrun, Reserve, Reserved};
use tower::{Layer, Service, ServiceExt, service_fn};

use super::rig::{Frames, Rig, TOKENS, by_words, frames, memory, rig, text, tokens};

const TERMS: HoldTerms = HoldTerms::DEFAULT;

fn by_header(reserve: Reserve) -> Reserve {
    reserve.settle_by_header(HeaderName::from_static("x-tokens"))
}

#[tokio::test]
async fn a_response_settles_what_it_says() {
    for (header, left) in [(Some("250"), 750), (Some("0"), 1000), (None, 100), (Some("many"), 100), (Some("901"), 99)] {
        let rig = rig(TERMS, by_header(tokens(900)));
        let response = rig.send(move |request| {
            assert_eq!(request.extensions().get::<Reserved>().unwrap().units(), 900);
            let mut response = frames(&["hello"]);
            if let Some(header) = header {
                response.headers_mut().insert("x-tokens", header.parse().unwrap());
            }
            response
        });
        let response = response.await;
        rig.settled(left).await;
        // Reading the body, or not, changes nothing any more.
        assert_eq!(text(response).await, "hello");
        rig.settled(left).await;
    }
}

#[tokio::test]
async fn what_responses_have_used_is_reserved_for_the_next() {
    let learned = Arc::new(Learned::from(300));
    let (store, clock) = memory();
    let reserve = by_header(Reserve::learned(Arc::clone(&learned)).of("tokens"));
    let rig = Rig::of([25, TOKENS], store, clock, TERMS, |layer| layer, reserve);
    for sent in 0..25 {
        let response = rig.send(move |request| {
            let reserved = request.extensions().get::<Reserved>().unwrap().units();
            assert_eq!(reserved, if sent < 20 { 300 } else { 4 }, "{sent}");
            let mut response = frames(&[]);
            let used = if sent == 24 { "9" } else { "4" };
            response.headers_mut().insert("x-tokens", used.parse().unwrap());
            response
        });
        drop(response.await);
    }
    assert_eq!(rig.left().await, [[0, 0, 0], [TOKENS - 24 * 4 - 9, 0, 0]]);
    let figures = learned.figures();
    assert_eq!((figures.enough, figures.short, figures.short_units), (24, 1, 5));
}

#[tokio::test]
async fn an_extension_of_the_response_settles_and_nothing_uses_what_was_reserved() {
    #[derive(Clone)]
    struct Used(u64);
    let used = rig(TERMS, tokens(900).settle_by(|parts| parts.extensions.get::<Used>().map(|used| used.0)));
    drop(used.send(|_| Response::builder().extension(Used(7)).body(Frames::default()).unwrap()).await);
    used.settled(993).await;
    let nothing = rig(TERMS, tokens(900));
    drop(nothing.send(|_| frames(&[])).await);
    nothing.settled(100).await;
}

#[tokio::test]
async fn a_body_settles_what_has_passed() {
    let size = || tokens(900).settle_by_size();
    let whole = rig(TERMS, size());
    assert_eq!(text(whole.send(|_| frames(&["four", "words", "are", "sent"])).await).await, "fourwordsaresent");
    whole.settled(TOKENS - 16).await;

    // The caller leaves after two frames.
    let part = rig(TERMS, size());
    let mut body = part.send(|_| frames(&["four", "words", "are", "sent"])).await.into_body();
    for _ in 0..2 {
        body.frame().await.unwrap().unwrap();
    }
    drop(body);
    part.settled(TOKENS - 9).await;

    // Nobody reads it.
    let unread = rig(TERMS, size());
    drop(unread.send(|_| frames(&["four"])).await);
    unread.settled(TOKENS).await;

    // The upstream dies.
    let dead = rig(TERMS, size());
    let response = dead.send(|_| Response::new(Frames { frames: vec!["four"], fails: true })).await;
    assert!(response.into_body().collect().await.is_err());
    dead.settled(TOKENS - 4).await;
}

/// A meter that has not said anything yet knows no use, which is not the same as none.
#[tokio::test]
async fn a_stream_that_ends_before_its_use_is_known_is_abandoned() {
    // The last frame says how much was used, as a stream of an LLM does.
    let by_last = |on_abandon| {
        let reserve = tokens(900).settle_by_frames(|_| {
            |frame| std::str::from_utf8(frame.data_ref()?).ok()?.strip_prefix("usage ")?.parse().ok()
        });
        rig(TERMS.with_on_abandon(on_abandon), reserve)
    };
    let stream = ["a", "b", "usage 2"];
    for (on_abandon, read, requests, left) in [
        (OnAbandon::Charge, 3, 9, 998),
        (OnAbandon::Charge, 2, 9, 100),
        (OnAbandon::Charge, 0, 9, 100),
        (OnAbandon::Refund, 3, 9, 998),
        (OnAbandon::Refund, 2, 10, 1000),
    ] {
        let rig = by_last(on_abandon);
        let mut body = rig.send(move |_| frames(&stream)).await.into_body();
        for _ in 0..read {
            body.frame().await.unwrap().unwrap();
        }
        drop(body);
        assert_eq!(rig.left().await, [[requests, 0, 0], [left, 0, 0]], "{on_abandon}, {read} frames");
    }
}

/// Callers that leave at every poll, on a store that answers at once and one that has to be waited for.
#[tokio::test]
async fn a_dropped_call_is_abandoned() {
    for (on_abandon, left) in
        [(OnAbandon::Charge, [[9, 0, 0], [100, 0, 0]]), (OnAbandon::Refund, [[10, 0, 0], [1000, 0, 0]])]
    {
        let terms = TERMS.with_on_abandon(on_abandon);
        let at_once = rig(terms, by_header(tokens(900)));
        let (store, clock) = memory();
        let waits = Rig::over(FaultyStore::new(store), clock, terms, |layer| layer, by_header(tokens(900)));
        let serve = service_fn(|_: Request<()>| pending::<Result<Response<Frames>, Infallible>>());
        let mut call = at_once.layer.layer(serve).call(Request::new(()));
        assert!(futures_poll(&mut call).await.is_none());
        assert_eq!(at_once.left().await, [[9, 1, 0], [100, 900, 0]], "it is held while the service is at work");
        drop(call);
        assert_eq!(at_once.left().await, left);

        let mut call = waits.layer.layer(serve).call(Request::new(()));
        assert!(futures_poll(&mut call).await.is_none());
        assert_eq!(waits.left().await, [[9, 1, 0], [100, 900, 0]]);
        drop(call);
        assert_eq!(waits.left().await, left);
    }
}

/// Polls a future once.
async fn futures_poll<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
    poll_fn(|context| {
        Poll::Ready(match pin!(&mut *future).poll(context) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        })
    })
    .await
}

#[tokio::test]
async fn a_failure_and_a_panic_abandon() {
    let failing = rig(TERMS, by_header(tokens(900)));
    let service = failing.layer.layer(service_fn(async |_: Request<()>| Err::<Response<Frames>, _>("no upstream")));
    assert_eq!(service.oneshot(Request::new(())).await.map(|_| ()).unwrap_err(), "no upstream");
    failing.settled(100).await;

    let panicking = rig(TERMS.with_on_abandon(OnAbandon::Refund), by_header(tokens(900)));
    let service = panicking.layer.layer(service_fn(async |_: Request<()>| -> Result<Response<Frames>, Infallible> {
        panic!("a handler that panics, as this test wants it");
    }));
    assert!(tokio::spawn(async move { service.oneshot(Request::new(())).await.map(|_| ()) }).await.is_err());
    assert_eq!(panicking.left().await, [[10, 0, 0], [1000, 0, 0]]);
}

#[tokio::test]
async fn what_does_not_count_is_cancelled() {
    let (store, clock) = memory();
    let rig = Rig::over(store, clock, TERMS, |layer| layer.count_successes(), by_header(tokens(900)));
    drop(rig.send(|_| Response::builder().status(503).header("x-tokens", "5").body(Frames::default()).unwrap()).await);
    assert_eq!(rig.left().await, [[10, 0, 0], [1000, 0, 0]]);
    drop(rig.send(|_| Response::builder().header("x-tokens", "5").body(Frames::default()).unwrap()).await);
    rig.settled(995).await;
}

#[tokio::test]
async fn an_overrun_is_what_the_rule_says() {
    let stream = ["a b c", "d e f", "g"];
    for (overrun, left) in [(Overrun::Debt, 993), (Overrun::Cap, 993), (Overrun::Refuse, 996)] {
        let rig = rig(TERMS.with_overrun(overrun), by_words(tokens(4)));
        assert_eq!(text(rig.send(move |_| frames(&stream)).await).await, "a b cd e fg");
        rig.settled(left).await;
    }
}

/// The store is gone when the use is known: the units are left to their deadline.
#[tokio::test]
async fn a_store_that_is_gone_leaves_the_hold_to_its_deadline() {
    let (store, clock) = memory();
    let faulty = FaultyStore::new(store);
    let switch = faulty.switch();
    let terms = TERMS.with_on_abandon(OnAbandon::Refund);
    let rig = Rig::over(faulty, clock, terms, |layer| layer, by_header(tokens(900)));
    let off = switch.clone();
    drop(
        rig.send(move |_| {
            off.off();
            Response::builder().header("x-tokens", "5").body(Frames::default()).unwrap()
        })
        .await,
    );
    switch.on();
    assert_eq!(rig.left().await, [[9, 1, 0], [100, 900, 0]]);
    rig.clock.advance(std::time::Duration::from_secs(61));
    assert_eq!(rig.left().await, [[10, 0, 0], [1000, 0, 0]]);
}

/// Without a store nothing is held, and there is nothing to settle.
#[tokio::test]
async fn a_call_that_no_store_has_decided_holds_nothing() {
    let (store, clock) = memory();
    let faulty = FaultyStore::new(store);
    let switch = faulty.switch();
    let rig = Rig::over(faulty, clock, TERMS, |layer| layer, by_words(tokens(900)));
    switch.off();
    assert_eq!(text(rig.send(|_| frames(&["a", "b"])).await).await, "ab");
    switch.on();
    assert_eq!(rig.left().await, [[10, 0, 0], [1000, 0, 0]]);
}
