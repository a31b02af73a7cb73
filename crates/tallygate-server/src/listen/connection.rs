//! One connection: who keeps it busy, and when it must end.

use std::convert::Infallible;
use std::future::poll_fn;
use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use http::{Request, Response};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tower::{BoxError, Service};

use super::request::Requests;
use super::{ListenSettings, Peer, Shared};

/// How many connections may be told at once that there is no room.
pub(super) const MAX_TURNED_AWAY: usize = 64;
const MAX_HEADER: u32 = 16 * 1024;
const MAX_HEADERS: usize = 100;
const MAX_STREAMS: u32 = 128;
const PING_EVERY: Duration = Duration::from_secs(20);
const PONG_WITHIN: Duration = Duration::from_secs(10);
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const NO_ROOM: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";

/// Tells a caller that there is no room, and leaves it a moment to read that: closing on unread bytes would reset the
/// connection before it could.
pub(super) async fn turn_away(mut stream: TcpStream) {
    let _ = tokio::time::timeout(Duration::from_secs(1), async {
        stream.write_all(NO_ROOM).await?;
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

/// What happens on a connection, seen from its bytes and its requests. Times are milliseconds since its start.
///
/// hyper's own header timeout runs while a connection is idle too, which would make the two one; and it begins only
/// after the version is known, so that a silent caller would never be cut.
#[derive(Debug)]
pub(super) struct Activity {
    started: Instant,
    http2: AtomicBool,
    /// Requests whose answer is not fully sent.
    open: AtomicUsize,
    /// When the header under way began, or `NONE`. At first, the connection itself.
    header_since: AtomicU64,
    /// HTTP/1: the last byte either way. HTTP/2, where pings are bytes: the end of the last request.
    quiet_since: AtomicU64,
}

const NONE: u64 = u64::MAX;

/// Why a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    /// The caller left, or hyper found it in breach.
    Done,
    SlowHeader,
    /// Its answer is not being read.
    Stalled,
    Idle,
    Old,
    Drained,
}

impl Activity {
    fn new(started: Instant) -> Self {
        Self {
            started,
            http2: AtomicBool::new(false),
            open: AtomicUsize::new(0),
            header_since: AtomicU64::new(0),
            quiet_since: AtomicU64::new(0),
        }
    }

    fn now(&self) -> u64 {
        self.started.elapsed().as_millis().try_into().unwrap_or(NONE)
    }

    /// A header is whole.
    pub(super) fn request(self: &Arc<Self>) -> OpenRequest {
        self.open.fetch_add(1, Relaxed);
        self.header_since.store(NONE, Relaxed);
        OpenRequest(Arc::clone(self))
    }

    fn preface(&self) {
        self.http2.store(true, Relaxed);
        self.quiet_since.store(self.now(), Relaxed);
        self.header_since.store(NONE, Relaxed);
    }

    fn read(&self) {
        if self.http2.load(Relaxed) {
            return;
        }
        let now = self.now();
        self.quiet_since.store(now, Relaxed);
        if self.open.load(Relaxed) == 0 && self.header_since.load(Relaxed) == NONE {
            self.header_since.store(now, Relaxed);
        }
    }

    fn wrote(&self) {
        if !self.http2.load(Relaxed) {
            self.quiet_since.store(self.now(), Relaxed);
        }
    }

    /// When the connection must end if nothing changes; `None` while HTTP/2 requests are open, whose deadlines are
    /// their own and whose dead peers the pings find.
    fn due(&self, settings: &ListenSettings) -> Option<(Instant, Ending)> {
        let at = |since: u64, patience| self.started + Duration::from_millis(since) + patience;
        let header_since = self.header_since.load(Relaxed);
        let quiet_since = self.quiet_since.load(Relaxed);
        if header_since != NONE {
            return Some((at(header_since, settings.header_timeout), Ending::SlowHeader));
        }
        if self.open.load(Relaxed) == 0 {
            return Some((at(quiet_since, settings.idle_timeout), Ending::Idle));
        }
        if self.http2.load(Relaxed) {
            return None;
        }
        // Nothing moves while a request is decided, so it must be given its time.
        Some((at(quiet_since, settings.idle_timeout + settings.request_timeout), Ending::Stalled))
    }
}

/// A request whose answer is not fully sent.
#[derive(Debug)]
pub(super) struct OpenRequest(Arc<Activity>);

impl Drop for OpenRequest {
    fn drop(&mut self) {
        if self.0.http2.load(Relaxed) {
            self.0.quiet_since.store(self.0.now(), Relaxed);
        }
        self.0.open.fetch_sub(1, Relaxed);
    }
}

/// How long a connection may live, from the moment it was accepted.
#[derive(Debug)]
pub(super) struct Lifetime {
    started: Instant,
    until: Instant,
}

impl Lifetime {
    pub(super) fn new(shared: &Shared) -> Self {
        let started = Instant::now();
        Self { started, until: started + jittered(shared.settings.max_age) }
    }

    /// Serves requests until the connection ends.
    pub(super) async fn run<I, S, B>(self, stream: I, peer: Peer, service: S, shared: &Arc<Shared>)
    where
        I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        S: Service<Request<Body>, Response = Response<B>, Error = Infallible> + Clone + Send + Sync + 'static,
        S::Future: Send,
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let activity = Arc::new(Activity::new(self.started));
        let closing = CancellationToken::new();
        let requests = Arc::new(Requests {
            service,
            peer,
            activity: Arc::clone(&activity),
            shared: Arc::clone(shared),
            closing: closing.clone(),
        });
        let stream = TokioIo::new(Watched { stream, activity: Arc::clone(&activity), preface: 0 });
        let builder = builder();
        let service = service_fn(move |request| Arc::clone(&requests).answer(request));
        let mut connection = pin!(builder.serve_connection(stream, service));

        let end = self.end(&activity, shared, connection.as_mut());
        let ending = tokio::select! {
            ending = end => ending,
            () = shared.cut.cancelled() => return,
        };
        tracing::debug!(listener = shared.name, addr = %peer.addr(), ?ending, "connection ends");
        let grace = match ending {
            // What is left of these is nothing worth waiting for.
            Ending::Done | Ending::SlowHeader | Ending::Stalled => return,
            Ending::Idle | Ending::Old => shared.settings.age_grace,
            // Only the listener knows when it has waited long enough, and cuts.
            Ending::Drained => Duration::MAX,
        };
        closing.cancel();
        connection.as_mut().graceful_shutdown();
        tokio::select! {
            _ = tokio::time::timeout(grace, connection) => {}
            () = shared.cut.cancelled() => {}
        }
    }

    /// Drives the connection until it must end.
    async fn end(&self, activity: &Activity, shared: &Shared, mut connection: Pin<&mut impl Future>) -> Ending {
        let settings = &shared.settings;
        let mut drain = pin!(shared.drain.cancelled());
        let mut timer = pin!(sleep_until(self.until.min(self.started + settings.header_timeout)));
        poll_fn(|cx| {
            if connection.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Ending::Done);
            }
            if drain.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Ending::Drained);
            }
            // Set back only to wake earlier: a busy connection moves its deadline with every request, and pays for
            // that once, when the timer goes off for nothing.
            if let Some((at, _)) = activity.due(settings)
                && at < timer.deadline()
            {
                timer.as_mut().reset(at);
            }
            while timer.as_mut().poll(cx).is_ready() {
                let now = Instant::now();
                let next = match activity.due(settings) {
                    _ if self.until <= now => return Poll::Ready(Ending::Old),
                    Some((at, ending)) if at <= now => return Poll::Ready(ending),
                    Some((at, _)) => at,
                    None => now + settings.idle_timeout,
                };
                timer.as_mut().reset(next.min(self.until));
            }
            Poll::Pending
        })
        .await
    }
}

/// Give or take a tenth, so that connections opened together do not all come back together.
fn jittered(age: Duration) -> Duration {
    // The keys of a hash map are the standard library's only randomness, and enough for this.
    let thousandths = u32::try_from(RandomState::new().hash_one(()) % 201).expect("below 201");
    age / 1000 * (900 + thousandths)
}

fn builder() -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(None)
        .max_buf_size(MAX_HEADER as usize)
        .max_headers(MAX_HEADERS);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(MAX_HEADER)
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PONG_WITHIN);
    builder
}

/// A stream whose bytes are noticed.
#[derive(Debug)]
struct Watched<I> {
    stream: I,
    activity: Arc<Activity>,
    /// How much of HTTP/2's preface has come, or more than all of it once that is settled.
    preface: usize,
}

impl<I> Watched<I> {
    fn notice(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        if let Some(expected) = PREFACE.get(self.preface..).filter(|expected| !expected.is_empty()) {
            let length = expected.len().min(bytes.len());
            self.preface =
                if expected[..length] == bytes[..length] { self.preface + length } else { PREFACE.len() + 1 };
            if self.preface == PREFACE.len() {
                self.activity.preface();
            }
        }
        self.activity.read();
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for Watched<I> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buffer);
        if polled.is_ready() {
            self.notice(&buffer.filled()[before..]);
        }
        polled
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for Watched<I> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(cx, bytes);
        if polled.is_ready() {
            self.activity.wrote();
        }
        polled
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(cx, buffers);
        if polled.is_ready() {
            self.activity.wrote();
        }
        polled
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
