//! The master that sentinels monitor: found through them, and replaced when they name another.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use redis::{Cmd, Value};
use tallygate::StoreError;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::backoff::Backoff;
use super::conn::{ConnectOptions, Connection, Request};
use super::deadline::Deadline;
use super::failure::{Failure, Refusal, none_of};
use super::node::Node;
use super::refresh::Refresh;
use super::topology::PROBE_TAG;
use crate::url::Address;

/// How often the sentinels are polled: bounds how long a demoted master that still accepts writes is used.
const POLL: Duration = Duration::from_secs(1);
/// The shortest and the longest delay between two queries: sentinels may name a server that is down, or not yet a
/// master, for seconds.
const QUERY_BACKOFF: Backoff = Backoff::new(Duration::from_millis(20), Duration::from_millis(250));
const QUERY_TIMEOUT: Duration = Duration::from_millis(300);
const SUBSCRIBE_BACKOFF: Backoff = Backoff::new(POLL, Duration::from_secs(10));

pub(crate) struct Sentinel {
    shared: Arc<Shared>,
    /// Aborted when dropped.
    _tasks: JoinSet<()>,
}

struct Shared {
    sentinels: Vec<Arc<Node>>,
    name: String,
    /// How to connect to a master, but for its address.
    options: ConnectOptions,
    master: RwLock<Arc<Node>>,
    refresh: Refresh,
}

impl Sentinel {
    /// `name` is that of the master, `options` are for connecting to it.
    pub(crate) async fn connect(
        sentinels: Vec<ConnectOptions>,
        name: String,
        options: ConnectOptions,
    ) -> Result<Self, StoreError> {
        let refresh = Refresh::new();
        let nodes: Vec<Arc<Node>> = sentinels.iter().map(|options| Node::new(options.clone(), None)).collect();
        let address = query(&nodes, &name, options.timeout).await?;
        let master = RwLock::new(connect_master(&options, address, &refresh).await?);

        let shared = Arc::new(Shared { sentinels: nodes, name, options, master, refresh });
        let mut tasks = JoinSet::new();
        tasks.spawn(keep_current(Arc::clone(&shared)));
        for options in sentinels {
            tasks.spawn(listen(options, shared.name.clone(), shared.refresh.requested()));
        }
        Ok(Self { shared, _tasks: tasks })
    }

    /// The master, as far as known.
    pub(crate) fn master(&self) -> Arc<Node> {
        Arc::clone(&self.shared.master.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn refresher(&self) -> &Refresh {
        &self.shared.refresh
    }
}

async fn keep_current(shared: Arc<Shared>) {
    let mut backoff = QUERY_BACKOFF;
    loop {
        drop(timeout(POLL, shared.refresh.requested().notified()).await);
        if shared.update_master().await {
            backoff.reset();
        }
        shared.refresh.done();
        sleep(backoff.next()).await;
    }
}

impl Shared {
    /// Moves to the master that the sentinels name, once it says itself that it is one. Until then callers keep the old.
    async fn update_master(&self) -> bool {
        let Ok(address) = query(&self.sentinels, &self.name, QUERY_TIMEOUT).await else { return false };
        if *self.master.read().unwrap_or_else(PoisonError::into_inner).address() == address {
            return true;
        }
        let Ok(node) = connect_master(&self.options, address, &self.refresh).await else { return false };
        *self.master.write().unwrap_or_else(PoisonError::into_inner) = node;
        true
    }
}

async fn connect_master(
    options: &ConnectOptions,
    address: Address,
    refresh: &Refresh,
) -> Result<Arc<Node>, StoreError> {
    let node = Node::new(options.with_address(address), Some(refresh.requested()));
    node.set_probe_tag(PROBE_TAG);
    // A little more than the attempt may take, so that its own error is reported.
    let deadline = Instant::now() + options.timeout + QUERY_TIMEOUT;
    node.connection(deadline).await.map_err(|failure| failure.at(node.address()))?;
    Ok(node)
}

/// The master that the sentinel with the newest configuration names. All are asked: one that was cut off from the others
/// may still name a master demoted long ago, and its older epoch shows it.
async fn query(sentinels: &[Arc<Node>], name: &str, patience: Duration) -> Result<Address, StoreError> {
    let deadline = Deadline::for_reading(patience);
    let queries: Vec<_> =
        sentinels.iter().map(|node| tokio::spawn(query_one(Arc::clone(node), name.to_owned(), deadline))).collect();
    let mut best: Option<(u64, Address)> = None;
    let mut failed = Vec::new();
    for (query, node) in queries.into_iter().zip(sentinels) {
        match query.await {
            Ok(Ok(found)) if best.as_ref().is_none_or(|best| found.0 > best.0) => best = Some(found),
            Ok(Ok(_)) | Err(_) => {}
            Ok(Err(mut failure)) => {
                // The user and password before the `@` are for the master.
                if let Failure::Refused(Refusal::Login { to_sentinel, .. }) = &mut failure {
                    *to_sentinel = true;
                }
                failed.push(failure.at(node.address()));
            }
        }
    }
    best.map(|(_, address)| address).ok_or_else(|| none_of("sentinel", failed))
}

/// The master one sentinel names, and the epoch of its configuration.
async fn query_one(sentinel: Arc<Node>, name: String, deadline: Deadline) -> Result<(u64, Address), Failure> {
    let command = |verb: &str| -> Cmd {
        let mut command = redis::cmd("SENTINEL");
        command.arg(verb).arg(&name);
        command
    };
    let reply = sentinel.send(Request::Command(&command("get-master-addr-by-name")), deadline).await?;
    let Ok((host, port)) = redis::from_redis_value::<(String, String)>(reply) else {
        return Err(Failure::Refused(Refusal::UnknownMaster { name }));
    };
    let port = port.parse().map_err(|_| Failure::Corrupt(format!("{host} {port}")))?;
    let address = Address::beside(&host, port, sentinel.address());
    // During a failover this reply has the new epoch already, but still the old address: only the epoch is used.
    let details = sentinel.send(Request::Command(&command("master")), deadline).await.unwrap_or(Value::Nil);
    let details: HashMap<String, Value> = redis::from_redis_value(details).unwrap_or_default();
    let epoch = details.get("config-epoch").and_then(|epoch| redis::from_redis_value_ref(epoch).ok());
    Ok((epoch.unwrap_or(0), address))
}

/// Learns of a failover at once instead of at the next poll.
async fn listen(options: ConnectOptions, name: String, requested: Arc<Notify>) {
    let mut backoff = SUBSCRIBE_BACKOFF;
    loop {
        let (sender, mut messages) = mpsc::unbounded_channel();
        if let Ok(_connection) = Connection::subscribe(&options, sender, "+switch-master").await {
            backoff.reset();
            // What was published before is lost.
            requested.notify_one();
            // Ends with the connection.
            while let Some(message) = messages.recv().await {
                if concerns(&message, &name) {
                    requested.notify_one();
                }
            }
        }
        sleep(backoff.next()).await;
    }
}

/// `["message", channel, "master-name old-host old-port new-host new-port"]`.
fn concerns(message: &Value, name: &str) -> bool {
    let Value::Array(parts) = message else { return false };
    matches!(parts.last(), Some(Value::BulkString(text)) if String::from_utf8_lossy(text).split(' ').next() == Some(name))
}
