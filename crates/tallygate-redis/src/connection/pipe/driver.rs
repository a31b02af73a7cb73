//! The task that owns the socket.

use std::collections::VecDeque;
use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker, ready};

use redis::Value;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{mpsc, oneshot};
use tokio::task::coop::has_budget_remaining;

use super::super::failure::{Cause, Failure, NotSent};
use super::super::resp::Replies;
use super::{Entry, Place, Pushes, QUEUED, Shared};

/// The most requests that are written and not yet answered. Those beyond wait in this process, where a call that runs out
/// of time is known not to have been sent. It also keeps the queue of the server short: about a millisecond.
const WINDOW: usize = 256;
/// Bytes that are taken from the queue before the socket has taken the last ones.
const WRITE_AHEAD: usize = 64 * 1024;
const READ_BUFFER: usize = 16 * 1024;

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

pub(super) struct Driver<S> {
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
    pub(super) fn new(
        socket: S,
        requests: mpsc::UnboundedReceiver<Entry>,
        shared: Arc<Shared>,
        pushes: Option<Pushes>,
    ) -> Self {
        Self {
            socket,
            requests,
            read_waker: Waker::from(Arc::clone(&shared.signal)),
            shared,
            unwritten: Vec::new(),
            start: 0,
            taken: 0,
            waiting: VecDeque::new(),
            replies: Replies::default(),
            pushes,
        }
    }

    pub(super) async fn run(mut self) {
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
                    // Without a budget, tokio has not looked.
                    if has_budget_remaining() {
                        self.shared.signal.found_nothing();
                    }
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::super::Progress;
    use super::*;

    /// Takes whatever is written, and never has anything to read.
    struct Silent;

    impl AsyncWrite for Silent {
        fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
            Poll::Ready(Ok(bytes.len()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    impl AsyncRead for Silent {
        fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, _: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            Poll::Pending
        }
    }

    /// Taking many requests used up the budget of the task. Then tokio did not look into the socket, and that was taken for silence.
    #[tokio::test]
    async fn a_driver_without_a_budget_has_not_found_the_socket_dry() {
        for (requests, dry) in [(1, true), (WINDOW, false)] {
            let shared = Arc::new(Shared::new(Arc::default(), None));
            let (queue, taken) = mpsc::unbounded_channel();
            let mut answers = Vec::new();
            for _ in 0..requests {
                let (answer, receiver) = oneshot::channel();
                let request = Arc::new(Progress(AtomicU64::new(QUEUED)));
                assert!(queue.send(Entry { bytes: vec![0], replies: 1, request, answer, place: None }).is_ok());
                answers.push(receiver);
            }
            let mut driver = Driver::new(Silent, taken, Arc::clone(&shared), None);
            // A task of its own has a budget of its own.
            let polled = std::future::poll_fn(move |cx| Poll::Ready(driver.poll(cx).is_pending()));
            assert!(tokio::spawn(polled).await.unwrap());
            assert_eq!(shared.signal.is_dry(), dry, "{requests} requests");
        }
    }
}
