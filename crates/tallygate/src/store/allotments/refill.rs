//! A call that takes units in advance. Every caller that waits for it drives it, so none has to stay until it ends.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Instant;

use crate::decision::Decision;
use crate::store::StoreError;
use crate::store::memory::print::Print;
use crate::sync::Mutex;

/// `None` if the store was only given units back.
pub(super) type Answer = Option<Result<Decision, StoreError>>;
type Asking = Pin<Box<dyn Future<Output = Answer> + Send>>;

/// A refill in flight. If all its callers leave, the next one that asks for the key goes on with it.
pub(super) struct Refill {
    pub(super) print: Print,
    /// The pool.
    pub(super) id: u64,
    /// How many units the pool is to hold.
    pub(super) size: u64,
    /// Before the store was asked, on the clock of this process.
    pub(super) asked_at: u64,
    deadline: Option<Instant>,
    asking: Mutex<Option<Asking>>,
    waiting: Arc<Wakers>,
}

impl fmt::Debug for Refill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Refill").field("id", &self.id).field("asked_at", &self.asked_at).finish_non_exhaustive()
    }
}

impl Refill {
    pub(super) fn new(
        of: (Print, u64, u64),
        asked_at: u64,
        deadline: Option<Instant>,
        asking: impl Future<Output = Answer> + Send + 'static,
    ) -> Self {
        Self { asking: Mutex::new(Some(Box::pin(asking))), ..Self::without_waiting(of, asked_at, deadline) }
    }

    /// One whose answer its caller brings at once. Nobody waits for it.
    pub(super) fn without_waiting(
        (print, id, size): (Print, u64, u64),
        asked_at: u64,
        deadline: Option<Instant>,
    ) -> Self {
        let waiting = Arc::new(Wakers(Mutex::new((0, Vec::new()))));
        Self { print, id, size, asked_at, deadline, asking: Mutex::new(None), waiting }
    }

    /// Whether it ends in time for a call with this deadline.
    pub(super) fn ends_by(&self, deadline: Option<Instant>) -> bool {
        match (deadline, self.deadline) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(deadline), Some(ends_at)) => ends_at <= deadline,
        }
    }
}

/// The callers that wait. A task that is woken may have left, so all are woken: any of them can go on.
struct Wakers(Mutex<(u64, Vec<(u64, Waker)>)>);

impl Wakers {
    fn register(&self, number: Option<u64>, waker: &Waker) -> u64 {
        let mut wakers = self.0.lock();
        if let Some(known) = number
            && let Some((_, old)) = wakers.1.iter_mut().find(|(number, _)| *number == known)
        {
            old.clone_from(waker);
            return known;
        }
        wakers.0 += 1;
        let number = wakers.0;
        wakers.1.push((number, waker.clone()));
        number
    }

    fn forget(&self, number: u64) {
        self.0.lock().1.retain(|(known, _)| *known != number);
    }

    fn wake_all(&self) {
        let wakers = std::mem::take(&mut self.0.lock().1);
        wakers.into_iter().for_each(|(_, waker)| waker.wake());
    }
}

impl Wake for Wakers {
    fn wake(self: Arc<Self>) {
        self.wake_all();
    }
}

/// Waits for a refill, and drives it. `land` is called once, with the answer, by the caller that sees it first.
pub(super) struct Waiting<F> {
    refill: Arc<Refill>,
    number: Option<u64>,
    land: F,
}

impl<F> Waiting<F> {
    pub(super) fn new(refill: Arc<Refill>, land: F) -> Self {
        Self { refill, number: None, land }
    }
}

impl<F: Fn(&Refill, Answer) + Unpin> Future for Waiting<F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        let refill = &*this.refill;
        // Before the refill is looked at: who ends it later wakes this caller.
        this.number = Some(refill.waiting.register(this.number, context.waker()));
        let mut asking = refill.asking.lock();
        let Some(future) = asking.as_mut() else { return Poll::Ready(()) };
        let all = Waker::from(Arc::clone(&refill.waiting));
        match future.as_mut().poll(&mut Context::from_waker(&all)) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(answer) => {
                // Within the lock, so that nobody finds the refill ended and the pool not filled.
                (this.land)(refill, answer);
                *asking = None;
                drop(asking);
                refill.waiting.wake_all();
                Poll::Ready(())
            }
        }
    }
}

impl<F> Drop for Waiting<F> {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            self.refill.waiting.forget(number);
        }
    }
}
