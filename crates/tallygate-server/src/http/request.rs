//! One request: admitted or shed, with a deadline; panics are caught.

use std::convert::Infallible;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::Poll;

use axum::body::Body;
use axum::extract::ConnectInfo;
use http::{Request, Response, Version, header};
use hyper::body::Incoming;
use tallygate_http::is_grpc;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use super::Http;
use super::activity::Activity;
use super::body::{AnswerBody, RequestBody};
use super::refusal::Refusal;
use crate::accept::Port;

/// What the requests of one connection share.
#[derive(Debug)]
pub(super) struct Requests {
    pub(super) http: Http,
    pub(super) peer: SocketAddr,
    pub(super) activity: Arc<Activity>,
    pub(super) port: Arc<Port>,
    /// Cancelled when the connection is to end.
    pub(super) closing: CancellationToken,
}

impl Requests {
    pub(super) async fn answer(
        self: Arc<Self>,
        request: Request<Incoming>,
    ) -> Result<Response<AnswerBody>, Infallible> {
        let open = self.activity.request();
        self.port.stats.requests.fetch_add(1, Relaxed);
        let grpc = is_grpc(request.headers());
        let version = request.version();
        let response = match self.admit(request).await {
            Ok(response) => response,
            Err(refusal) => refusal.answer(grpc, version),
        };
        Ok(response.map(|body| AnswerBody::new(body, open, grpc.then_some(&self.closing))))
    }

    async fn admit(&self, request: Request<Incoming>) -> Result<Response<Body>, Refusal> {
        // HTTP/1.1 without `Host`, or with two, is where proxies and servers disagree on whom a request is for.
        if request.version() == Version::HTTP_11 && request.headers().get_all(header::HOST).iter().count() != 1 {
            return Err(Refusal::InvalidHost);
        }
        // Until the response begins, not until it is sent: a gRPC stream may last as long as its connection.
        let entered = self.http.in_flight.try_acquire();
        if entered.is_err() && !asks_for_health(request.uri().path()) {
            self.port.stats.shed.fetch_add(1, Relaxed);
            return Err(Refusal::Overloaded);
        }
        let awaits_continue = request.headers().contains_key(header::EXPECT);
        let (mut parts, incoming) = request.into_parts();
        let max = self.port.settings.max_body;
        let body = RequestBody::new(incoming, max);
        let state = body.state();
        let deadline = self.port.settings.request_timeout;
        if state.is_too_large() {
            // A client that waits for `100 Continue` has sent nothing yet, and reading would ask for the body.
            if !awaits_continue {
                let _ = tokio::time::timeout(deadline, body.discard()).await;
            }
            return Err(Refusal::TooLarge { max });
        }
        parts.extensions.insert(ConnectInfo(self.peer));
        let request = Request::from_parts(parts, Body::new(body));
        match tokio::time::timeout(deadline, self.call(request)).await {
            // Whatever the service made of the truncated body.
            Ok(Ok(_)) if state.is_too_large() => Err(Refusal::TooLarge { max }),
            Ok(answered) => answered,
            Err(_) if state.is_arriving() => Err(Refusal::SlowBody),
            Err(_) => Err(Refusal::SlowAnswer),
        }
    }

    async fn call(&self, request: Request<Body>) -> Result<Response<Body>, Refusal> {
        let mut work = pin!(self.http.router.clone().oneshot(request));
        let caught = poll_fn(|cx| {
            // Unwind safe: a future that panicked is only dropped.
            match catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(cx))) {
                Ok(polled) => polled.map(Some),
                Err(_) => Poll::Ready(None),
            }
        });
        match caught.await {
            Some(Ok(response)) => Ok(response),
            None => {
                self.port.stats.panics.fetch_add(1, Relaxed);
                tracing::error!(listener = self.port.name, "a handler panicked: please report it");
                Err(Refusal::Panicked)
            }
        }
    }
}

/// An overloaded server is alive. A probe that is shed would have it restarted, and the load would move to the next one.
fn asks_for_health(path: &str) -> bool {
    matches!(path, "/livez" | "/readyz" | "/healthcheck") || path.starts_with("/grpc.health.v1.Health/")
}
