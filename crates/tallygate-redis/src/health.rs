//! Which servers of a store answer, and so which share of the keys is served.

use tallygate::StoreError;
use tokio::task::JoinSet;

use crate::connection::SLOTS;
use crate::store::RedisStore;

/// The servers of a store, and whether each is up. A server is down once it could not be connected to, or was not ready, for
/// a deadline, or has answered nothing in time for 200 ms. Then calls to it fail at once, until it answers a probe within the
/// deadline.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Health {
    /// One server, or the masters of a cluster.
    pub servers: Vec<ServerHealth>,
}

/// One server of a store.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerHealth {
    /// Its host and port.
    pub address: String,
    /// How many of the 16,384 hash slots it has. Without a cluster, all.
    pub slots: usize,
    /// The error of calls to it, if it is down or refuses them.
    pub error: Option<StoreError>,
}

impl Health {
    /// The share of the hash slots that are served, from 0 to 1. Keys are spread evenly over the slots.
    pub fn served(&self) -> f64 {
        let up = self.servers.iter().filter(|server| server.error.is_none());
        let slots: usize = up.map(|server| server.slots).sum();
        #[expect(clippy::cast_precision_loss, reason = "at most 16,384")]
        let share = slots as f64 / SLOTS as f64;
        share
    }

    /// An error if no slot is served.
    pub fn any(&self) -> Result<(), StoreError> {
        if self.servers.iter().any(|server| server.error.is_none() && server.slots > 0) {
            return Ok(());
        }
        let first = self.servers.iter().find_map(|server| server.error.clone());
        Err(first.unwrap_or_else(|| StoreError::unavailable("no server has a slot")))
    }
}

impl RedisStore {
    /// What is known of the servers from the calls and probes so far.
    pub fn health(&self) -> Health {
        let servers = self.engine.client.servers().into_iter().map(|(node, slots)| ServerHealth {
            address: node.address().to_string(),
            slots,
            error: node.failure().map(|failure| failure.at(node.address())),
        });
        Health { servers: servers.collect() }
    }

    /// Probes every server at once, and waits for the answers. A store that is in use needs no probes; they find out about
    /// one that is not.
    pub async fn probe(&self) -> Health {
        let mut probes = JoinSet::new();
        for (node, _) in self.engine.client.servers() {
            if node.down().is_none() {
                probes.spawn(async move { drop(node.probe().await) });
            }
        }
        probes.join_all().await;
        self.health()
    }

    /// How many calls were dropped by their callers after they were sent. Each may have been charged.
    pub fn abandoned_calls(&self) -> u64 {
        self.engine.client.abandoned()
    }
}
