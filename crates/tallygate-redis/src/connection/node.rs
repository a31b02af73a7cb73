//! One server, and the connection to it that all calls share: opened when first needed, replaced when it breaks.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use redis::Value;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout_at};

use super::backoff::Backoff;
use super::conn::{ConnectOptions, Connection, Request};
use super::deadline::Deadline;
use super::failure::{Failure, NotSent};
use crate::url::Address;

/// Consecutive timeouts after which a connection is given up: the server hangs, or the network drops packets.
const MAX_TIMEOUTS: u32 = 3;
/// The maximum is short, so that a server that came back is found before the callers of the next second give up.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(5), Duration::from_millis(250));

pub(crate) struct Node {
    options: ConnectOptions,
    current: RwLock<Option<Arc<Connection>>>,
    opening: Mutex<Opening>,
    /// Notified whenever a connection ends, since there may be a new master.
    lost: Option<Arc<Notify>>,
}

type Opened = Result<Arc<Connection>, Failure>;

struct Opening {
    /// The attempt in progress, if any. All callers wait for the same one.
    attempt: Option<watch::Receiver<Option<Opened>>>,
    backoff: Backoff,
    /// When to try again after a failure, and the failure.
    paused: Option<(Instant, Failure)>,
}

impl Node {
    pub(crate) fn new(options: ConnectOptions, lost: Option<Arc<Notify>>) -> Arc<Self> {
        let opening = Mutex::new(Opening { attempt: None, backoff: BACKOFF, paused: None });
        Arc::new(Self { options, current: RwLock::new(None), opening, lost })
    }

    pub(crate) fn address(&self) -> &Address {
        &self.options.address
    }

    /// The same server over a separate connection.
    pub(crate) fn with_own_connection(&self) -> Arc<Self> {
        Self::new(self.options.clone(), None)
    }

    pub(crate) async fn send(self: &Arc<Self>, request: Request<'_>, deadline: Deadline) -> Result<Value, Failure> {
        let connection = self.connection(deadline.send_by).await?;
        let reply = connection.send(request, deadline.answer_by).await;
        self.observe(&connection, &reply);
        reply
    }

    /// Whether a call could be sent without connecting first.
    pub(crate) fn is_open(&self) -> bool {
        self.live().is_some()
    }

    /// A connection that is open as far as known. The common case takes one lock, briefly.
    pub(crate) async fn connection(self: &Arc<Self>, deadline: Instant) -> Opened {
        if let Some(connection) = self.live() {
            return Ok(connection);
        }
        let mut attempt = {
            let mut opening = self.opening();
            // Opened while this call waited for the lock.
            if let Some(connection) = self.live() {
                return Ok(connection);
            }
            match (&opening.attempt, &opening.paused) {
                (Some(attempt), _) => attempt.clone(),
                (None, Some((until, failure))) if Instant::now() < *until => return Err(failure.clone()),
                _ => {
                    let attempt = self.open();
                    opening.attempt = Some(attempt.clone());
                    attempt
                }
            }
        };
        match timeout_at(deadline, attempt.wait_for(Option::is_some)).await {
            Ok(Ok(opened)) => opened.clone().unwrap_or_else(|| Err(self.not_yet())),
            Ok(Err(_)) => {
                // The runtime of the attempt has shut down.
                self.opening().attempt = None;
                Err(self.not_yet())
            }
            Err(_) => Err(self.not_yet()),
        }
    }

    /// Opens a connection in a separate task, so that callers with a short deadline cannot starve the handshake.
    fn open(self: &Arc<Self>) -> watch::Receiver<Option<Opened>> {
        let (done, attempt) = watch::channel(None);
        let node = Arc::clone(self);
        tokio::spawn(async move {
            let opened = Connection::open(&node.options, node.lost.clone()).await.map(Arc::new);
            let mut opening = node.opening();
            opening.attempt = None;
            match &opened {
                Ok(connection) => {
                    opening.paused = None;
                    *node.current.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(connection));
                }
                Err(failure) => opening.pause(failure.clone()),
            }
            drop(opening);
            done.send_replace(Some(opened));
        });
        attempt
    }

    /// Drops a connection. Returns false if it has already been replaced.
    fn forget(&self, connection: &Arc<Connection>) -> bool {
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        current.take_if(|current| Arc::ptr_eq(current, connection)).is_some()
    }

    /// Updates the connection's state from a reply.
    fn observe(&self, connection: &Arc<Connection>, reply: &Result<Value, Failure>) {
        match reply {
            Err(Failure::TimedOut) => {
                if connection.timeouts() >= MAX_TIMEOUTS && self.forget(connection) {
                    self.opening().pause(Failure::NotSent(NotSent::Unresponsive { calls: MAX_TIMEOUTS }));
                }
            }
            // The server closed, or is no longer the master: behind a DNS name the next connection may reach another.
            Err(Failure::Lost(_) | Failure::NotSent(_) | Failure::ReadOnly(_)) => drop(self.forget(connection)),
            Ok(_) | Err(_) => {
                if connection.is_first_answer() {
                    self.opening().backoff.reset();
                }
            }
        }
    }

    fn live(&self) -> Option<Arc<Connection>> {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        current.as_ref().filter(|connection| !connection.is_dead()).cloned()
    }

    fn opening(&self) -> MutexGuard<'_, Opening> {
        self.opening.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn not_yet(&self) -> Failure {
        match &self.opening().paused {
            Some((_, failure)) => failure.clone(),
            None => Failure::NotSent(NotSent::StillConnecting),
        }
    }
}

impl Opening {
    fn pause(&mut self, failure: Failure) {
        self.paused = Some((Instant::now() + self.backoff.next(), failure));
    }
}
