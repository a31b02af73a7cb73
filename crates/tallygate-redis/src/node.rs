//! One server, and the connection to it that all calls share: opened when first needed, replaced when it breaks.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use redis::{Cmd, Pipeline, Value};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout_at};

use crate::fault::Fault;
use crate::link::{Call, Deadline};
use crate::url::Address;
use crate::wire::{Dial, Wire};

/// Timeouts in a row after which a connection is given up: the server hangs, or the path to it is a black hole.
const STRIKES: u32 = 3;
const BACKOFF_FIRST: Duration = Duration::from_millis(5);
/// Short, so that a server that came back is found before the callers of the next second give up.
const BACKOFF_MOST: Duration = Duration::from_millis(250);

pub(crate) struct Node {
    dial: Dial,
    current: RwLock<Option<Arc<Wire>>>,
    opening: Mutex<Opening>,
    /// Told whenever a connection ends, so that someone can look for a new master.
    lost: Option<Arc<Notify>>,
}

type Outcome = Result<Arc<Wire>, Fault>;

#[derive(Default)]
struct Opening {
    /// The attempt under way, if any. All callers wait for the same one.
    attempt: Option<watch::Receiver<Option<Outcome>>>,
    /// Failures in a row, and how long to leave the server alone after the last one.
    failures: u32,
    pause: Option<(Instant, Fault)>,
}

impl Node {
    pub(crate) fn new(dial: Dial, lost: Option<Arc<Notify>>) -> Arc<Self> {
        Arc::new(Self { dial, current: RwLock::new(None), opening: Mutex::default(), lost })
    }

    pub(crate) fn address(&self) -> &Address {
        &self.dial.address
    }

    /// The same server, reached over a connection of its own.
    pub(crate) fn apart(&self, timeout: Duration) -> Arc<Self> {
        Self::new(Dial { timeout, ..self.dial.clone() }, None)
    }

    /// Runs a script: by its digest, and by its text where the server does not know it.
    pub(crate) async fn run(
        self: &Arc<Self>,
        call: &Call<'_>,
        importing: bool,
        deadline: Deadline,
    ) -> Result<Value, Fault> {
        let wire = self.wire(deadline.send_by).await?;
        let strikes = wire.strikes();
        let first = if importing {
            wire.ask_importing(call.by_digest.clone(), deadline.answer_by).await
        } else {
            wire.ask(&call.by_digest, deadline.answer_by).await
        };
        let last = match first {
            Err(Fault::NoScript) if Instant::now() >= deadline.send_by => {
                return Err(Fault::NotReady("NOSCRIPT, too late to send the script".into()));
            }
            // The flag that ASKING sets is spent by now: it goes along again.
            Err(Fault::NoScript) if importing => wire.ask_importing(call.by_text(), deadline.answer_by).await,
            Err(Fault::NoScript) => wire.ask(&call.by_text(), deadline.answer_by).await,
            answered => answered,
        };
        self.learn(&wire, strikes, last)
    }

    /// Runs a plain command.
    pub(crate) async fn ask(self: &Arc<Self>, command: &Cmd, deadline: Instant) -> Result<Value, Fault> {
        let wire = self.wire(deadline).await?;
        let strikes = wire.strikes();
        let reply = wire.ask(command, deadline).await;
        self.learn(&wire, strikes, reply)
    }

    /// Runs plain commands, sent at once; an error reply stays in its place.
    pub(crate) async fn ask_all(self: &Arc<Self>, commands: &Pipeline, deadline: Instant) -> Result<Vec<Value>, Fault> {
        let wire = self.wire(deadline).await?;
        let strikes = wire.strikes();
        let replies = wire.ask_all(commands, deadline).await;
        match self.learn(&wire, strikes, replies)? {
            Value::Array(replies) => Ok(replies),
            other => Ok(vec![other]),
        }
    }

    /// Whether a call could be sent at once.
    pub(crate) fn is_open(&self) -> bool {
        self.live().is_some()
    }

    /// A connection that is open as far as anyone knows. The usual case takes one lock, for two instructions.
    pub(crate) async fn wire(self: &Arc<Self>, deadline: Instant) -> Outcome {
        if let Some(wire) = self.live() {
            return Ok(wire);
        }
        let mut attempt = {
            let mut opening = self.opening();
            // Opened while we waited for the lock.
            if let Some(wire) = self.live() {
                return Ok(wire);
            }
            match &opening.attempt {
                Some(attempt) => attempt.clone(),
                None => {
                    if let Some((until, fault)) = &opening.pause
                        && Instant::now() < *until
                    {
                        return Err(fault.clone());
                    }
                    let attempt = self.attempt();
                    opening.attempt = Some(attempt.clone());
                    attempt
                }
            }
        };
        match timeout_at(deadline, attempt.wait_for(Option::is_some)).await {
            Ok(Ok(outcome)) => outcome.clone().unwrap_or_else(|| Err(self.not_yet())),
            Ok(Err(_)) => {
                // Its runtime ended under it.
                self.opening().attempt = None;
                Err(self.not_yet())
            }
            Err(_) => Err(self.not_yet()),
        }
    }

    /// Gives up a connection, unless it has been replaced already.
    fn forget(&self, wire: &Arc<Wire>) -> bool {
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        let is_current = current.as_ref().is_some_and(|current| Arc::ptr_eq(current, wire));
        if is_current {
            *current = None;
        }
        is_current
    }

    /// Opens in a task of its own: a caller with 50 ms must not abort, and so forever prevent, a handshake of 60 ms.
    fn attempt(self: &Arc<Self>) -> watch::Receiver<Option<Outcome>> {
        let (done, attempt) = watch::channel(None);
        let node = Arc::clone(self);
        tokio::spawn(async move {
            let outcome = Wire::open(&node.dial, node.lost.clone()).await.map(Arc::new);
            let mut opening = node.opening();
            opening.attempt = None;
            match &outcome {
                Ok(wire) => {
                    opening.pause = None;
                    *node.current.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(wire));
                }
                Err(fault) => opening.fail(fault.clone()),
            }
            drop(opening);
            done.send_replace(Some(outcome));
        });
        attempt
    }

    fn learn(&self, wire: &Arc<Wire>, strikes: u32, reply: Result<Value, Fault>) -> Result<Value, Fault> {
        match &reply {
            Err(Fault::TimedOut(_)) => {
                if wire.strike(strikes) == Some(STRIKES) && self.forget(wire) {
                    let reason = format!("{} left {STRIKES} calls in a row unanswered", self.dial.address);
                    self.opening().fail(Fault::NotSent(reason));
                }
            }
            // The server closed, or is no master (any more): behind a DNS name the next connection may reach another.
            Err(Fault::Lost(_) | Fault::NotSent(_) | Fault::ReadOnly(_)) => drop(self.forget(wire)),
            Ok(_) | Err(_) => {
                if wire.answered() {
                    self.opening().failures = 0;
                }
            }
        }
        reply
    }

    fn live(&self) -> Option<Arc<Wire>> {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        current.as_ref().filter(|wire| !wire.is_dead()).cloned()
    }

    fn opening(&self) -> MutexGuard<'_, Opening> {
        self.opening.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn not_yet(&self) -> Fault {
        let opening = self.opening();
        match &opening.pause {
            Some((_, fault)) => fault.clone(),
            None => Fault::NotSent(format!("connecting to {} takes longer than the call may wait", self.dial.address)),
        }
    }
}

impl Opening {
    fn fail(&mut self, fault: Fault) {
        let pause = (BACKOFF_FIRST * 2_u32.saturating_pow(self.failures.min(16))).min(BACKOFF_MOST);
        self.failures = self.failures.saturating_add(1);
        self.pause = Some((Instant::now() + jitter(pause / 2, pause), fault));
    }
}

/// A random span between two, so that many clients of one server do not return in step.
pub(crate) fn jitter(least: Duration, most: Duration) -> Duration {
    let random = RandomState::new().build_hasher().finish() % 1024;
    least + (most.saturating_sub(least)) * u32::try_from(random).unwrap_or(0) / 1024
}
