//! The network of the simulation: connections in memory to [`Servers`], and the point at which the caller leaves.

use std::cell::{Cell, RefCell};
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Duration, sleep};

use super::servers::{Delivery, Servers};
use crate::url::Address;

/// A call in progress.
pub(super) type Caller<T> = Pin<Box<dyn Future<Output = T>>>;

thread_local! {
    static SERVERS: RefCell<Option<Arc<Mutex<Servers>>>> = const { RefCell::new(None) };
    static CALLER: RefCell<Option<Box<dyn FnOnce()>>> = const { RefCell::new(None) };
    /// Points passed so far, and the one at which the caller leaves.
    static POINTS: Cell<(usize, usize)> = const { Cell::new((0, usize::MAX)) };
    static RANDOM: Cell<u64> = const { Cell::new(0) };
}

/// The servers of this thread from now on. All connections of the thread lead to them.
pub(super) fn install(servers: Servers) -> Arc<Mutex<Servers>> {
    let servers = Arc::new(Mutex::new(servers));
    SERVERS.set(Some(Arc::clone(&servers)));
    RANDOM.set(1);
    servers
}

/// Real connections from now on.
pub(super) fn remove() {
    SERVERS.set(None);
    RANDOM.set(0);
}

/// A number for delays, the same in every run; none without a simulation.
pub(in crate::connection) fn random() -> Option<u64> {
    let last = RANDOM.get();
    let next = last.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    RANDOM.set(if last == 0 { 0 } else { next });
    (last != 0).then_some(next >> 33)
}

/// Every point at which another thread could run: here the caller may leave.
fn point() {
    let (passed, leaves_at) = POINTS.get();
    POINTS.set((passed + 1, leaves_at));
    if passed == leaves_at
        && let Some(leave) = CALLER.take()
    {
        leave();
    }
}

/// Drives a call, and drops it at the `leaves_at`th point. Returns its result, unless it was dropped, and the points passed.
pub(super) async fn drive<T: 'static>(call: Caller<T>, leaves_at: usize) -> (Option<T>, usize) {
    let place = std::rc::Rc::new(RefCell::new((Some(call), Waker::noop().clone())));
    let leaving = std::rc::Rc::clone(&place);
    CALLER.set(Some(Box::new(move || {
        let (call, waker) = &mut *leaving.borrow_mut();
        drop(call.take());
        waker.wake_by_ref();
    })));
    POINTS.set((0, leaves_at));
    let result = std::future::poll_fn(|cx| {
        place.borrow_mut().1.clone_from(cx.waker());
        point();
        let polled = match &mut place.borrow_mut().0 {
            Some(call) => call.as_mut().poll(cx).map(Some),
            None => return Poll::Ready(None),
        };
        if polled.is_pending() {
            point();
        }
        polled
    });
    let result = result.await;
    CALLER.set(None);
    (result, POINTS.get().0)
}

/// A connection to a simulated server, if there is a simulation.
pub(in crate::connection) fn dial(address: &Address) -> Option<io::Result<Stream>> {
    let servers = SERVERS.with_borrow(Clone::clone)?;
    let Address::Tcp { host, .. } = address else { return None };
    let connection = lock(&servers).accept(host);
    Some(connection.map(|connection| Stream { servers, connection }))
}

fn lock(servers: &Mutex<Servers>) -> MutexGuard<'_, Servers> {
    servers.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The client's end of a connection.
pub(in crate::connection) struct Stream {
    servers: Arc<Mutex<Servers>>,
    connection: usize,
}

impl Stream {
    /// Sends what the servers want to be sent later.
    fn deliver(&self, deliveries: Vec<(Duration, Delivery)>) {
        for (after, delivery) in deliveries {
            let servers = Arc::clone(&self.servers);
            tokio::spawn(async move {
                sleep(after).await;
                lock(&servers).arrives(delivery);
            });
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        point();
        lock(&self.servers).read(self.connection, cx, buf)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        point();
        let written = lock(&self.servers).write(self.connection, bytes);
        let deliveries = lock(&self.servers).take_deliveries();
        self.deliver(deliveries);
        point();
        Poll::Ready(written)
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        lock(&self.servers).hang_up(self.connection);
    }
}
