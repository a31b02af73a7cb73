//! Whether a server is up: what its replies say, and the tasks that find out when it is silent and when it is back.

use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use redis::Value;
use tokio::time::{Instant, sleep};

use super::super::backoff::Backoff;
use super::super::conn::{Connection, Request};
use super::super::failure::{Failure, NotSent};
use super::super::outage::{Watch, is_starved};
use super::Node;

/// Between two probes of a server that is down.
const PROBE_BACKOFF: Backoff = Backoff::new(Duration::from_millis(2), Duration::from_millis(100));
/// How long a connection may owe an answer before another one is tried.
const SILENCE: Duration = Duration::from_millis(250);
/// Between two signs of life that a server is asked for while it is late.
const LOOK: Duration = Duration::from_millis(10);

#[derive(Default)]
pub(super) struct Health {
    /// Since when it has been failing.
    pub(super) since: Option<Instant>,
    /// Why it is down, if it is.
    down: Option<Failure>,
    /// Whether it is at fault for certain. Until then it is late.
    certain: bool,
}

impl Node {
    /// The failure of a call that is not sent because the server is down, if it is.
    pub(crate) fn down(&self) -> Option<Failure> {
        if !self.troubled.load(Ordering::Relaxed) {
            return None;
        }
        let health = self.health();
        let why = health.down.clone().map(Box::new);
        why.map(if health.certain { Failure::Down } else { Failure::Late })
    }

    /// Why calls to it fail at present, if they do: it is down, or refuses the connection.
    pub(crate) fn failure(&self) -> Option<Failure> {
        self.down().or_else(|| {
            let refused = self.opening().paused.as_ref().map(|(_, failure)| failure.clone());
            refused.filter(|_| !self.is_open()).map(Failure::into_down)
        })
    }

    /// Updates what is known of the server from a reply. `proves`: whether a reply shows that it serves, as those to calls and
    /// probes do.
    pub(super) fn observe(
        self: &Arc<Self>,
        connection: &Arc<Connection>,
        reply: &Result<Value, Failure>,
        proves: bool,
    ) {
        match reply {
            Err(Failure::TimedOut { .. } | Failure::NotSent(NotSent::Queued { .. })) => {
                if !self.late.swap(true, Ordering::Relaxed) {
                    tokio::spawn(examine(Looking { node: Arc::downgrade(self), down: false }));
                }
            }
            // The server closed, or is no longer the master: behind a DNS name the next connection may reach another.
            Err(Failure::Lost(_) | Failure::NotSent(_) | Failure::ReadOnly(_)) => self.forget(connection),
            Err(failure @ Failure::NotReady(_)) => self.fails(failure),
            Ok(_) | Err(_) => {
                if proves && self.troubled.load(Ordering::Relaxed) {
                    self.works();
                }
            }
        }
    }

    /// An answer came. A server that is down needs more than that: see [`recover`].
    fn works(&self) {
        let mut health = self.health();
        if health.down.is_none() {
            health.since = None;
            self.troubled.store(false, Ordering::Relaxed);
        }
    }

    /// It is not ready, or cannot be connected to. A refused login is not among these: calls get its error at once.
    pub(super) fn fails(self: &Arc<Self>, failure: &Failure) {
        if matches!(failure, Failure::Refused(_)) {
            return;
        }
        let since = {
            let mut health = self.health();
            self.troubled.store(true, Ordering::Relaxed);
            *health.since.get_or_insert_with(Instant::now)
        };
        if since.elapsed() >= self.options.deadline {
            let certain = failure.is_certain();
            self.goes_down(failure.clone(), certain);
        }
    }

    fn goes_down(self: &Arc<Self>, failure: Failure, certain: bool) {
        {
            let mut health = self.health();
            health.certain |= certain;
            if health.down.replace(failure).is_some() {
                return;
            }
            health.since.get_or_insert_with(Instant::now);
            self.troubled.store(true, Ordering::Relaxed);
        }
        self.notify_lost();
        // So that nobody examines what is known.
        self.late.store(true, Ordering::Relaxed);
        tokio::spawn(recover(Looking { node: Arc::downgrade(self), down: true }));
    }

    fn comes_up(&self) {
        let mut health = self.health();
        *health = Health::default();
        self.troubled.store(false, Ordering::Relaxed);
    }

    /// Asks the server for a sign of life, and waits for it for one deadline.
    pub(crate) async fn probe(self: &Arc<Self>) -> Result<(), Failure> {
        let by = Instant::now() + self.options.deadline;
        let connection = self.connection(by).await?;
        let reply = connection.send(Request::Command(&self.probe_command()), by, None).await;
        self.observe(&connection, &reply, true);
        match reply {
            Err(
                failure @ (Failure::TimedOut { .. } | Failure::NotReady(_) | Failure::NotSent(_) | Failure::Lost(_)),
            ) => Err(failure),
            // Any other reply, if only an error, is one.
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// Waits until the server has answered all that it owes on this connection, which is given up otherwise. Returns whether
    /// anything came since `began`, and whether this process was starved meanwhile.
    async fn catch_up(&self, began: Instant) -> (bool, bool) {
        let until = Instant::now() + SILENCE;
        let mut starved = false;
        while let Some(connection) = self.live()
            && connection.owes_since().is_some()
        {
            if Instant::now() >= until {
                let heard = self.heard_since(began);
                self.forget(&connection);
                return (heard, starved);
            }
            let (slept, pause) = (Instant::now(), Duration::from_millis(1));
            sleep(pause).await;
            starved |= is_starved(slept.elapsed(), pause);
        }
        (self.heard_since(began), starved)
    }

    /// Whether the server has sent anything since then.
    fn heard_since(&self, instant: Instant) -> bool {
        self.live().and_then(|connection| connection.heard_at()).is_some_and(|heard| heard >= instant)
    }

    fn unresponsive(&self) -> Failure {
        Failure::NotSent(NotSent::Unresponsive { longer_than: self.options.deadline })
    }

    fn probe_command(&self) -> redis::Cmd {
        let key = self.probe_key.read().unwrap_or_else(PoisonError::into_inner).clone();
        let mut command = redis::cmd("EVAL");
        command.arg("return 1").arg(u8::from(key.is_some())).arg(key);
        command
    }

    fn notify_lost(&self) {
        if let Some(lost) = &self.lost {
            lost.notify_one();
        }
    }

    pub(super) fn health(&self) -> MutexGuard<'_, Health> {
        self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A task that finds out about a server. However it ends, also with its runtime, others may look again: if the server was down, the
/// next call finds out whether it still is.
struct Looking {
    node: Weak<Node>,
    down: bool,
}

impl Drop for Looking {
    fn drop(&mut self) {
        let Some(node) = self.node.upgrade() else { return };
        if self.down {
            node.comes_up();
        }
        node.late.store(false, Ordering::Relaxed);
    }
}

/// Finds out whether a server that was late is down.
async fn examine(looking: Looking) {
    let mut watch = Watch::default();
    loop {
        let began = Instant::now();
        sleep(LOOK).await;
        let Some(node) = looking.node.upgrade() else { return };
        let answer = node.probe().await;
        let queued = match answer {
            Err(Failure::TimedOut { .. }) => false,
            // Behind others in this process, which tells nothing, unless those are not answered either.
            Err(Failure::NotSent(NotSent::Queued { .. })) => node.owes_since().is_none_or(|since| since > began),
            // It answered in time, or fails in another way, which is found out elsewhere.
            Ok(()) | Err(_) => return,
        };
        let took = began.elapsed();
        let starved = queued || is_starved(took, LOOK + node.options.deadline);
        watch.look(took, starved, node.heard_since(began));
        if watch.is_late() {
            drop(looking);
            return node.goes_down(node.unresponsive(), watch.is_outage());
        }
    }
}

/// Probes a server that is down until it answers within the deadline. The answers that it still owes are waited for on the
/// same connection, so that one that stalled is back as soon as it goes on.
async fn recover(looking: Looking) {
    let mut backoff = PROBE_BACKOFF;
    let mut watch = Watch::default();
    let mut overslept = false;
    loop {
        let Some(node) = looking.node.upgrade() else { return };
        let (began, pause) = (Instant::now(), backoff.next());
        let answer = node.probe().await;
        let mut starved = overslept || is_starved(began.elapsed(), node.options.deadline);
        let (mut heard, mut fails) = (node.heard_since(began), false);
        let works = match answer {
            // A refusal is an answer: calls get it, and learn what to change.
            Ok(()) | Err(Failure::Refused(_)) => true,
            Err(Failure::TimedOut { .. } | Failure::NotSent(NotSent::Queued { .. })) => {
                node.health().down = Some(node.unresponsive());
                let (came, was_starved) = node.catch_up(began).await;
                (heard, starved) = (heard || came, starved || was_starved);
                // An answer is late by any clock that a starved process reads.
                starved && heard
            }
            Err(failure) => {
                (fails, starved) = (proves_outage(&failure), starved || failure.is_ours());
                node.health().down = Some(failure);
                false
            }
        };
        if works {
            return;
        }
        watch.look(began.elapsed() + pause, starved, heard);
        {
            // A server that answers is only late, whatever it was before, or a flood could prolong an outage. One that answers that
            // it is not ready is down.
            let mut health = node.health();
            health.certain = fails || (health.certain && !heard) || watch.is_outage();
        }
        // In a cluster, another node may have its slots by now.
        node.notify_lost();
        drop(node);
        let slept = Instant::now();
        sleep(pause).await;
        overslept = is_starved(slept.elapsed(), pause);
    }
}

/// Whether the failure of a probe shows that the server is down. One that was cut says as little as one that could not be sent because the
/// connection was closed: another connection may be opened.
fn proves_outage(failure: &Failure) -> bool {
    failure.is_certain() && !matches!(failure, Failure::Lost(_))
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    /// A flood that takes every file descriptor, and a proxy that closes connections, made `on_error: allow` admit everything.
    #[test]
    fn a_probe_without_a_connection_proves_nothing() {
        let cause = |kind| io::Error::from(kind).into();
        let closed = || cause(io::ErrorKind::ConnectionReset);
        for failure in [
            Failure::Lost(closed()),
            Failure::NotSent(NotSent::Closed(closed())),
            Failure::NotSent(NotSent::NoResources(closed())),
        ] {
            assert!(!proves_outage(&failure), "{failure:?}");
        }
        assert!(proves_outage(&Failure::NotSent(NotSent::NotListening(cause(io::ErrorKind::ConnectionRefused)))));
        assert!(Failure::NotSent(NotSent::NoResources(closed())).is_ours(), "its silence does not count either");
    }
}
