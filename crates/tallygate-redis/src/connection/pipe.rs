//! The task that drives one connection: it writes requests in order, and gives each reply to the call that waits for it.

use std::collections::VecDeque;
use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use redis::Value;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{Notify, OwnedSemaphorePermit, mpsc, oneshot};
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout, timeout_at};

use super::failure::{Cause, Failure, NotSent};
use super::read_signal::ReadSignal;
use super::resp::Replies;

/// The most requests that are written and not yet answered. Those beyond wait in this process, where a call that runs out
/// of time is known not to have been sent. It also keeps the queue of the server short: about a millisecond.
const WINDOW: usize = 256;
/// Bytes that are taken from the queue before the socket has taken the last ones.
const WRITE_AHEAD: usize = 64 * 1024;
const READ_BUFFER: usize = 16 * 1024;
/// How often a call looks whether a late reply has been read.
const LOOK: Duration = Duration::from_millis(1);

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

/// A request that was written, at least in part, or is about to be.
struct Waiting {
    /// The position of its first byte among all bytes of the connection.
    first_byte: u64,
    replies: usize,
    read: Vec<Value>,
    claimed_at: u64,
    answer: oneshot::Sender<Result<Value, Failure>>,
    _place: Option<Place>,
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
        let signal = Arc::new(ReadSignal::new());
        let shared = Arc::new(Shared {
            started: Instant::now(),
            oldest: AtomicU64::new(0),
            heard: AtomicU64::new(0),
            signal: Arc::clone(&signal),
            ended: AtomicBool::new(false),
            abandoned,
            lost,
        });
        let driver = Driver {
            socket,
            requests,
            shared: Arc::clone(&shared),
            read_waker: Waker::from(signal),
            unwritten: Vec::new(),
            start: 0,
            taken: 0,
            waiting: VecDeque::new(),
            replies: Replies::default(),
            pushes,
        };
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

struct Driver<S> {
    socket: S,
    requests: mpsc::UnboundedReceiver<Entry>,
    shared: Arc<Shared>,
    read_waker: Waker,
    /// Written to the socket from `start` on.
    unwritten: Vec<u8>,
    start: usize,
    /// All bytes taken from the queue so far.
    taken: u64,
    waiting: VecDeque<Waiting>,
    replies: Replies,
    pushes: Option<Pushes>,
}

/// Marks the end however the driver ends, also when it is aborted.
struct EndGuard(Arc<Shared>);

impl Drop for EndGuard {
    fn drop(&mut self) {
        self.0.ended.store(true, Ordering::Relaxed);
        self.0.oldest.store(0, Ordering::Relaxed);
        if let Some(lost) = &self.0.lost {
            lost.notify_one();
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Driver<S> {
    async fn run(mut self) {
        let guard = EndGuard(Arc::clone(&self.shared));
        let cause = std::future::poll_fn(|cx| self.poll(cx)).await;
        // First of all: a call that learns of the end must not find this connection again.
        drop(guard);
        self.end(cause);
    }

    /// Ready when the connection has ended.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Cause> {
        self.shared.signal.set_task(cx.waker());
        loop {
            self.take(cx);
            if let Poll::Ready(Err(error)) = self.write(cx) {
                return Poll::Ready(error.into());
            }
            match self.read() {
                Ok(0) => return Poll::Pending,
                // There may be room for more requests now.
                Ok(_) => {}
                Err(cause) => return Poll::Ready(cause),
            }
        }
    }

    /// Takes requests from the queue.
    fn take(&mut self, cx: &mut Context<'_>) {
        let before = self.taken;
        while self.waiting.len() < WINDOW && self.unwritten.len() - self.start < WRITE_AHEAD {
            // The queue is closed only by dropping the pipe, which aborts this task.
            let Poll::Ready(Some(entry)) = self.requests.poll_recv(cx) else { break };
            let claimed_at = self.shared.micros();
            let claimed =
                entry.request.0.compare_exchange(QUEUED, claimed_at, Ordering::AcqRel, Ordering::Acquire).is_ok();
            if !claimed {
                continue;
            }
            self.unwritten.extend_from_slice(&entry.bytes);
            let Entry { replies, answer, place, bytes, .. } = entry;
            let (first_byte, read) = (self.taken, Vec::new());
            self.taken += bytes.len() as u64;
            self.waiting.push_back(Waiting { first_byte, replies, read, claimed_at, answer, _place: place });
        }
        if self.taken > before {
            self.tell_oldest();
        }
    }

    fn write(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.start < self.unwritten.len() {
            match ready!(Pin::new(&mut self.socket).poll_write(cx, &self.unwritten[self.start..]))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                bytes => self.start += bytes,
            }
        }
        self.unwritten.clear();
        self.start = 0;
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    /// Reads until there is no more. Returns the number of bytes.
    fn read(&mut self) -> Result<usize, Cause> {
        let mut total = 0;
        let waker = self.read_waker.clone();
        let mut cx = Context::from_waker(&waker);
        let mut buffer = [MaybeUninit::uninit(); READ_BUFFER];
        loop {
            self.shared.signal.reading();
            let mut read = ReadBuf::uninit(&mut buffer);
            match Pin::new(&mut self.socket).poll_read(&mut cx, &mut read) {
                Poll::Pending => {
                    self.shared.signal.found_nothing();
                    return Ok(total);
                }
                Poll::Ready(Err(error)) => return Err(error.into()),
                Poll::Ready(Ok(())) if read.filled().is_empty() => {
                    let eof = io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed the connection");
                    return Err(eof.into());
                }
                Poll::Ready(Ok(())) => {
                    total += read.filled().len();
                    self.shared.heard.store(self.shared.micros(), Ordering::Relaxed);
                    self.replies.push(read.filled());
                    while let Some(value) = self.replies.next()? {
                        self.deliver(value)?;
                    }
                    self.tell_oldest();
                }
            }
        }
    }

    fn deliver(&mut self, value: Value) -> Result<(), Cause> {
        let Some(front) = self.waiting.front_mut() else {
            let Some(pushes) = &self.pushes else {
                let error = io::Error::new(io::ErrorKind::InvalidData, "the server sent a reply that nobody asked for");
                return Err(error.into());
            };
            let _ = pushes.send(value);
            return Ok(());
        };
        if front.replies == 1 {
            if let Some(done) = self.waiting.pop_front() {
                let _ = done.answer.send(Ok(value));
            }
            return Ok(());
        }
        front.read.push(value);
        if front.read.len() == front.replies
            && let Some(done) = self.waiting.pop_front()
        {
            let _ = done.answer.send(Ok(Value::Array(done.read)));
        }
        Ok(())
    }

    fn tell_oldest(&self) {
        let oldest = self.waiting.front().map_or(0, |waiting| waiting.claimed_at);
        self.shared.oldest.store(oldest, Ordering::Relaxed);
    }

    /// Tells every call what became of its request.
    fn end(mut self, cause: Cause) {
        let written = self.taken - (self.unwritten.len() - self.start) as u64;
        for waiting in self.waiting.drain(..) {
            let cause = cause.clone();
            // What was not written by now will never be.
            let failure = if waiting.first_byte < written {
                Failure::Lost(cause)
            } else {
                Failure::NotSent(NotSent::Closed(cause))
            };
            let _ = waiting.answer.send(Err(failure));
        }
        self.requests.close();
        while let Ok(entry) = self.requests.try_recv() {
            let _ = entry.answer.send(Err(Failure::NotSent(NotSent::Closed(cause.clone()))));
        }
    }
}
