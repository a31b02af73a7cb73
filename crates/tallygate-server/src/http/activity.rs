//! Activity on a connection, and when an inactive one must end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::Instant;
use tokio_util::io::{InspectReader, InspectWriter};

use crate::accept::ListenSettings;

/// The first bytes of an HTTP/2 connection.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Activity on a connection: its bytes and its requests. Times are milliseconds since its start.
///
/// hyper's own header timeout also runs while a connection is idle, so the two could not differ; and it starts only once
/// the version is known, so a silent client would never be disconnected.
#[derive(Debug)]
pub(super) struct Activity {
    started: Instant,
    http2: AtomicBool,
    /// Requests whose response is not fully sent.
    open: AtomicUsize,
    /// Those of them that may last as long as the connection.
    streams: AtomicUsize,
    /// When the current header began, or `NONE`. At first, when the connection began.
    header_since: AtomicU64,
    /// HTTP/1: the last byte either way. HTTP/2, where pings are bytes: when a request last began or ended.
    quiet_since: AtomicU64,
}

const NONE: u64 = u64::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// The client left, or violated the protocol.
    Done,
    SlowHeader,
    /// The client does not read the response.
    Stalled,
    Idle,
    Old,
    Drained,
}

impl Activity {
    pub(super) fn new(started: Instant) -> Self {
        Self {
            started,
            http2: AtomicBool::new(false),
            open: AtomicUsize::new(0),
            streams: AtomicUsize::new(0),
            header_since: AtomicU64::new(0),
            quiet_since: AtomicU64::new(0),
        }
    }

    fn now(&self) -> u64 {
        self.started.elapsed().as_millis().try_into().unwrap_or(NONE)
    }

    /// A header is complete. `stream`: the response may last as long as the connection.
    pub(super) fn request(self: &Arc<Self>, stream: bool) -> OpenRequest {
        self.open.fetch_add(1, Relaxed);
        self.streams.fetch_add(usize::from(stream), Relaxed);
        self.header_since.store(NONE, Relaxed);
        self.touch();
        OpenRequest { activity: Arc::clone(self), stream }
    }

    /// HTTP/2: a request began or ended.
    fn touch(&self) {
        if self.http2.load(Relaxed) {
            self.quiet_since.store(self.now(), Relaxed);
        }
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

    /// When the connection must end if nothing changes. `None` while only HTTP/2 streams are open: pings find dead peers.
    pub(super) fn due(&self, settings: &ListenSettings) -> Option<(Instant, Ending)> {
        let at = |since: u64, patience| self.started + Duration::from_millis(since) + patience;
        let header_since = self.header_since.load(Relaxed);
        let quiet_since = self.quiet_since.load(Relaxed);
        if header_since != NONE {
            return Some((at(header_since, settings.header_timeout), Ending::SlowHeader));
        }
        if self.open.load(Relaxed) == 0 {
            return Some((at(quiet_since, settings.idle_timeout), Ending::Idle));
        }
        // A peer that never opens its window would keep other responses for ever.
        if self.http2.load(Relaxed) && self.open.load(Relaxed) <= self.streams.load(Relaxed) {
            return None;
        }
        // There is no activity while a request is decided, so its timeout is added.
        Some((at(quiet_since, settings.idle_timeout + settings.request_timeout), Ending::Stalled))
    }
}

#[derive(Debug)]
pub(super) struct OpenRequest {
    activity: Arc<Activity>,
    stream: bool,
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        self.activity.touch();
        self.activity.streams.fetch_sub(usize::from(self.stream), Relaxed);
        self.activity.open.fetch_sub(1, Relaxed);
    }
}

/// A stream that records its activity.
pub(super) fn watched<I>(stream: I, activity: &Arc<Activity>) -> impl AsyncRead + AsyncWrite + Unpin + Send + use<I>
where
    I: AsyncRead + AsyncWrite + Unpin + Send,
{
    let (reading, writing) = (Arc::clone(activity), Arc::clone(activity));
    // The rest of HTTP/2's preface; empty once the version is known.
    let mut preface = PREFACE;
    let stream = InspectReader::new(stream, move |bytes: &[u8]| {
        if bytes.is_empty() {
            return;
        }
        let length = preface.len().min(bytes.len());
        if preface[..length] != bytes[..length] {
            preface = &[];
        } else if length > 0 {
            preface = &preface[length..];
            if preface.is_empty() {
                reading.preface();
            }
        }
        reading.read();
    });
    InspectWriter::new(stream, move |_| writing.wrote())
}
