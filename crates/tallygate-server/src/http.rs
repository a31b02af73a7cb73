//! HTTP on a listener: HTTP/1.1 and HTTP/2 on the same port, with the limits and timeouts that a port open to strangers
//! needs.

mod activity;
mod body;
mod connection;
mod refusal;
mod request;

use std::convert::Infallible;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use http::{Request, Response};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tower::{BoxError, Service};

use crate::accept::{self, ListenSettings, ListenStats, Listener, Port, Tls};

/// A service, and what limits its requests. Clones share the limit.
#[derive(Debug, Clone)]
struct Http<S> {
    service: S,
    in_flight: Arc<Semaphore>,
}

/// Serves `service` until `shutdown` is cancelled; then stops accepting, lets what is under way finish for
/// `settings.drain_timeout`, cuts the rest, and returns how many connections it cut.
///
/// The service finds axum's `ConnectInfo<SocketAddr>` in the extensions of a request. An axum `Router` fits, and so does
/// what tonic's `Routes::into_axum_router` makes.
pub async fn serve<S, B>(
    listener: Listener,
    name: &'static str,
    service: S,
    settings: &ListenSettings,
    tls: Option<Tls>,
    shutdown: CancellationToken,
    stats: Arc<ListenStats>,
) -> usize
where
    S: Service<Request<Body>, Response = Response<B>, Error = Infallible> + Clone + Send + Sync + 'static,
    S::Future: Send,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let http =
        Http { service, in_flight: Arc::new(Semaphore::new(settings.max_in_flight.min(Semaphore::MAX_PERMITS))) };
    let (settings, cut) = (settings.clone(), CancellationToken::new());
    accept::serve(listener, Port { name, settings, stats, tls, drain: shutdown, cut }, http).await
}
