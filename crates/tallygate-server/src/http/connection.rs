//! One HTTP connection: its settings, and when it ends.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tallygate_http::Prefixes;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::Http;
use super::activity::{Activity, Ending, watched};
use super::request::{Connection, Requests};
use crate::accept::{Port, Protocol};
use crate::store::jitter;

const MAX_HEADER: u32 = 16 * 1024;
pub(super) const MAX_HEADERS: usize = 100;
const MAX_STREAMS: u32 = 128;
/// What HTTP/2 lets a peer send before it is read, in bytes: of one stream, and of all. Requests are small, and read at once; hyper
/// would allow 1 MiB. The protocol allows no less.
const WINDOW: u32 = 65_535;
/// The most bytes of a response that wait for the peer's window.
const MAX_UNSENT: usize = 64 * 1024;
const PING_EVERY: Duration = Duration::from_secs(20);
const PONG_WITHIN: Duration = Duration::from_secs(10);

impl Protocol for Http {
    const NO_ROOM: &'static [u8] =
        b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";

    async fn serve(
        self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        peer: SocketAddr,
        accepted_at: Instant,
        port: Arc<Port>,
    ) {
        let activity = Arc::new(Activity::new(accepted_at));
        let closing = CancellationToken::new();
        let requests = Arc::new(Requests {
            http: self,
            peer,
            // A host with one address of a /64 has them all, so they count as one peer.
            connection: Connection { peer: Prefixes::default().mask(peer.ip()).into(), known: Arc::default() },
            activity: Arc::clone(&activity),
            port: Arc::clone(&port),
            closing: closing.clone(),
        });
        let stream = TokioIo::new(watched(stream, &activity));
        let builder = builder();
        let service = service_fn(move |request| Arc::clone(&requests).answer(request));
        let mut connection = pin!(builder.serve_connection(stream, service));

        let ending = tokio::select! {
            ending = end(&activity, accepted_at, &port, connection.as_mut()) => ending,
            () = port.cut.cancelled() => return,
        };
        tracing::debug!(listener = port.name, addr = %peer, ?ending, "connection ends");
        let grace = match ending {
            // There is nothing to wait for.
            Ending::Done | Ending::SlowHeader | Ending::Stalled => return,
            Ending::Idle | Ending::Old => port.settings.age_grace,
            // The listener decides how long to wait, and closes the rest.
            Ending::Drained => Duration::MAX,
        };
        closing.cancel();
        connection.as_mut().graceful_shutdown();
        tokio::select! {
            _ = tokio::time::timeout(grace, connection) => {}
            () = port.cut.cancelled() => {}
        }
    }
}

/// Drives the connection until it must end.
async fn end(activity: &Activity, started: Instant, port: &Port, mut connection: Pin<&mut impl Future>) -> Ending {
    let settings = &port.settings;
    // With a jitter of a tenth, so that connections opened together do not reconnect together.
    let tenth = settings.max_age / 10;
    let until = started + jitter(settings.max_age - tenth, settings.max_age + tenth);
    let mut drain = pin!(port.drain.cancelled());
    let mut timer = pin!(sleep_until(until.min(started + settings.header_timeout)));
    poll_fn(|cx| {
        if connection.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Ending::Done);
        }
        if drain.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Ending::Drained);
        }
        // Reset only to wake earlier. A busy connection moves its deadline with every request, and pays for it once, when
        // the timer fires early.
        if let Some((at, _)) = activity.due(settings)
            && at < timer.deadline()
        {
            timer.as_mut().reset(at);
        }
        while timer.as_mut().poll(cx).is_ready() {
            let now = Instant::now();
            let next = match activity.due(settings) {
                _ if until <= now => return Poll::Ready(Ending::Old),
                Some((at, ending)) if at <= now => return Poll::Ready(ending),
                Some((at, _)) => at,
                None => now + settings.idle_timeout,
            };
            timer.as_mut().reset(next.min(until));
        }
        Poll::Pending
    })
    .await
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
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .max_send_buf_size(MAX_UNSENT)
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PONG_WITHIN);
    builder
}
