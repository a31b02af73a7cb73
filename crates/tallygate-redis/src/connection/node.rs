//! One server: the connection to it that all calls share, and whether it is up.

mod health;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use redis::Value;
use tallygate::call::Effect;
use tokio::sync::{Notify, Semaphore, watch};
use tokio::time::{Instant, timeout_at};

use super::backoff::Backoff;
use super::conn::{ConnectOptions, Connection, Request};
use super::deadline::Deadline;
use super::failure::{Failure, NotSent};
use super::pipe::Place;
use crate::url::Address;
use health::Health;

/// The maximum is short, so that a server that came back is found before the callers of the next second give up.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(5), Duration::from_millis(250));

/// One server. It is down once it could not be connected to, or was not ready, for a deadline, or has left calls unanswered
/// for as long as [`Watch`](super::outage::Watch) says. Then calls fail at once, until a probe is answered within the deadline.
pub(crate) struct Node {
    options: ConnectOptions,
    /// For the calls in flight.
    places: Arc<Semaphore>,
    /// For those that give back. A flood of charges must not keep away the refunds of those that were denied.
    places_to_give_back: Arc<Semaphore>,
    current: RwLock<Option<Arc<Connection>>>,
    opening: Mutex<Opening>,
    /// Notified whenever a connection ends, since there may be a new master.
    lost: Option<Arc<Notify>>,
    /// Whether `health` has anything to tell: checked first by every call.
    troubled: AtomicBool,
    /// Whether it left a call unanswered, and a task is finding out whether it is down.
    late: AtomicBool,
    health: Mutex<Health>,
    /// A key that this server has, for probes: a cluster that is down still answers a plain `PING`.
    probe_key: RwLock<Option<String>>,
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
        let places = || Arc::new(Semaphore::new(options.in_flight.clamp(1, Semaphore::MAX_PERMITS)));
        Arc::new(Self {
            places: places(),
            places_to_give_back: places(),
            options,
            current: RwLock::new(None),
            opening: Mutex::new(Opening { attempt: None, backoff: BACKOFF, paused: None }),
            lost,
            troubled: AtomicBool::new(false),
            late: AtomicBool::new(false),
            health: Mutex::default(),
            probe_key: RwLock::default(),
        })
    }

    pub(crate) fn address(&self) -> &Address {
        &self.options.address
    }

    /// Where calls to this server take their places in flight. Those of one that hangs stay taken.
    pub(crate) fn places(&self, effect: Effect) -> &Arc<Semaphore> {
        if effect == Effect::GivesBack { &self.places_to_give_back } else { &self.places }
    }

    /// The same server over a separate connection.
    pub(crate) fn with_own_connection(&self) -> Arc<Self> {
        Self::new(self.options.clone(), None)
    }

    /// Sets the hash tag of a key that this server has.
    pub(crate) fn set_probe_tag(&self, tag: &str) {
        let key = format!("{}:{{{tag}}}:probe", self.options.prefix);
        *self.probe_key.write().unwrap_or_else(PoisonError::into_inner) = Some(key);
    }

    pub(crate) async fn send(self: &Arc<Self>, request: Request<'_>, deadline: Deadline) -> Result<Value, Failure> {
        self.send_in(request, deadline, None).await
    }

    /// Sends a request of a call that has a place among those in flight.
    pub(crate) async fn send_in(
        self: &Arc<Self>,
        request: Request<'_>,
        deadline: Deadline,
        place: Option<Place>,
    ) -> Result<Value, Failure> {
        if let Some(failure) = self.down() {
            return Err(failure);
        }
        let connection = self.connection(deadline.send_by).await?;
        // A cluster that is down answers what is asked about itself.
        let is_call = place.is_some();
        let reply = connection.send(request, deadline.answer_by, place).await;
        self.observe(&connection, &reply, is_call);
        reply
    }

    /// Whether all that it has sent was read.
    pub(crate) fn has_read_all(&self) -> bool {
        self.live().is_none_or(|connection| connection.has_read_all())
    }

    /// Since when it owes an answer, if it does.
    pub(crate) fn owes_since(&self) -> Option<Instant> {
        self.live().and_then(|connection| connection.owes_since())
    }

    /// Since when it owes an answer, or fails in another way, if it does.
    pub(crate) fn failing_since(&self) -> Option<Instant> {
        let troubled = self.troubled.load(Ordering::Relaxed);
        let failing = troubled.then(|| self.health().since).flatten();
        failing.into_iter().chain(self.owes_since()).min()
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
            Err(_) => {
                let failure = self.not_yet();
                self.fails(&failure);
                Err(failure)
            }
        }
    }

    /// Opens a connection in a separate task, so that callers with a short deadline cannot starve the handshake.
    fn open(self: &Arc<Self>) -> watch::Receiver<Option<Opened>> {
        let (done, attempt) = watch::channel(None);
        let node = Arc::clone(self);
        tokio::spawn(async move {
            let opened = Connection::open(&node.options, node.lost.clone()).await.map(Arc::new);
            {
                let mut opening = node.opening();
                opening.attempt = None;
                match &opened {
                    Ok(connection) => {
                        opening.paused = None;
                        opening.backoff.reset();
                        *node.current.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(connection));
                    }
                    Err(failure) => opening.pause(failure.clone()),
                }
            }
            if let Err(failure) = &opened {
                node.fails(failure);
            }
            done.send_replace(Some(opened));
        });
        attempt
    }

    /// Drops a connection, unless it has already been replaced.
    fn forget(&self, connection: &Arc<Connection>) {
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        drop(current.take_if(|current| Arc::ptr_eq(current, connection)));
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
