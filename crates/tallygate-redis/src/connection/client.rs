//! The client of a store: how many calls are in flight, and the one loop that may send a call again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use redis::Value;
use tallygate::StoreError;
use tallygate::call::Effect;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::backoff::random_between;
use super::conn::Request;
use super::deadline::Deadline;
use super::failure::{Failure, NotSent};
use super::node::Node;
use super::pipe::Place;
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
    /// Concurrent calls to one server; more wait until their deadline and are then refused.
    pub(crate) in_flight: usize,
    /// Of every key.
    pub(crate) prefix: String,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            deadline: Duration::from_millis(50),
            connect_timeout: Duration::from_secs(1),
            in_flight: 1024,
            prefix: "tallygate".to_owned(),
        }
    }
}

/// What the client needs to know of the calls of a run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Calls {
    /// How many there are: each takes a place in flight.
    pub(crate) count: usize,
    pub(crate) effect: Effect,
    /// Whether they may be sent again although they may have been charged, because the script remembers its answers.
    pub(crate) repeatable: bool,
}

impl Calls {
    /// One call that must not be charged twice.
    pub(crate) fn one(effect: Effect) -> Self {
        Self { count: 1, effect, repeatable: false }
    }
}

/// The connection layer of a store, shared by concurrent calls. Dropping a call at any point is safe.
pub(crate) struct Client {
    topology: Topology,
    settings: Settings,
    abandoned: Arc<AtomicU64>,
}

impl Client {
    pub(crate) async fn connect(url: &StoreUrl, settings: Settings) -> Result<Self, ConnectError> {
        let abandoned = Arc::default();
        let topology = Topology::connect(url, &settings, &abandoned).await?;
        Ok(Self { topology, settings, abandoned })
    }

    /// The default deadline of a call that starts now.
    pub(crate) fn default_deadline(&self) -> Deadline {
        Deadline::after(self.settings.deadline)
    }

    /// That of a call that is a part of connecting.
    pub(crate) fn connect_deadline(&self) -> Deadline {
        Deadline::after(self.settings.connect_timeout)
    }

    /// Runs a script on keys that share a slot. It takes effect at most once: what may have been charged is not sent
    /// again, unless the script remembers its answer.
    pub(crate) async fn run<K: AsRef<[u8]>, A: AsRef<[u8]>>(
        &self,
        script: &Script,
        keys: &[K],
        args: &[A],
        deadline: Deadline,
    ) -> Result<Value, StoreError> {
        self.run_of(Calls::one(Effect::Charges), script, keys, args, deadline).await
    }

    /// Like [`run`](Self::run), for a script that decides several calls.
    pub(crate) async fn run_of<K: AsRef<[u8]>, A: AsRef<[u8]>>(
        &self,
        calls: Calls,
        script: &Script,
        keys: &[K],
        args: &[A],
        deadline: Deadline,
    ) -> Result<Value, StoreError> {
        let slot = keys.first().map_or(0, |key| self.topology.slot(key.as_ref()));
        // While the server is down nothing is encoded and nobody waits.
        if let Some(route) = self.topology.route(slot)
            && let Some(failure) = route.node.down()
        {
            return Err(failure.at(route.node.address()));
        }
        let run = ScriptRun::new(script, keys, args);
        let node = self.route(slot, deadline).await?.node;
        let place = self.admit(node.places(calls.effect), calls.count, slot, deadline).await?;
        let mut lost = None;
        let answer = self.send(run, slot, deadline, place, (calls.repeatable, &mut lost)).await;
        // Whatever has become of the repetition, the first attempt may have been charged.
        answer.map_err(|error| lost.unwrap_or(error))
    }

    /// The owner of a slot, once there is one.
    async fn route(&self, slot: u16, deadline: Deadline) -> Result<Route, StoreError> {
        loop {
            if let Some(route) = self.topology.route(slot) {
                return Ok(route);
            }
            if !pause(deadline.send_by).await {
                return Err(StoreError::unavailable(format!("no node of the cluster has slot {slot}")));
            }
        }
    }

    /// Waits for places among the calls in flight.
    async fn admit(
        &self,
        places: &Arc<Semaphore>,
        calls: usize,
        slot: u16,
        deadline: Deadline,
    ) -> Result<Place, StoreError> {
        let calls = u32::try_from(calls).unwrap_or(u32::MAX);
        let permit = match Arc::clone(places).try_acquire_many_owned(calls) {
            Ok(permit) => Some(permit),
            Err(_) => {
                let permit = Arc::clone(places).acquire_many_owned(calls);
                timeout_at(deadline.send_by, permit).await.ok().and_then(Result::ok)
            }
        };
        // On a stalled machine the permit and the deadline can come together.
        match permit {
            Some(permit) if Instant::now() < deadline.send_by => Ok(Arc::new(permit)),
            _ if self.owed_all_along(slot, deadline) => {
                let reason = "every place in flight was taken by calls that the server has not answered";
                Err(StoreError::unavailable(reason.to_owned()).late())
            }
            Some(_) => Err(too_busy("the deadline of the call had passed before it was sent")),
            None => Err(too_busy(&format!("{} calls to the server are already in flight", self.settings.in_flight))),
        }
    }

    /// Whether the server has owed an answer, or failed, since before the call began. Then the call waited for the server,
    /// although it waited in this process.
    fn owed_all_along(&self, slot: u16, deadline: Deadline) -> bool {
        let owes_since = self.topology.route(slot).and_then(|route| route.node.failing_since());
        owes_since.is_some_and(|since| since <= deadline.began)
    }

    /// Whether all that the owner of a slot has sent was read. A deadline that has passed says nothing before that: the reply may have
    /// arrived in time.
    pub(crate) fn has_read_all(&self, slot: u16) -> bool {
        self.topology.route(slot).is_none_or(|route| route.node.has_read_all())
    }

    /// The most calls of one run: half of those that may be in flight.
    pub(crate) fn most_calls_of_a_run(&self) -> usize {
        (self.settings.in_flight / 2).max(1)
    }

    /// The error of a call that waited for a run on its keys, and was not sent.
    pub(crate) fn not_sent_in_time(&self, slot: u16, deadline: Deadline) -> StoreError {
        if self.owed_all_along(slot, deadline) {
            return StoreError::unavailable("the server has not answered the calls before this one").late();
        }
        too_busy("the call waited for others about the same key")
    }

    /// The retry loop: retries only after a failure that proves that the script changed nothing, or if the calls are repeatable. Then the
    /// error of an attempt that may have been charged is left in `lost`.
    async fn send(
        &self,
        mut run: ScriptRun<'_>,
        slot: u16,
        deadline: Deadline,
        place: Place,
        (repeatable, lost): (bool, &mut Option<StoreError>),
    ) -> Result<Value, StoreError> {
        let waited = deadline.began.elapsed();
        let mut redirected: Option<Route> = None;
        let mut redirects = 0_u32;
        let mut was_read_only = false;
        loop {
            let route = match redirected.take() {
                Some(route) => route,
                None => self.route(slot, deadline).await?,
            };
            let address = route.node.address();
            let request = if route.asking { Request::Asking(run.command()) } else { Request::Command(run.command()) };
            *lost = lost.take().map(StoreError::repeated);
            let failure = match route.node.send_in(request, deadline, Some(Arc::clone(&place))).await {
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
                Failure::NotSent(NotSent::Queued { .. }) => {
                    return Err(match self.owed_all_along(slot, deadline) {
                        true => failure.at(address).late(),
                        false => too_busy(failure.at(address).reason()),
                    });
                }
                Failure::NotReady(_) | Failure::NotSent(_) => {
                    self.topology.refresh();
                    pause(deadline.send_by).await
                }
                Failure::ReadOnly(_) if !was_read_only => {
                    was_read_only = true;
                    self.topology.refreshed(deadline.send_by).await
                }
                // Most of its time had passed in this process, so the server is not to blame.
                Failure::TimedOut { queued }
                    if (waited + *queued) * 2 > deadline.all() && !self.owed_all_along(slot, deadline) =>
                {
                    return Err(too_busy(failure.at(address).reason()).or_charged());
                }
                // Too late, which is not an outage yet: see `Node`.
                Failure::TimedOut { .. } => {
                    self.topology.refresh();
                    return Err(failure.at(address).late());
                }
                Failure::Lost(_) => {
                    self.topology.refresh();
                    if repeatable {
                        lost.get_or_insert_with(|| failure.clone().at(address));
                    }
                    repeatable && pause(deadline.send_by).await
                }
                Failure::Down(_)
                | Failure::Late(_)
                | Failure::ReadOnly(_)
                | Failure::Refused(_)
                | Failure::Corrupt(_) => false,
            };
            if !retry || Instant::now() >= deadline.send_by {
                // Time that was too short proves nothing about the server: it may have passed in this process.
                let late = failure.ran_out();
                let error = failure.at(address);
                return Err(if late { error.late() } else { error });
            }
            // The text goes to the same node. If that node is importing the slot, it needs ASKING again.
            if failure == Failure::NoScript {
                redirected = Some(route);
            }
        }
    }

    /// Counts a call that was dropped after it was sent.
    pub(crate) fn count_abandoned(&self) {
        self.abandoned.fetch_add(1, Ordering::Relaxed);
    }

    /// Calls that were dropped after they were sent, and may have been charged.
    pub(crate) fn abandoned(&self) -> u64 {
        self.abandoned.load(Ordering::Relaxed)
    }

    /// On the server that has the fewest.
    #[cfg(test)]
    pub(super) fn free_places(&self) -> usize {
        let free = |(node, _): &(Arc<Node>, usize)| node.places(Effect::Charges).available_permits();
        self.topology.servers().iter().map(free).min().unwrap_or_default()
    }

    /// The servers, each with its number of slots. Without a cluster, the one server has all.
    pub(crate) fn servers(&self) -> Vec<(Arc<Node>, usize)> {
        self.topology.servers()
    }

    pub(crate) fn is_cluster(&self) -> bool {
        self.topology.is_cluster()
    }

    pub(crate) fn slot(&self, key: &str) -> u16 {
        self.topology.slot(key.as_bytes())
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
        self.topology.servers().iter().map(|(node, _)| node.with_own_connection()).collect()
    }

    /// The master that has a key, likewise.
    pub(crate) async fn master_of(&self, key: &str) -> Option<Arc<Node>> {
        if self.is_cluster() {
            self.topology.refreshed(Instant::now() + self.settings.connect_timeout).await;
        }
        self.topology.route(self.slot(key)).map(|route| route.node.with_own_connection())
    }
}

/// The call waited in this process, and the server is not to blame.
fn too_busy(reason: &str) -> StoreError {
    StoreError::overloaded(reason)
}

/// Waits 1 to 5 ms; false if the deadline comes first.
async fn pause(deadline: Instant) -> bool {
    let until = Instant::now() + random_between(Duration::from_millis(1), Duration::from_millis(5));
    sleep_until(until.min(deadline)).await;
    until < deadline
}
