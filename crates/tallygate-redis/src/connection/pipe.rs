//! One connection, driven by a task: it writes requests in order, and gives each reply to the call that waits for it.

mod driver;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use redis::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Notify, OwnedSemaphorePermit, mpsc, oneshot};
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout, timeout_at};

use super::failure::{Failure, NotSent};
use super::read_signal::ReadSignal;
use driver::Driver;

/// How often a call looks whether a late reply has been read.
pub(crate) const LOOK: Duration = Duration::from_millis(1);

/// The place of a call among those in flight. It is given back when the call has ended and its request is answered, or the
/// connection is gone.
pub(crate) type Place = Arc<OwnedSemaphorePermit>;

/// The requests of one connection. Dropping it ends the connection.
pub(crate) struct Pipe {
    queue: mpsc::UnboundedSender<Entry>,
    shared: Arc<Shared>,
    driver: AbortHandle,
}

/// A request in the queue.
struct Entry {
    bytes: Vec<u8>,
    replies: usize,
    request: Arc<Progress>,
    answer: oneshot::Sender<Result<Value, Failure>>,
    place: Option<Place>,
}

/// Whether a request may still be withdrawn: [`QUEUED`], [`WITHDRAWN`], or when the driver took it, in microseconds.
struct Progress(AtomicU64);

const QUEUED: u64 = 0;
const WITHDRAWN: u64 = 1;

/// What the driver and the calls share.
struct Shared {
    started: Instant,
    /// When the oldest unanswered request was taken, in microseconds; 0 if there is none.
    oldest: AtomicU64,
    /// When the server last sent anything, in microseconds; 0 if it never did.
    heard: AtomicU64,
    signal: Arc<ReadSignal>,
    ended: AtomicBool,
    /// Calls that were dropped after their request was taken.
    abandoned: Arc<AtomicU64>,
    lost: Option<Arc<Notify>>,
}

impl Shared {
    fn new(abandoned: Arc<AtomicU64>, lost: Option<Arc<Notify>>) -> Self {
        Self {
            started: Instant::now(),
            oldest: AtomicU64::new(0),
            heard: AtomicU64::new(0),
            signal: Arc::new(ReadSignal::new()),
            ended: AtomicBool::new(false),
            abandoned,
            lost,
        }
    }

    fn micros(&self) -> u64 {
        // Above the states of `Progress`.
        u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX - 2) + 2
    }

    fn instant(&self, micros: u64) -> Instant {
        self.started + Duration::from_micros(micros - 2)
    }

    fn known_instant(&self, micros: &AtomicU64) -> Option<Instant> {
        match micros.load(Ordering::Relaxed) {
            0 => None,
            micros => Some(self.instant(micros)),
        }
    }
}

/// Where replies go that no request asked for.
pub(crate) type Pushes = mpsc::UnboundedSender<Value>;

impl Pipe {
    /// Starts the driver. `lost` is notified when the connection ends.
    pub(crate) fn start<S>(
        socket: S,
        abandoned: Arc<AtomicU64>,
        lost: Option<Arc<Notify>>,
        pushes: Option<Pushes>,
    ) -> Self
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (queue, requests) = mpsc::unbounded_channel();
        let shared = Arc::new(Shared::new(abandoned, lost));
        let driver = Driver::new(socket, requests, Arc::clone(&shared), pushes);
        let driver = tokio::spawn(driver.run()).abort_handle();
        Self { queue, shared, driver }
    }

    /// Sends a request of one or more commands, and waits for all their replies; of several, the answer is an array.
    pub(crate) async fn send(
        &self,
        bytes: Vec<u8>,
        replies: usize,
        by: Instant,
        place: Option<Place>,
    ) -> Result<Value, Failure> {
        let request = Arc::new(Progress(AtomicU64::new(QUEUED)));
        let (sender, receiver) = oneshot::channel();
        let queued_at = Instant::now();
        let entry = Entry { bytes, replies, request: Arc::clone(&request), answer: sender, place };
        if self.queue.send(entry).is_err() {
            return Err(Failure::NotSent(NotSent::Closed(closed().into())));
        }
        let abandoned = Some(Arc::clone(&self.shared.abandoned));
        let mut exchange = Exchange { request, receiver, abandoned };
        let answer = match timeout_at(by, &mut exchange.receiver).await {
            Ok(answer) => answer.unwrap_or_else(|_| Err(exchange.dropped())),
            Err(_) => self.late(&mut exchange, queued_at).await,
        };
        exchange.abandoned = None;
        answer
    }

    /// The deadline has passed. A reply that this process has received, and has only not read yet, still counts: otherwise a
    /// busy process would take a healthy server for one that does not answer.
    async fn late(&self, exchange: &mut Exchange, queued_at: Instant) -> Result<Value, Failure> {
        let Some(claimed_at) = exchange.withdraw() else {
            return Err(Failure::NotSent(NotSent::Queued { waited: queued_at.elapsed() }));
        };
        let queued = self.shared.instant(claimed_at).saturating_duration_since(queued_at);
        loop {
            let dry = self.shared.signal.is_dry();
            match exchange.receiver.try_recv() {
                Ok(answer) => return answer,
                Err(oneshot::error::TryRecvError::Closed) => return Err(exchange.dropped()),
                Err(oneshot::error::TryRecvError::Empty) if dry => return Err(Failure::TimedOut { queued }),
                Err(oneshot::error::TryRecvError::Empty) => {}
            }
            if let Ok(answer) = timeout(LOOK, &mut exchange.receiver).await {
                return answer.unwrap_or_else(|_| Err(exchange.dropped()));
            }
        }
    }

    pub(crate) fn is_ended(&self) -> bool {
        self.shared.ended.load(Ordering::Relaxed)
    }

    /// Whether nothing has arrived that is not read yet.
    pub(crate) fn has_read_all(&self) -> bool {
        self.shared.signal.is_dry()
    }

    /// Since when the server owes an answer, if it does.
    pub(crate) fn owes_since(&self) -> Option<Instant> {
        self.shared.known_instant(&self.shared.oldest)
    }

    /// When the server last sent anything.
    pub(crate) fn heard_at(&self) -> Option<Instant> {
        self.shared.known_instant(&self.shared.heard)
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        // Otherwise the driver of a server that hangs would wait for its answers for ever.
        self.driver.abort();
    }
}

/// A request, as its caller sees it. Dropped before the driver took it, it is never sent.
struct Exchange {
    request: Arc<Progress>,
    receiver: oneshot::Receiver<Result<Value, Failure>>,
    /// Counts this call if it is dropped before it has ended.
    abandoned: Option<Arc<AtomicU64>>,
}

impl Exchange {
    /// What the end of the driver means for this request.
    fn dropped(&self) -> Failure {
        match self.withdraw() {
            None => Failure::NotSent(NotSent::Closed(closed().into())),
            Some(_) => Failure::Lost(closed().into()),
        }
    }

    /// Takes the request back. If it is too late for that, returns when the driver took it.
    fn withdraw(&self) -> Option<u64> {
        let withdrawn = self.request.0.compare_exchange(QUEUED, WITHDRAWN, Ordering::AcqRel, Ordering::Acquire);
        withdrawn.err().filter(|state| *state != WITHDRAWN)
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        let sent = self.withdraw().is_some();
        if let Some(abandoned) = self.abandoned.as_ref().filter(|_| sent) {
            abandoned.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn closed() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the connection was closed")
}
