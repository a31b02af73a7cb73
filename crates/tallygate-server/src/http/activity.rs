//! What happens on a connection, and when it must end for want of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::Instant;
use tokio_util::io::{InspectReader, InspectWriter};

use crate::accept::ListenSettings;

/// What an HTTP/2 connection begins with.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
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
    pub(super) fn new(started: Instant) -> Self {
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
        if self.http2.load(Relaxed) {
            return None;
        }
        // Nothing moves while a request is decided, so it must be given its time.
        Some((at(quiet_since, settings.idle_timeout + settings.request_timeout), Ending::Stalled))
    }
}

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

/// A stream whose bytes are noticed.
pub(super) fn watched<I>(stream: I, activity: &Arc<Activity>) -> impl AsyncRead + AsyncWrite + Unpin + Send + use<I>
where
    I: AsyncRead + AsyncWrite + Unpin + Send,
{
    let (reading, writing) = (Arc::clone(activity), Arc::clone(activity));
    // How much of HTTP/2's preface is still to come; nothing once that is settled.
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
