//! HTTP on a listener: HTTP/1.1 and HTTP/2 on the same port, with the limits and timeouts that a port open to strangers
//! needs.

mod activity;
mod body;
mod connection;
mod refusal;
mod request;

use std::sync::Arc;

use axum::Router;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::accept::{self, ListenSettings, ListenStats, Listener, Port, Tls};

/// A router, and what limits its requests. Clones share the limit.
#[derive(Debug, Clone)]
struct Http {
    router: Router,
    in_flight: Arc<Semaphore>,
}

/// Serves `router` until `shutdown` is cancelled; then stops accepting, lets what is under way finish for
/// `settings.drain_timeout`, cuts the rest, and returns how many connections it cut.
///
/// Handlers find axum's `ConnectInfo<SocketAddr>` in the extensions of a request. What tonic's `Routes::into_axum_router`
/// makes fits, too.
pub async fn serve(
    listener: Listener,
    name: &'static str,
    router: Router,
    settings: &ListenSettings,
    tls: Option<Tls>,
    shutdown: CancellationToken,
    stats: Arc<ListenStats>,
) -> usize {
    let in_flight = Arc::new(Semaphore::new(settings.max_in_flight.min(Semaphore::MAX_PERMITS)));
    let (settings, cut) = (settings.clone(), CancellationToken::new());
    let port = Port { name, settings, stats, tls, drain: shutdown, cut };
    accept::serve(listener, port, Http { router, in_flight }).await
}
