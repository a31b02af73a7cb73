//! In hyper, without a framework.

use std::convert::Infallible;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tallygate_testkit::http::request;
use tallygate_tower::RateLimit;
use tokio::net::TcpListener;
use tower::{Layer, service_fn};

#[tokio::test]
async fn connections_of_one_caller_share_its_limit() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let limit = RateLimit::per_client("2/min").unwrap();
    tokio::spawn(async move {
        loop {
            let (stream, peer) = listener.accept().await.unwrap();
            let limited = limit.layer(service_fn(|_: Request<Incoming>| async {
                Ok::<_, Infallible>(Response::new(Full::new(Bytes::from_static(b"served"))))
            }));
            // Where the layer looks for the peer by default.
            let service = service_fn(move |mut request: Request<Incoming>| {
                request.extensions_mut().insert(peer);
                tower::util::ServiceExt::oneshot(limited.clone(), request)
            });
            let service = TowerToHyperService::new(service);
            tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        }
    });
    let answers = tokio::task::spawn_blocking(move || [0, 1, 2].map(|_| request(address, "GET", "/", &[], b"")));
    let [first, second, third] = answers.await.unwrap();
    assert_eq!((first.status, first.text()), (200, "served"));
    assert_eq!((second.status, third.status), (200, 429));
    assert!(third.text().contains("per-client"), "{}", third.text());
}
