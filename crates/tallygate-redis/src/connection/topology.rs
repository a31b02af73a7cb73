//! Where the servers of a store are: one server, a master that sentinels monitor, or a cluster.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use tokio::time::Instant;

use super::client::Settings;
use super::cluster::{Cluster, SLOTS, slot_of};
use super::conn::ConnectOptions;
use super::failure::{Failure, Redirect, Refusal};
use super::node::Node;
use super::refresh::Refresh;
use super::sentinel::Sentinel;
use super::tls::Tls;
use crate::builder::ConnectError;
use crate::url::{Address, Place, StoreUrl};

/// The hash tag of the key that probes name, where any is right.
pub(crate) const PROBE_TAG: &str = "probe";

pub(crate) enum Topology {
    Single(Arc<Node>),
    Sentinel(Sentinel),
    Cluster(Cluster),
}

/// Where to send a command.
pub(crate) struct Route {
    pub(crate) node: Arc<Node>,
    /// Whether the node is still importing the slot and wants `ASKING` first.
    pub(crate) asking: bool,
}

impl Topology {
    /// Connects, so that a wrong URL is an error now and not on the first call.
    pub(crate) async fn connect(
        url: &StoreUrl,
        settings: &Settings,
        abandoned: &Arc<AtomicU64>,
    ) -> Result<Self, ConnectError> {
        let prefix: Arc<str> = settings.prefix.as_str().into();
        let tls = if url.tls { Some(Tls::new(url.ca.as_deref())?) } else { None };
        let options = |address: &Address| ConnectOptions {
            address: address.clone(),
            login: url.login.clone(),
            tls: tls.clone(),
            timeout: settings.connect_timeout,
            deadline: settings.deadline,
            in_flight: settings.in_flight,
            prefix: Arc::clone(&prefix),
            abandoned: Arc::clone(abandoned),
            master_only: !matches!(url.place, Place::Cluster(_)),
        };
        Ok(match &url.place {
            Place::Single(address) => {
                let node = Node::new(options(address), None);
                node.set_probe_tag(PROBE_TAG);
                // A little more than the attempt may take, so that its own error is reported.
                let deadline = Instant::now() + settings.connect_timeout + Duration::from_millis(100);
                node.connection(deadline).await.map_err(|failure| failure.at(address))?;
                Self::Single(node)
            }
            Place::Cluster(seeds) => Self::Cluster(Cluster::connect(seeds, options(&seeds[0])).await?),
            Place::Sentinel { sentinels, master, login } => {
                let sentinel = |address| {
                    let login = login.clone();
                    ConnectOptions { login, master_only: false, ..options(address) }
                };
                let watchers = sentinels.iter().map(sentinel).collect();
                Self::Sentinel(Sentinel::connect(watchers, master.clone(), options(&sentinels[0])).await?)
            }
        })
    }

    /// The slot of a key; without a cluster there is only one.
    pub(crate) fn slot(&self, key: &[u8]) -> u16 {
        if self.is_cluster() { slot_of(key) } else { 0 }
    }

    pub(crate) fn is_cluster(&self) -> bool {
        matches!(self, Self::Cluster(_))
    }

    /// The owner of a slot, as far as known.
    pub(crate) fn route(&self, slot: u16) -> Option<Route> {
        let node = match self {
            Self::Single(node) => Arc::clone(node),
            Self::Sentinel(sentinel) => sentinel.master(),
            Self::Cluster(cluster) => cluster.owner(slot)?,
        };
        Some(Route { node, asking: false })
    }

    /// The node that `from` points to; `None` if its address is invalid.
    pub(crate) fn redirect(&self, redirect: &Redirect, from: &Address) -> Result<Option<Route>, Failure> {
        match self {
            Self::Cluster(cluster) => Ok(cluster.redirect(redirect, from)),
            Self::Single(_) | Self::Sentinel(_) => {
                Err(Failure::Refused(Refusal::ClusterNode { owner: redirect.address.clone() }))
            }
        }
    }

    /// Starts a background check of whether the servers have changed.
    pub(crate) fn refresh(&self) {
        if let Some(refresh) = self.refresher() {
            refresh.request();
        }
    }

    /// Like [`refresh`](Self::refresh), and waits for it. Returns false if the deadline comes first.
    pub(crate) async fn refreshed(&self, deadline: Instant) -> bool {
        match self.refresher() {
            Some(refresh) => refresh.wait(deadline).await,
            None => true,
        }
    }

    /// The servers that calls go to, each with its number of slots. Without a cluster, the one server has all.
    pub(crate) fn servers(&self) -> Vec<(Arc<Node>, usize)> {
        match self {
            Self::Single(node) => vec![(Arc::clone(node), SLOTS)],
            Self::Sentinel(sentinel) => vec![(sentinel.master(), SLOTS)],
            Self::Cluster(cluster) => cluster.masters(),
        }
    }

    fn refresher(&self) -> Option<&Refresh> {
        match self {
            Self::Single(_) => None,
            Self::Sentinel(sentinel) => Some(sentinel.refresher()),
            Self::Cluster(cluster) => Some(cluster.refresher()),
        }
    }
}
