//! The way to the store: which server to ask, and what to do when it does not answer.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Value};
use tallygate::StoreError;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::cluster::{Cluster, slot_of};
use crate::fault::Fault;
use crate::node::{Node, jitter};
use crate::sentinel::Sentinel;
use crate::tls::Tls;
use crate::url::{Address, Place, StoreUrl};
use crate::wire::Dial;

/// Redirections followed without a breath between them: more than a healthy cluster ever gives to one call.
const HOPS: u32 = 4;

/// How long to wait, and how much at once.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// For one decision: connecting, waiting, redirections and retries included.
    pub(crate) deadline: Duration,
    /// For opening one connection, handshake included; also what [`Link::connect`] may take per server.
    pub(crate) connect_timeout: Duration,
    /// For one plain command of an operator.
    pub(crate) command_timeout: Duration,
    /// Decisions under way at once; more are refused, never queued beyond their deadline.
    pub(crate) in_flight: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            deadline: Duration::from_millis(50),
            connect_timeout: Duration::from_secs(1),
            command_timeout: Duration::from_secs(5),
            in_flight: 1024,
        }
    }
}

/// A Lua script and the digest a server knows it by.
#[derive(Debug, Clone)]
pub(crate) struct Script {
    text: Cow<'static, str>,
    sha: String,
}

impl Script {
    pub(crate) fn new(text: impl Into<Cow<'static, str>>) -> Self {
        let text = text.into();
        let sha = sha1_smol::Sha1::from(text.as_bytes()).digest().to_string();
        Self { text, sha }
    }

    #[cfg(test)]
    pub(crate) fn text(&self) -> &str {
        &self.text
    }
}

/// One run of a script, ready to send.
pub(crate) struct Call<'a> {
    script: &'a Script,
    pub(crate) by_digest: Cmd,
}

impl<'a> Call<'a> {
    fn new<K: AsRef<[u8]>, A: AsRef<[u8]>>(script: &'a Script, keys: &[K], args: &[A]) -> Self {
        let bytes = keys.iter().map(|key| key.as_ref().len()).sum::<usize>()
            + args.iter().map(|arg| arg.as_ref().len()).sum::<usize>();
        let mut by_digest = Cmd::with_capacity(3 + keys.len() + args.len(), 60 + bytes);
        by_digest.arg("EVALSHA").arg(&script.sha).arg(keys.len());
        for key in keys {
            by_digest.arg(key.as_ref());
        }
        for arg in args {
            by_digest.arg(arg.as_ref());
        }
        Self { script, by_digest }
    }

    /// The same with the text in place of the digest: rare, so built only when asked for.
    pub(crate) fn by_text(&self) -> Cmd {
        let mut by_text = Cmd::new();
        by_text.arg("EVAL").arg(self.script.text.as_bytes());
        for arg in self.by_digest.args_iter().skip(2) {
            if let redis::Arg::Simple(arg) = arg {
                by_text.arg(arg);
            }
        }
        by_text
    }
}

/// When a call must be over.
#[derive(Clone, Copy)]
pub(crate) struct Deadline {
    /// Nothing is sent after this: too late to be answered, it would turn a known failure into an unknown one.
    pub(crate) send_by: Instant,
    pub(crate) answer_by: Instant,
}

impl Deadline {
    fn after(patience: Duration) -> Self {
        let answer_by = Instant::now() + patience;
        Self { send_by: answer_by - patience / 5, answer_by }
    }
}

/// The connection layer of a store. Cheap to ask from many tasks at once; dropping a call at any point is safe.
pub(crate) struct Link {
    topology: Topology,
    permits: Semaphore,
    settings: Settings,
}

enum Topology {
    Single(Arc<Node>),
    Sentinel(Sentinel),
    Cluster(Cluster),
}

impl Link {
    /// Connects and makes sure that someone answers, so that a wrong URL is an error now and not on the first call.
    pub(crate) async fn connect(url: &StoreUrl, settings: Settings) -> Result<Self, StoreError> {
        let tls = if url.tls { Some(Tls::new(url.ca.as_deref())?) } else { None };
        let dial = |address: &Address| Dial {
            address: address.clone(),
            login: url.login.clone(),
            tls: tls.clone(),
            timeout: settings.connect_timeout,
            queue: settings.in_flight.clamp(16, 1 << 16),
            master_only: false,
        };
        let topology = match &url.place {
            Place::Single(address) => {
                let node = Node::new(Dial { master_only: true, ..dial(address) }, None);
                // A little more than the attempt itself may take, so that its own words are heard.
                let patience = Instant::now() + settings.connect_timeout + Duration::from_millis(100);
                node.wire(patience).await.map_err(|fault| fault.into_store_error(address))?;
                Topology::Single(node)
            }
            Place::Cluster(seeds) => Topology::Cluster(Cluster::connect(seeds.iter().map(dial).collect()).await?),
            Place::Sentinel { sentinels, master, login } => {
                let watchers = sentinels.iter().map(|address| Dial { login: login.clone(), ..dial(address) });
                let servers = Dial { master_only: true, ..dial(&sentinels[0]) };
                Topology::Sentinel(Sentinel::connect(watchers.collect(), master.clone(), servers).await?)
            }
        };
        let permits = Semaphore::new(settings.in_flight.clamp(1, Semaphore::MAX_PERMITS));
        Ok(Self { topology, permits, settings })
    }

    /// Runs a script over keys that share a slot. At most one run of it takes effect: what may have been charged is never
    /// sent again.
    pub(crate) async fn run<K, A>(&self, script: &Script, keys: &[K], args: &[A]) -> Result<Value, StoreError>
    where
        K: AsRef<[u8]>,
        A: AsRef<[u8]>,
    {
        let deadline = Deadline::after(self.settings.deadline);
        let call = Call::new(script, keys, args);
        let slot = match &self.topology {
            Topology::Cluster(_) => keys.first().map_or(0, |key| slot_of(key.as_ref())),
            Topology::Single(_) | Topology::Sentinel(_) => 0,
        };
        let _permit = self.admit(deadline.send_by).await?;
        self.pursue(&call, slot, deadline).await
    }

    async fn admit(&self, until: Instant) -> Result<SemaphorePermit<'_>, StoreError> {
        if let Ok(permit) = self.permits.try_acquire() {
            return Ok(permit);
        }
        match timeout_at(until, self.permits.acquire()).await {
            // A free place is seen before the time is: on a stalled machine both come at once, too late to send.
            Ok(Ok(permit)) if Instant::now() < until => Ok(permit),
            _ => Err(StoreError::Overloaded { in_flight: self.settings.in_flight }),
        }
    }

    /// The retry table: only what proves that nothing was charged is asked again.
    async fn pursue(&self, call: &Call<'_>, slot: u16, deadline: Deadline) -> Result<Value, StoreError> {
        let mut redirected: Option<(Arc<Node>, bool)> = None;
        let mut hops = 0_u32;
        let mut was_read_only = false;
        loop {
            let (node, importing) = match redirected.take() {
                Some(redirected) => redirected,
                None => match self.node(slot) {
                    Some(node) => (node, false),
                    None => {
                        if pause(deadline.send_by).await {
                            continue;
                        }
                        let reason = format!("no server of the cluster serves slot {slot}");
                        return Err(StoreError::Unavailable { reason });
                    }
                },
            };
            let fault = match node.run(call, importing, deadline).await {
                Ok(value) => return Ok(value),
                Err(fault) => fault,
            };
            let again = match (&fault, &self.topology) {
                (Fault::Moved { slot, address }, Topology::Cluster(cluster)) => {
                    hops += 1;
                    redirected = cluster.moved(*slot, address, node.address()).map(|node| (node, false));
                    hops < HOPS || pause(deadline.send_by).await
                }
                (Fault::Ask { address, .. }, Topology::Cluster(cluster)) => {
                    hops += 1;
                    redirected = cluster.at(address, node.address()).map(|node| (node, true));
                    hops < HOPS || pause(deadline.send_by).await
                }
                (Fault::Moved { address, .. } | Fault::Ask { address, .. }, _) => {
                    return Err(StoreError::Refused {
                        reason: format!("{} keeps this key at {address}", node.address()),
                        remedy: "the server is part of a cluster: write redis+cluster://host:port".into(),
                    });
                }
                (Fault::TryAgain, _) => pause(deadline.send_by).await,
                (Fault::NotReady(_) | Fault::NotSent(_), _) => {
                    self.look_again();
                    pause(deadline.send_by).await
                }
                (Fault::ReadOnly(_), topology) if !was_read_only => {
                    was_read_only = true;
                    match topology {
                        Topology::Single(_) => true,
                        Topology::Sentinel(sentinel) => sentinel.renew(deadline.send_by).await,
                        Topology::Cluster(cluster) => cluster.renew(deadline.send_by).await,
                    }
                }
                (Fault::Lost(_) | Fault::TimedOut(_), _) => {
                    self.look_again();
                    false
                }
                _ => false,
            };
            if !again || Instant::now() >= deadline.send_by {
                return Err(fault.into_store_error(node.address()));
            }
        }
    }

    fn node(&self, slot: u16) -> Option<Arc<Node>> {
        match &self.topology {
            Topology::Single(node) => Some(Arc::clone(node)),
            Topology::Sentinel(sentinel) => Some(sentinel.master()),
            Topology::Cluster(cluster) => cluster.owner(slot),
        }
    }

    /// Has someone else find out whether the servers have changed.
    fn look_again(&self) {
        match &self.topology {
            Topology::Single(_) => {}
            Topology::Sentinel(sentinel) => sentinel.look_again(),
            Topology::Cluster(cluster) => cluster.look_again(),
        }
    }

    pub(crate) fn is_cluster(&self) -> bool {
        matches!(self.topology, Topology::Cluster(_))
    }

    /// Whether one script may take both keys.
    pub(crate) fn same_slot(&self, a: &[u8], b: &[u8]) -> bool {
        !self.is_cluster() || slot_of(a) == slot_of(b)
    }

    /// Every master, for the plain commands of operators.
    pub(crate) async fn masters(&self) -> Result<Vec<Server>, StoreError> {
        let nodes = match &self.topology {
            Topology::Single(node) => vec![Arc::clone(node)],
            Topology::Sentinel(sentinel) => vec![sentinel.master()],
            Topology::Cluster(cluster) => {
                cluster.renew(Instant::now() + self.settings.connect_timeout).await;
                cluster.masters()
            }
        };
        let timeout = self.settings.command_timeout;
        Ok(nodes.iter().map(|node| Server { node: node.apart(self.settings.connect_timeout), timeout }).collect())
    }
}

/// Waits 1 to 5 ms; false if the deadline comes first.
async fn pause(deadline: Instant) -> bool {
    let until = Instant::now() + jitter(Duration::from_millis(1), Duration::from_millis(5));
    sleep_until(until.min(deadline)).await;
    until < deadline
}

/// One master, over a connection of its own: an operator's scan delays no decision.
pub(crate) struct Server {
    pub(crate) node: Arc<Node>,
    /// For one command, or for several sent at once.
    pub(crate) timeout: Duration,
}

impl Server {
    pub(crate) fn address(&self) -> String {
        self.node.address().to_string()
    }

    pub(crate) async fn ask(&self, command: &Cmd) -> Result<Value, StoreError> {
        self.node
            .ask(command, Instant::now() + self.timeout)
            .await
            .map_err(|fault| fault.into_store_error(self.node.address()))
    }
}
