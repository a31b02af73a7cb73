//! One request: its body arrives, it is admitted or shed, with a deadline; panics are caught.

use std::convert::Infallible;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};
use std::task::Poll;

use axum::body::Body;
use axum::extract::ConnectInfo;
use http::{Request, Response, Version, header};
use hyper::body::Incoming;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use super::Http;
use super::activity::Activity;
use super::body::{AnswerBody, RequestBody, collect};
use super::budget::{Share, header_memory};
use super::connection::MAX_HEADERS;
use super::kind::{Form, Reading, asks_for_health};
use super::refusal::Refusal;
use super::streams::OpenStream;
use crate::accept::Port;
use crate::token::Digest;

/// Whose connection a request came by. An extension of every request.
#[derive(Debug, Clone)]
pub(crate) struct Connection {
    /// The address, or the network of an IPv6 address, that counts as one peer.
    pub(crate) peer: Arc<str>,
    /// The first valid token that was shown.
    pub(crate) known: Arc<OnceLock<Digest>>,
}

/// What the requests of one connection share.
#[derive(Debug)]
pub(super) struct Requests {
    pub(super) http: Http,
    pub(super) peer: SocketAddr,
    pub(super) connection: Connection,
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
        let reading = Reading::of(&request);
        let open = self.activity.request(reading == Reading::Stream);
        self.port.stats.requests.fetch_add(1, Relaxed);
        let form = Form::of(request.uri().path(), request.headers());
        let version = request.version();
        // Held until the stream ends.
        let mut stream = None;
        let response = match self.admit(request, reading, &mut stream).await {
            Ok(response) => response,
            Err(refusal) => {
                if refusal == Refusal::Overloaded {
                    self.port.stats.shed.fetch_add(1, Relaxed);
                }
                refusal.answer(form, version)
            }
        };
        let closing = (form == Form::Grpc || form == Form::RateLimit).then_some(&self.closing);
        Ok(response.map(|body| AnswerBody::new(body, open, stream, closing)))
    }

    async fn admit(
        &self,
        request: Request<Incoming>,
        reading: Reading,
        stream: &mut Option<OpenStream>,
    ) -> Result<Response<Body>, Refusal> {
        // hyper has no such limit for HTTP/2, where a field can be a byte, and takes a hundred in memory.
        if request.headers().len() > MAX_HEADERS {
            return Err(Refusal::TooManyHeaders);
        }
        // HTTP/1.1 without `Host`, or with two, is where proxies and servers disagree on whom a request is for.
        if request.version() == Version::HTTP_11 && request.headers().get_all(header::HOST).iter().count() != 1 {
            return Err(Refusal::InvalidHost);
        }
        // hyper reads `chunked, chunked` as `chunked`; a proxy may not, and then they disagree on where the next request begins.
        let mut encodings = request.headers().get_all(header::TRANSFER_ENCODING).iter();
        let encoded_once = encodings.next().is_none_or(|one| one.as_bytes().eq_ignore_ascii_case(b"chunked"));
        if !encoded_once || encodings.next().is_some() {
            return Err(Refusal::InvalidTransferEncoding);
        }
        let deadline = Instant::now() + self.port.settings.request_timeout;
        let health = asks_for_health(request.uri().path());
        let awaits_continue = request.headers().contains_key(header::EXPECT);
        let (mut parts, incoming) = request.into_parts();
        let max = self.port.settings.max_body;
        let mut body = RequestBody::new(incoming, max, header_memory(&parts.headers));
        let state = body.state();
        if state.is_too_large() {
            // A client that waits for `100 Continue` has sent nothing yet, and reading would ask for the body.
            if !awaits_continue {
                let _ = timeout_at(deadline, body.discard()).await;
            }
            return Err(Refusal::TooLarge { max });
        }
        // The memory of the body, until the response begins.
        let mut _share: Option<Share> = None;
        // Kept as long: HTTP/1 closes the connection if it is dropped before it has arrived.
        let mut _unread: Option<RequestBody> = None;
        let body = match reading {
            Reading::Never => {
                _unread = Some(body);
                Body::empty()
            }
            Reading::Stream => {
                *stream = Some(self.http.streams.take(&self.connection.peer).ok_or(Refusal::Overloaded)?);
                body.charge(&self.http.bodies, &self.connection.peer).map_err(|_| Refusal::Overloaded)?;
                Body::new(body)
            }
            Reading::Whole => {
                let collected = timeout_at(deadline, collect(body, &self.http.bodies, &self.connection.peer)).await;
                let collected = collected.unwrap_or(Err(Refusal::SlowBody))?;
                _share = collected.share;
                Body::from(collected.bytes)
            }
        };
        // Only now: a body that does not arrive must not keep others out. And until the response begins, not until it is sent:
        // a stream may last as long as its connection.
        let entered = self.http.in_flight.try_acquire();
        if entered.is_err() && !health && reading != Reading::Stream {
            return Err(Refusal::Overloaded);
        }
        parts.extensions.insert(ConnectInfo(self.peer));
        parts.extensions.insert(self.connection.clone());
        match timeout_at(deadline, self.call(Request::from_parts(parts, body))).await {
            // Whatever the service made of the truncated body.
            Ok(Ok(_)) if state.is_too_large() => Err(Refusal::TooLarge { max }),
            Ok(answered) => answered,
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
