//! A TCP proxy that fails on demand.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// What the proxy does to connections, including those already open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Forwards both ways.
    Pass,
    /// Delays every piece of a reply.
    Delay(Duration),
    /// Accepts, but forwards nothing in either direction.
    BlackHole,
    /// Forwards this many bytes of replies, counted per connection from the switch on, then closes both sides.
    CutAfter(usize),
    /// Forwards requests, drops replies: the effect without the answer.
    DropReplies,
    /// Forwards replies one byte at a time.
    Trickle,
    /// Resets every connection, including the open ones.
    Reset,
}

/// How soon an idle connection notices a change of mode.
const TICK: Duration = Duration::from_millis(10);

#[derive(Debug)]
struct Shared {
    upstream: SocketAddr,
    /// With the number of switches so far: each restarts [`Mode::CutAfter`].
    mode: Mutex<(Mode, usize)>,
    closing: AtomicBool,
    accepted: AtomicUsize,
}

impl Shared {
    fn mode(&self) -> (Mode, usize) {
        *self.mode.lock().unwrap()
    }
}

/// Listens on a free port of 127.0.0.1 and forwards to one address; stops when dropped.
#[derive(Debug)]
pub struct FaultProxy {
    addr: SocketAddr,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

impl FaultProxy {
    /// Starts a proxy for this address, in [`Mode::Pass`].
    ///
    /// # Panics
    /// When no port can be bound.
    #[must_use]
    pub fn start(upstream: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let addr = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            upstream,
            mode: Mutex::new((Mode::Pass, 0)),
            closing: AtomicBool::new(false),
            accepted: AtomicUsize::new(0),
        });
        let for_acceptor = Arc::clone(&shared);
        let acceptor = thread::spawn(move || accept(&listener, &for_acceptor));
        Self { addr, shared, acceptor: Some(acceptor) }
    }

    /// The address it listens on.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// `redis://` and its address.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://{}", self.addr)
    }

    /// Switches the mode, for open and new connections.
    pub fn set(&self, mode: Mode) {
        let mut current = self.shared.mode.lock().unwrap();
        *current = (mode, current.1 + 1);
    }

    /// The number of connections accepted so far: more than one means that the client reconnected.
    #[must_use]
    pub fn accepted(&self) -> usize {
        self.shared.accepted.load(Ordering::SeqCst)
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.shared.closing.store(true, Ordering::SeqCst);
        // Wakes the acceptor; the connections notice within a tick.
        let _ = TcpStream::connect(self.addr);
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    let mut pumps: Vec<JoinHandle<()>> = Vec::new();
    for client in listener.incoming() {
        if shared.closing.load(Ordering::SeqCst) {
            break;
        }
        let Ok(client) = client else { continue };
        shared.accepted.fetch_add(1, Ordering::SeqCst);
        pumps.retain(|pump| !pump.is_finished());
        let shared = Arc::clone(shared);
        pumps.push(thread::spawn(move || serve(client, &shared)));
    }
    for pump in pumps {
        let _ = pump.join();
    }
}

/// One connection, until a side closes or the mode ends it.
fn serve(client: TcpStream, shared: &Shared) {
    if shared.mode().0 == Mode::Reset {
        reset(&client);
        return;
    }
    let Ok(server) = TcpStream::connect(shared.upstream) else {
        return;
    };
    for stream in [&client, &server] {
        let _ = stream.set_nodelay(true);
        let _ = stream.set_read_timeout(Some(TICK));
    }
    thread::scope(|scope| {
        scope.spawn(|| {
            let _ = forward_requests(&client, &server, shared);
            close(&client, &server);
        });
        let _ = forward_replies(&server, &client, shared);
        close(&client, &server);
    });
    if shared.mode().0 == Mode::Reset {
        reset(&client);
    }
}

fn close(client: &TcpStream, server: &TcpStream) {
    let _ = server.shutdown(Shutdown::Both);
    // A regular close would send FIN before `reset` can send RST.
    let _ = client.shutdown(Shutdown::Read);
}

/// With a linger of zero, the following close sends RST instead of FIN.
fn reset(stream: &TcpStream) {
    let _ = rustix::net::sockopt::set_socket_linger(stream, Some(Duration::ZERO));
}

/// A connection that has lost bytes ends before it forwards any others: no network leaves them out of a stream.
fn forward_requests(mut client: &TcpStream, mut server: &TcpStream, shared: &Shared) -> io::Result<()> {
    let mut buffer = [0; 16 * 1024];
    let mut lossy = false;
    loop {
        let Some(count) = read(&mut client, &mut buffer, shared)? else {
            continue;
        };
        if shared.mode().0 == Mode::BlackHole {
            lossy = true;
        } else if lossy {
            return Ok(());
        } else {
            server.write_all(&buffer[..count])?;
        }
    }
}

fn forward_replies(mut server: &TcpStream, mut client: &TcpStream, shared: &Shared) -> io::Result<()> {
    let mut buffer = [0; 16 * 1024];
    let (mut since, mut forwarded, mut lossy) = (0, 0, false);
    loop {
        let Some(count) = read(&mut server, &mut buffer, shared)? else {
            continue;
        };
        let (mode, switches) = shared.mode();
        if since != switches {
            (since, forwarded) = (switches, 0);
        }
        let piece = &buffer[..count];
        match mode {
            Mode::BlackHole | Mode::DropReplies => lossy = true,
            _ if lossy => return Ok(()),
            Mode::Pass => client.write_all(piece)?,
            Mode::Delay(delay) => {
                thread::sleep(delay);
                client.write_all(piece)?;
            }
            Mode::CutAfter(limit) => {
                let rest = limit.saturating_sub(forwarded).min(count);
                client.write_all(&piece[..rest])?;
                forwarded += rest;
                if rest < count {
                    return Ok(());
                }
            }
            Mode::Trickle => {
                for byte in piece {
                    client.write_all(&[*byte])?;
                    thread::sleep(Duration::from_millis(1));
                }
            }
            Mode::Reset => return Ok(()),
        }
    }
}

/// `None` after a tick without bytes; an error when this connection is to end.
fn read(from: &mut impl Read, buffer: &mut [u8], shared: &Shared) -> io::Result<Option<usize>> {
    if shared.closing.load(Ordering::SeqCst) || shared.mode().0 == Mode::Reset {
        return Err(ErrorKind::ConnectionAborted.into());
    }
    match from.read(buffer) {
        Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
        Ok(count) => Ok(Some(count)),
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => Ok(None),
        Err(error) => Err(error),
    }
}
