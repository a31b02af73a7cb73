//! What callers are told.

use bytes::Bytes;
use http::{Request, Response};
use tollgate_tower::{Dialect, RateLimit};

use crate::rig::{from, send};

fn layer() -> RateLimit {
    RateLimit::per_client("1/min".parse().unwrap())
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
