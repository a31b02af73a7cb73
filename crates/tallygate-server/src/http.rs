//! HTTP on a listener: HTTP/1.1 and HTTP/2 on the same port, with the limits and timeouts that an exposed port needs.

mod activity;
mod body;
mod budget;
mod connection;
mod kind;
mod refusal;
mod request;
mod streams;

use std::sync::Arc;

use axum::Router;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::accept::{self, ListenSettings, ListenStats, Listener, Port, Tls};

pub(crate) use self::request::Connection;

use self::budget::Budget;
use self::streams::Streams;

/// A router, and the limits on its requests. Clones share the limits.
#[derive(Debug, Clone)]
struct Http {
    router: Router,
    in_flight: Arc<Semaphore>,
    streams: Arc<Streams>,
    bodies: Arc<Budget>,
}

/// Serves `router` until `shutdown` is cancelled. Then it stops accepting, lets open requests finish for
/// `settings.drain_timeout`, closes the remaining connections, and returns how many there were.
///
/// Requests have axum's `ConnectInfo<SocketAddr>` as an extension. A router from tonic's `Routes::into_axum_router` works,
/// too.
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
    let (streams, bodies) = (Arc::default(), Budget::new(settings.max_bodies));
    let (settings, cut) = (settings.clone(), CancellationToken::new());
    let port = Port { name, settings, stats, tls, drain: shutdown, cut };
    accept::serve(listener, port, Http { router, in_flight, streams, bodies }).await
}
