//! The accept loop of every listener, for any protocol: connection limits, TLS and drain.

mod settings;
mod slots;
mod stats;
mod tls;

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use self::settings::ListenSettings;
pub use self::stats::ListenStats;
pub use self::tls::{Tls, TlsError, TlsSettings};

use self::slots::{Slot, Slots};

/// Connections that the kernel queues until they are accepted.
const BACKLOG: u32 = 1024;
/// File descriptors become free as connections end; retrying at once would only burn CPU.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// How many connections may be refused at one time with a response that surely arrives.
const MAX_REFUSALS: usize = 1024;

/// A bound port, not yet served.
#[derive(Debug)]
pub struct Listener {
    inner: TcpListener,
    local: SocketAddr,
}

/// Why a port could not be bound.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {addr}: {reason}; {}", remedy(.reason))]
pub struct BindError {
    addr: SocketAddr,
    /// Not a source: the message contains it, and a chain of errors would print it twice.
    reason: io::Error,
}

fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => "stop the process that listens there, or choose another port",
        io::ErrorKind::AddrNotAvailable => "use an address of this machine, or 0.0.0.0 for all of them",
        io::ErrorKind::PermissionDenied => "choose a port above 1023, or grant CAP_NET_BIND_SERVICE",
        _ => "choose another address",
    }
}

impl Listener {
    /// Binds `addr`; port 0 takes a free one. Must be called within a Tokio runtime.
    pub fn bind(addr: SocketAddr) -> Result<Self, BindError> {
        let bound = || {
            let socket = if addr.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
            // On other systems this would let two processes share the port.
            #[cfg(unix)]
            socket.set_reuseaddr(true)?;
            socket.bind(addr)?;
            let inner = socket.listen(BACKLOG)?;
            Ok(Self { local: inner.local_addr()?, inner })
        };
        bound().map_err(|reason| BindError { addr, reason })
    }

    /// Uses a socket that is already bound, for example by socket activation. Must be called within a Tokio runtime.
    pub fn from_std(listener: std::net::TcpListener) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let local = listener.local_addr()?;
        Ok(Self { inner: TcpListener::from_std(listener)?, local })
    }

    /// The bound address, with the port that the system chose.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Whether only this machine can connect.
    pub fn is_loopback(&self) -> bool {
        self.local.ip().to_canonical().is_loopback()
    }
}

/// What the connections of one listener share.
#[derive(Debug)]
pub(crate) struct Port {
    pub(crate) name: &'static str,
    pub(crate) settings: ListenSettings,
    pub(crate) stats: Arc<ListenStats>,
    pub(crate) tls: Option<Tls>,
    /// Cancelled when the listener drains: connections finish their requests.
    pub(crate) drain: CancellationToken,
    /// Cancelled after the drain timeout: connections end at once.
    pub(crate) cut: CancellationToken,
}

/// The protocol of a listener.
pub(crate) trait Protocol: Clone + Send + Sync + 'static {
    /// What a refused connection is sent, without TLS.
    const NO_ROOM: &'static [u8];

    /// Serves one connection until it ends, or [`Port::drain`] or [`Port::cut`] ends it. IPv4 peers have IPv4 addresses.
    fn serve(
        self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        peer: SocketAddr,
        accepted_at: Instant,
        port: Arc<Port>,
    ) -> impl Future<Output = ()> + Send;
}

/// Serves connections until `port.drain` is cancelled. Then it stops accepting, lets requests finish for `drain_timeout`,
/// closes the remaining connections, and returns how many there were.
pub(crate) async fn serve<P: Protocol>(listener: Listener, port: Port, protocol: P) -> usize {
    let port = Arc::new(port);
    let slots = Slots::new(&port.settings, &port.stats);
    let connections = TaskTracker::new();
    let lingering = TaskTracker::new();
    let mut short_of_descriptors = false;
    loop {
        let accepted = tokio::select! {
            biased;
            () = port.drain.cancelled() => break,
            accepted = listener.inner.accept() => accepted,
        };
        let (stream, addr) = match accepted {
            Ok(accepted) => accepted,
            // The peer disconnected before it was accepted.
            Err(error) if gone(&error) => continue,
            Err(error) => {
                if !short_of_descriptors {
                    tracing::error!(listener = port.name, %error, "cannot accept connections: is the limit of open files (LimitNOFILE, ulimit -n) too low?");
                }
                short_of_descriptors = true;
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        if std::mem::take(&mut short_of_descriptors) {
            tracing::info!(listener = port.name, "accepting connections again");
        }
        let addr = SocketAddr::new(addr.ip().to_canonical(), addr.port());
        match slots.take(addr.ip()) {
            Some(slot) => {
                connections.spawn(connection(stream, addr, slot, protocol.clone(), Arc::clone(&port)));
            }
            None => {
                port.stats.shed.fetch_add(1, Relaxed);
                if port.tls.is_some() {
                    continue;
                }
                if lingering.len() < MAX_REFUSALS {
                    lingering.spawn(refuse(stream, P::NO_ROOM));
                } else {
                    // The buffer of a new socket has room. If the request has arrived, closing may reset the connection before
                    // the response is read.
                    let _ = stream.try_write(P::NO_ROOM);
                }
            }
        }
    }
    // Closes the port: the kernel refuses the next client, which tries another server.
    drop(listener);
    connections.close();
    let finished = tokio::time::timeout(port.settings.drain_timeout, connections.wait()).await;
    if finished.is_ok() {
        return 0;
    }
    let cut = connections.len();
    port.cut.cancel();
    connections.wait().await;
    cut
}

fn gone(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted)
}

/// One connection, from the handshake to its end. The slot is held until then.
async fn connection<P: Protocol>(stream: TcpStream, addr: SocketAddr, _slot: Slot, protocol: P, port: Arc<Port>) {
    let accepted_at = Instant::now();
    // Responses are small: waiting to fill a packet would only delay them. A closed socket fails later.
    let _ = stream.set_nodelay(true);
    let Some(tls) = &port.tls else {
        return protocol.serve(stream, addr, accepted_at, port).await;
    };
    let handshake = tokio::time::timeout(port.settings.handshake_timeout, tls.accept(stream));
    let handshake = tokio::select! {
        handshake = handshake => handshake,
        () = port.drain.cancelled() => return,
    };
    match handshake {
        Ok(Ok(stream)) => protocol.serve(stream, addr, accepted_at, port).await,
        Ok(Err(error)) => tracing::debug!(listener = port.name, %addr, %error, "TLS handshake failed"),
        Err(_) => tracing::debug!(listener = port.name, %addr, "TLS handshake timed out"),
    }
}

/// Sends a refusal, and leaves the peer a moment to read it: closing with unread bytes would reset the connection.
async fn refuse(mut stream: TcpStream, no_room: &'static [u8]) {
    let _ = tokio::time::timeout(Duration::from_secs(1), async {
        stream.write_all(no_room).await?;
        stream.shutdown().await?;
        let mut unread = [0; 1024];
        for _ in 0..16 {
            if stream.read(&mut unread).await? == 0 {
                break;
            }
        }
        io::Result::Ok(())
    })
    .await;
}
