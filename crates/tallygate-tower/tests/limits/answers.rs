//! The answers to callers.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use tallygate_tower::{Dialect, RateLimit, RefusalBody, Rule, Verdict};
use tower::{Layer, Service, ServiceExt, service_fn};

use super::rig::{from, send};

fn layer() -> RateLimit {
    RateLimit::per_client("1/min").unwrap()
}

#[tokio::test]
async fn a_refusal_is_a_problem_with_the_wait() {
    let layer = layer();
    let allowed = send(&layer, from("192.0.2.1", "/")).await;
    assert_eq!((allowed.body.as_str(), allowed.header("ratelimit")), ("served", Some("\"per-client\";r=0;t=60")));
    assert!(allowed.header("retry-after").is_none());
    let denied = send(&layer, from("192.0.2.1", "/")).await;
    assert_eq!((denied.status.as_u16(), denied.header("content-type")), (429, Some("application/problem+json")));
    assert_eq!((denied.header("retry-after"), denied.header("cache-control")), (Some("60"), Some("no-store")));
    assert!(denied.body.contains("\"violated-policies\":[\"per-client\"]"), "{}", denied.body);
}

#[tokio::test]
async fn layers_outside_see_the_verdict_of_refusals_and_of_all_if_it_is_shared() {
    for (layer, all) in [(layer(), false), (layer().share_verdict(), true)] {
        let allowed = send(&layer, from("192.0.2.1", "/")).await.verdict;
        assert_eq!(allowed.map(|verdict| verdict.allowed()), all.then_some(true));
        let denied = send(&layer, from("192.0.2.1", "/")).await.verdict;
        assert_eq!(denied.map(|verdict| verdict.allowed()), Some(false));
    }
}

#[tokio::test]
async fn grpc_callers_get_a_status_in_trailers() {
    let layer = layer();
    let call = || {
        let mut request = from("192.0.2.1", "/");
        request.headers_mut().insert("content-type", "application/grpc+proto".parse().unwrap());
        request
    };
    send(&layer, call()).await;
    let denied = send(&layer, call()).await;
    assert_eq!((denied.status.as_u16(), denied.body.as_str()), (200, ""));
    assert_eq!((denied.header("grpc-status"), denied.header("content-type")), (Some("8"), Some("application/grpc")));
    let pushback: u64 = denied.header("grpc-retry-pushback-ms").unwrap().parse().unwrap();
    assert!((59_000..=60_000).contains(&pushback), "{pushback}");
    assert!(denied.header("grpc-status-details-bin").is_some());
}

#[tokio::test]
async fn headers_responder_and_exposure_are_settings() {
    let layer = layer().headers(Dialect::XDelta).expose_headers().respond(|refusal| {
        let wait = refusal.retry_after().unwrap().as_secs();
        let mut response = Response::new(Bytes::from(format!("come back in about {wait} s")));
        *response.status_mut() = http::StatusCode::from_u16(420).unwrap();
        response
    });
    send(&layer, from("192.0.2.1", "/")).await;
    let denied = send(&layer, from("192.0.2.1", "/")).await;
    assert_eq!((denied.status.as_u16(), denied.header("x-ratelimit-limit")), (420, Some("1")));
    assert!(denied.body.starts_with("come back in about "), "{}", denied.body);
    assert!(denied.header("access-control-expose-headers").unwrap().to_lowercase().contains("x-ratelimit-reset"));
}

#[tokio::test]
async fn a_responder_may_return_any_body() {
    type Respond = fn(RateLimit) -> RateLimit;
    let responders: [Respond; 4] = [
        |layer| layer.respond(|_| Response::new(Bytes::from_static(b"slow down"))),
        |layer| layer.respond(|_| Response::new("slow down")),
        |layer| layer.respond(|_| Response::new(String::from("slow down"))),
        |layer| layer.respond(|_| Response::new(Full::<Bytes>::from("slow down")).map(RefusalBody::new)),
    ];
    for respond in responders {
        let layer = respond(layer());
        send(&layer, from("192.0.2.1", "/")).await;
        let denied = send(&layer, from("192.0.2.1", "/")).await;
        assert_eq!((denied.body.as_str(), denied.header("retry-after")), ("slow down", Some("60")));
    }
}

/// A body that comes in two pieces, each after a wait, and may fail then.
struct Pieces {
    left: u8,
    waited: bool,
    fails: bool,
}

impl http_body::Body for Pieces {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, std::io::Error>>> {
        self.waited = !self.waited;
        if self.waited {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        match (self.left, self.fails) {
            (0, false) => Poll::Ready(None),
            (0, true) => Poll::Ready(Some(Err(std::io::Error::other("broken")))),
            _ => {
                self.left -= 1;
                Poll::Ready(Some(Ok(http_body::Frame::data(Bytes::from_static(b"wait ")))))
            }
        }
    }
}

#[tokio::test]
async fn the_body_of_a_refusal_is_read_to_its_end_and_one_that_fails_is_sent_empty() {
    for (fails, expected) in [(false, "wait wait "), (true, "")] {
        let layer = layer().respond(move |refusal| {
            let mut response = Response::new(RefusalBody::new(Pieces { left: 2, waited: false, fails }));
            *response.status_mut() = refusal.status();
            response
        });
        send(&layer, from("192.0.2.1", "/")).await;
        let denied = send(&layer, from("192.0.2.1", "/")).await;
        assert_eq!((denied.status.as_u16(), denied.body.as_str()), (429, expected));
        assert_eq!(denied.header("retry-after"), Some("60"));
    }
}

#[tokio::test]
async fn preflights_pass_unless_they_are_asked_to_count() {
    let preflight = || {
        let request =
            Request::options("/").header("origin", "https://a").header("access-control-request-method", "GET");
        request.extension("192.0.2.1:1".parse::<std::net::SocketAddr>().unwrap()).body(()).unwrap()
    };
    let layer = layer();
    for _ in 0..3 {
        assert_eq!(send(&layer, preflight()).await.status, 200);
    }
    let strict = layer.limit_preflights();
    assert_eq!(send(&strict, preflight()).await.status, 200);
    assert_eq!(send(&strict, preflight()).await.status, 429);
}

/// A layer outside wrote what it had left over what the one inside had refused with.
#[tokio::test]
async fn a_refusal_keeps_its_headers_and_its_verdict_on_the_way_out() {
    for &dialect in Dialect::ALL {
        for shared in [false, true] {
            let inner = RateLimit::new().rule(Rule::new("inner", "1/min").unwrap()).headers(dialect);
            let outer = RateLimit::new().rule(Rule::new("outer", "50/min").unwrap()).headers(dialect);
            let outer = if shared { outer.share_verdict() } else { outer };
            let served =
                || service_fn(|_: Request<()>| async { Ok::<_, Infallible>(Response::new(Full::<Bytes>::default())) });
            let both = |layer: RateLimit| outer.layer(layer.layer(served())).oneshot(from("192.0.2.1", "/"));
            both(inner.clone()).await.unwrap();
            let denied = both(inner.clone()).await.unwrap();
            assert_eq!(denied.status(), 429);
            assert!(!denied.extensions().get::<Verdict>().unwrap().allowed());
            let left =
                denied.headers().get("x-ratelimit-remaining").or_else(|| denied.headers().get("ratelimit-remaining"));
            assert!(left.is_none_or(|left| left == "0"), "{dialect}: {:?}", denied.headers());
        }
    }
}

/// A service that was not called kept what it had reserved in `poll_ready`, and others waited forever.
#[tokio::test]
async fn a_refused_call_frees_the_service_behind() {
    let layer = layer();
    let limited = layer.layer(tower::limit::ConcurrencyLimit::new(
        service_fn(|_: Request<()>| async { Ok::<_, Infallible>(Response::new(Full::<Bytes>::default())) }),
        1,
    ));
    let (mut one, mut other) = (limited.clone(), limited);
    for status in [200, 429] {
        let answer = one.ready().await.unwrap().call(from("192.0.2.1", "/")).await.unwrap();
        assert_eq!(answer.status(), status);
    }
    let ready = tokio::time::timeout(Duration::from_secs(10), other.ready()).await;
    assert!(ready.is_ok(), "nobody else can be served");
}

#[tokio::test]
async fn verdicts_can_be_observed() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let ears = Arc::clone(&seen);
    let layer = layer().observe(move |verdict| ears.lock().unwrap().push(verdict.allowed()));
    for _ in 0..2 {
        send(&layer, from("192.0.2.1", "/")).await;
    }
    assert_eq!(*seen.lock().unwrap(), [true, false]);
}
