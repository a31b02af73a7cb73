//! The one accept loop under every listener, whatever it serves: HTTP/1.1 and HTTP/2 on the same port, with the limits,
//! timeouts, TLS and drain that a port open to strangers needs.

mod body;
mod connection;
mod limits;
mod peer;
mod refusal;
mod request;
mod settings;
mod stats;
mod tls;

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use http::{Request, Response};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::{BoxError, Service};

pub use self::peer::{Peer, Transport};
pub use self::settings::ListenSettings;
pub use self::stats::ListenStats;
pub use self::tls::{Tls, TlsError, TlsSettings};

use self::connection::{Lifetime, turn_away};
use self::limits::{InFlight, Slot, Slots};

/// Connections the kernel keeps for us while we are busy accepting.
const BACKLOG: u32 = 1024;
/// The descriptors that ran out come back as connections end; asking again at once would only burn a core.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A bound port, not yet served.
#[derive(Debug)]
pub struct Listener {
    inner: TcpListener,
    local: SocketAddr,
}

/// Why a port could not be had.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {addr}: {source}; {}", remedy(.source))]
pub struct BindError {
    addr: SocketAddr,
    source: io::Error,
}

fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => "stop the process that listens there, or choose another port",
        io::ErrorKind::AddrNotAvailable => "name an address that this machine has, or 0.0.0.0 for all of them",
        io::ErrorKind::PermissionDenied => "choose a port above 1023, or grant CAP_NET_BIND_SERVICE",
        _ => "choose another address",
    }
}

impl Listener {
    /// Binds `addr`; port 0 takes a free one. Must be called within a Tokio runtime.
    pub fn bind(addr: SocketAddr) -> Result<Self, BindError> {
        let bound = || {
            let socket = if addr.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
            // Elsewhere than on Unix this would let two processes share the port.
            #[cfg(unix)]
            socket.set_reuseaddr(true)?;
            socket.bind(addr)?;
            let inner = socket.listen(BACKLOG)?;
            Ok(Self { local: inner.local_addr()?, inner })
        };
        bound().map_err(|source| BindError { addr, source })
    }

    /// Takes over a socket that is bound already, as socket activation hands it out.
    /// Must be called within a Tokio runtime.
    pub fn from_std(listener: std::net::TcpListener) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let local = listener.local_addr()?;
        Ok(Self { inner: TcpListener::from_std(listener)?, local })
    }

    /// Where it listens: with the port the system chose.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Whether only this machine can reach it.
    pub fn is_loopback(&self) -> bool {
        self.local.ip().to_canonical().is_loopback()
    }
}

/// What all connections of one listener share.
#[derive(Debug)]
struct Shared {
    name: &'static str,
    settings: ListenSettings,
    stats: Arc<ListenStats>,
    in_flight: InFlight,
    tls: Option<Tls>,
    /// Cancelled when the listener drains.
    drain: CancellationToken,
    /// Cancelled when the drain has lasted long enough.
    cut: CancellationToken,
}

/// Serves `service` to whoever connects until `shutdown` is cancelled; then stops accepting, lets what is under way
/// finish for `settings.drain_timeout`, cuts the rest, and says how many connections it cut.
///
/// The service finds [`Peer`] and axum's `ConnectInfo<SocketAddr>` in the extensions of a request. An axum `Router`
/// fits, and so does what tonic's `Routes::into_axum_router` makes.
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
    let shared = Arc::new(Shared {
        name,
        settings: settings.clone(),
        stats,
        in_flight: InFlight::new(settings.max_in_flight),
        tls,
        drain: shutdown.clone(),
        cut: CancellationToken::new(),
    });
    let slots = Slots::new(settings);
    let connections = TaskTracker::new();
    let lingering = TaskTracker::new();
    let mut short_of_descriptors = false;
    loop {
        let accepted = tokio::select! {
            biased;
            () = shutdown.cancelled() => break,
            accepted = listener.inner.accept() => accepted,
        };
        let (stream, addr) = match accepted {
            Ok(accepted) => accepted,
            // The caller hung up while it waited for us: its affair.
            Err(error) if gone(&error) => continue,
            Err(error) => {
                if !short_of_descriptors {
                    tracing::error!(listener = name, %error, "cannot accept connections; is the limit of open files too low?");
                }
                short_of_descriptors = true;
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        if std::mem::take(&mut short_of_descriptors) {
            tracing::info!(listener = name, "accepting connections again");
        }
        let addr = SocketAddr::new(addr.ip().to_canonical(), addr.port());
        match slots.take(addr.ip()) {
            Some(slot) => {
                connections.spawn(welcome(stream, addr, slot, service.clone(), Arc::clone(&shared)));
            }
            None => {
                shared.stats.add_shed();
                // Few at a time: under a flood a silent close is cheaper than an answer.
                if shared.tls.is_none() && lingering.len() < connection::MAX_TURNED_AWAY {
                    lingering.spawn(turn_away(stream));
                }
            }
        }
    }
    // Closes the port: the next caller is refused by the kernel and tries elsewhere.
    drop(listener);
    connections.close();
    let finished = tokio::time::timeout(settings.drain_timeout, connections.wait()).await;
    if finished.is_ok() {
        return 0;
    }
    let cut = connections.len();
    shared.cut.cancel();
    connections.wait().await;
    cut
}

fn gone(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted)
}

/// One connection, from the handshake to its end. The slot is held until then.
async fn welcome<S, B>(stream: TcpStream, addr: SocketAddr, _slot: Slot, service: S, shared: Arc<Shared>)
where
    S: Service<Request<Body>, Response = Response<B>, Error = Infallible> + Clone + Send + Sync + 'static,
    S::Future: Send,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let _gauge = shared.stats.connection();
    // Answers are small and whole: waiting to fill a packet would only delay them. A socket that is gone says so later.
    let _ = stream.set_nodelay(true);
    let lifetime = Lifetime::new(&shared);
    let Some(tls) = &shared.tls else {
        let peer = Peer::new(addr, Transport::Plain);
        return lifetime.run(stream, peer, service, &shared).await;
    };
    let handshake = tokio::time::timeout(shared.settings.handshake_timeout, tls.accept(stream));
    let handshake = tokio::select! {
        handshake = handshake => handshake,
        () = shared.drain.cancelled() => return,
    };
    match handshake {
        Ok(Ok(stream)) => {
            let peer = Peer::new(addr, if tls.is_mutual() { Transport::MutualTls } else { Transport::Tls });
            lifetime.run(stream, peer, service, &shared).await;
        }
        Ok(Err(error)) => tracing::debug!(listener = shared.name, %addr, %error, "TLS handshake failed"),
        Err(_) => tracing::debug!(listener = shared.name, %addr, "TLS handshake took too long"),
    }
}
