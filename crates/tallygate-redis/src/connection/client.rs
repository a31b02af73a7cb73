//! The client of a store: how many calls are in flight, and the one loop that may send a call again.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;
use tallygate::StoreError;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, sleep_until, timeout_at};

use super::backoff::random_between;
use super::conn::Request;
use super::deadline::Deadline;
use super::failure::Failure;
use super::node::Node;
use super::topology::{Route, Topology};
use crate::builder::ConnectError;
use crate::scripts::{Script, ScriptRun};
use crate::url::StoreUrl;

/// Redirections followed without a delay: more than a healthy cluster ever gives to one call.
const QUICK_REDIRECTS: u32 = 4;

#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// For one call: connecting, waiting, redirections and retries included.
    pub(crate) deadline: Duration,
    /// For opening one connection, handshake included; also what [`Client::connect`] may take per server.
    pub(crate) connect_timeout: Duration,
    /// Concurrent calls; more wait until their deadline and are then refused.
    pub(crate) in_flight: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self { deadline: Duration::from_millis(50), connect_timeout: Duration::from_secs(1), in_flight: 1024 }
    }
}

/// The connection layer of a store, shared by concurrent calls. Dropping a call at any point is safe.
pub(crate) struct Client {
    topology: Topology,
    permits: Semaphore,
    settings: Settings,
}

impl Client {
    pub(crate) async fn connect(url: &StoreUrl, settings: Settings) -> Result<Self, ConnectError> {
        let topology = Topology::connect(url, &settings).await?;
        let permits = Semaphore::new(settings.in_flight.clamp(1, Semaphore::MAX_PERMITS));
        Ok(Self { topology, permits, settings })
    }

    /// The default deadline of a call that starts now.
    pub(crate) fn default_deadline(&self) -> Deadline {
        Deadline::after(self.settings.deadline)
    }

    /// Runs a script on keys that share a slot. It takes effect at most once: what may have been charged is never sent
    /// again.
    pub(crate) async fn run<K: AsRef<[u8]>, A: AsRef<[u8]>>(
        &self,
        script: &Script,
        keys: &[K],
        args: &[A],
        deadline: Deadline,
    ) -> Result<Value, StoreError> {
        let slot = keys.first().map_or(0, |key| self.topology.slot(key.as_ref()));
        let run = ScriptRun::new(script, keys, args);
        let _permit = self.admit(deadline.send_by).await?;
        self.send(run, slot, deadline).await
    }

    async fn admit(&self, send_by: Instant) -> Result<SemaphorePermit<'_>, StoreError> {
        if let Ok(permit) = self.permits.try_acquire() {
            let reason = "the deadline of the call had passed before it was sent";
            let too_late = || StoreError::unavailable(reason.to_owned());
            return (Instant::now() < send_by).then_some(permit).ok_or_else(too_late);
        }
        match timeout_at(send_by, self.permits.acquire()).await {
            // On a stalled machine the permit and the deadline can come together.
            Ok(Ok(permit)) if Instant::now() < send_by => Ok(permit),
            _ => Err(StoreError::overloaded(self.settings.in_flight)),
        }
    }

    /// The retry loop: retries only after a failure that proves that the script changed nothing.
    async fn send(&self, mut run: ScriptRun<'_>, slot: u16, deadline: Deadline) -> Result<Value, StoreError> {
        let mut redirected: Option<Route> = None;
        let mut redirects = 0_u32;
        let mut was_read_only = false;
        loop {
            let Some(route) = redirected.take().or_else(|| self.topology.route(slot)) else {
                if pause(deadline.send_by).await {
                    continue;
                }
                return Err(StoreError::unavailable(format!("no node of the cluster has slot {slot}")));
            };
            let address = route.node.address();
            let request = if route.asking { Request::Asking(run.command()) } else { Request::Command(run.command()) };
            let failure = match route.node.send(request, deadline).await {
                Ok(value) => return Ok(value),
                Err(failure) => failure,
            };
            let retry = match &failure {
                Failure::NoScript => run.switch_to_text(),
                Failure::Redirected(redirect) => {
                    redirected = self.topology.redirect(redirect, address).map_err(|failure| failure.at(address))?;
                    redirects += 1;
                    redirects < QUICK_REDIRECTS || pause(deadline.send_by).await
                }
                Failure::TryAgain => pause(deadline.send_by).await,
                Failure::NotReady(_) | Failure::NotSent(_) => {
                    self.topology.refresh();
                    pause(deadline.send_by).await
                }
                Failure::ReadOnly(_) if !was_read_only => {
                    was_read_only = true;
                    self.topology.refreshed(deadline.send_by).await
                }
                Failure::Lost(_) | Failure::TimedOut => {
                    self.topology.refresh();
                    false
                }
                Failure::ReadOnly(_) | Failure::Refused(_) | Failure::Corrupt(_) => false,
            };
            if !retry || Instant::now() >= deadline.send_by {
                return Err(failure.at(address));
            }
            // The text goes to the same node. If that node is importing the slot, it needs ASKING again.
            if failure == Failure::NoScript {
                redirected = Some(route);
            }
        }
    }

    pub(crate) fn is_cluster(&self) -> bool {
        self.topology.is_cluster()
    }

    /// Whether one script may use both keys.
    pub(crate) fn same_slot(&self, a: &[u8], b: &[u8]) -> bool {
        self.topology.slot(a) == self.topology.slot(b)
    }

    /// Every master, for the plain commands of operators, over separate connections: a scan delays no call.
    pub(crate) async fn masters(&self) -> Vec<Arc<Node>> {
        if self.is_cluster() {
            self.topology.refreshed(Instant::now() + self.settings.connect_timeout).await;
        }
        self.topology.masters().iter().map(|node| node.with_own_connection()).collect()
    }
}

/// Waits 1 to 5 ms; false if the deadline comes first.
async fn pause(deadline: Instant) -> bool {
    let until = Instant::now() + random_between(Duration::from_millis(1), Duration::from_millis(5));
    sleep_until(until.min(deadline)).await;
    until < deadline
}
