//! The processes of a round, and the states that it uses.

use std::sync::Mutex;
use std::time::Duration;

use tallygate::hold::OnAbandon;
use tallygate::{Key, Limit};
use tallygate_testkit::wait::{PATIENCE, until};
use tallygate_testkit::{Cluster, FaultProxy, Flavour, Sentinel, Server};

use crate::history::StateKey;
use crate::schedule::{Persistence, SPENT, Schedule, WorldKind};
use crate::served::Served;

/// The domain of all policies, and so the first part of their keys.
pub const DOMAIN: &str = "t";

/// The servers that hold states.
#[derive(Debug)]
pub enum Nodes {
    /// One server.
    One(Box<Server>),
    /// A master and its replicas.
    Sentinel(Box<Sentinel>),
    /// Masters, and perhaps replicas.
    Cluster(Box<Cluster>),
}

/// All of it.
#[derive(Debug)]
pub struct World {
    /// Where it came from.
    pub schedule: Schedule,
    /// Where the states are.
    pub nodes: Nodes,
    /// In front of a single server.
    pub proxy: Option<FaultProxy>,
    /// In front of the store.
    pub served: Option<Served>,
    /// The states that calls use; `key_of` finds one.
    pub keys: Vec<StateKey>,
    /// The slot of each state, in a cluster.
    slots: Vec<u16>,
    /// Subjects that callers prefer, while traffic is skewed.
    pub preferred: Mutex<Vec<usize>>,
}

impl World {
    /// Starts everything.
    ///
    /// # Panics
    /// When something does not come up.
    #[must_use]
    pub fn start(schedule: &Schedule) -> Self {
        let flavour = schedule.flavour;
        let nodes = match schedule.world {
            WorldKind::Standalone | WorldKind::Server => Nodes::One(Box::new(one(schedule))),
            WorldKind::Sentinel => Nodes::Sentinel(Box::new(Sentinel::with_replicas(flavour, schedule.replicas))),
            WorldKind::Cluster => Nodes::Cluster(Box::new(Cluster::start(flavour, 3, schedule.replicas))),
            WorldKind::Shards => Nodes::Cluster(Box::new(Cluster::start(flavour, 3, 0))),
        };
        let proxy = match &nodes {
            Nodes::One(server) if schedule.proxied => Some(FaultProxy::start(server.addr())),
            _ => None,
        };
        let keys = states(schedule);
        let slots = match &nodes {
            Nodes::Cluster(cluster) => keys.iter().map(|key| cluster.slot_of(encoded(key).as_bytes())).collect(),
            _ => Vec::new(),
        };
        let mut world =
            Self { schedule: schedule.clone(), nodes, proxy, served: None, keys, slots, preferred: Mutex::default() };
        world.configure();
        if schedule.served {
            world.served = Some(Served::start(&world.url(), schedule));
        }
        world
    }

    /// What callers connect to.
    #[must_use]
    pub fn url(&self) -> String {
        match (&self.nodes, &self.proxy) {
            (_, Some(proxy)) => proxy.url(),
            (Nodes::One(server), None) => server.url(),
            (Nodes::Sentinel(sentinel), None) => sentinel.url(),
            (Nodes::Cluster(cluster), None) => cluster.url(),
        }
    }

    /// The same without the proxy.
    #[must_use]
    pub fn direct_url(&self) -> String {
        match &self.nodes {
            Nodes::One(server) => server.url(),
            _ => self.url(),
        }
    }

    /// All servers that may hold states.
    #[must_use]
    pub fn servers(&self) -> &[Server] {
        match &self.nodes {
            Nodes::One(server) => std::slice::from_ref(server),
            Nodes::Sentinel(sentinel) => sentinel.servers(),
            Nodes::Cluster(cluster) => cluster.nodes(),
        }
    }

    /// Settings that a server forgets when it restarts.
    pub fn configure(&self) {
        for server in self.servers().iter().filter(|server| server.is_alive()) {
            let set = |name: &str, value: &str| drop(server.try_command(&["CONFIG", "SET", name, value]));
            set("busy-reply-threshold", "20");
            set("cluster-require-full-coverage", "no");
            if self.schedule.min_replicas && matches!(self.schedule.world, WorldKind::Sentinel | WorldKind::Cluster) {
                set("min-replicas-to-write", "1");
                set("min-replicas-max-lag", "2");
            }
        }
    }

    /// The index of the server that is `node` in a schedule: the only one, the master, or the current master of a third
    /// of the slots.
    #[must_use]
    pub fn master(&self, node: usize) -> usize {
        match &self.nodes {
            Nodes::One(_) => 0,
            Nodes::Sentinel(sentinel) => {
                let port = sentinel.master().port();
                sentinel.servers().iter().position(|server| server.port() == port).expect("one of them")
            }
            Nodes::Cluster(cluster) => cluster.node_of(middle(node)),
        }
    }

    /// The states on this server; `None` is all.
    #[must_use]
    pub fn keys_on(&self, server: usize) -> Option<Vec<usize>> {
        let Nodes::Cluster(cluster) = &self.nodes else { return None };
        let on = |&key: &usize| cluster.node_of(self.slots[key]) == server;
        Some((0..self.keys.len()).filter(on).collect())
    }

    /// A few slots with states, for moving them.
    #[must_use]
    pub fn slot(&self, key: usize) -> u16 {
        self.slots[key]
    }

    /// The index of a state of the load.
    #[must_use]
    pub fn key_of(&self, policy: usize, subject: usize) -> usize {
        policy * self.schedule.load.subjects + subject
    }

    /// The state that was used up before the round; its neighbours are the two that its calls would charge.
    #[must_use]
    pub fn spent(&self) -> usize {
        self.keys.len() - 3
    }

    /// The states that are only reserved from.
    pub fn held(&self) -> impl Iterator<Item = usize> {
        (0..self.keys.len()).filter(|&key| self.keys[key].holds.is_some())
    }

    /// Waits until a cluster or a pair is complete again.
    pub fn settle(&self) {
        if let Nodes::Cluster(cluster) = &self.nodes {
            cluster.wait_ok();
        }
        for server in self.servers() {
            until("every replica to synchronise", PATIENCE, || {
                let role = server.info("role")?;
                (role == "master" || server.info("master_link_status")? == "up").then_some(())
            });
        }
        self.configure();
    }
}

/// A slot in the middle of what the `node`th master of three had at the start.
#[must_use]
pub fn middle(node: usize) -> u16 {
    u16::try_from(node * 16_384 / 3 + 2730).expect("a slot")
}

fn one(schedule: &Schedule) -> Server {
    let builder = Server::of(schedule.flavour).acl("user default on nopass ~* &* +@all").skewed_clock();
    let builder = match schedule.persistence {
        Persistence::None | Persistence::Rdb => builder,
        // With `everysec`, a server whose disk is busy answers up to two seconds before it writes.
        Persistence::Aof => builder.arg("--appendonly", "yes").arg("--appendfsync", "always"),
    };
    builder.start()
}

/// As the scripts name it in the server.
#[must_use]
pub fn encoded(key: &StateKey) -> String {
    let kind = key.limit.algorithm().kind();
    Key::new(&key.policy, &key.subject).expect("short names").encode("tallygate", kind)
}

/// The states that the calls of a schedule use.
#[must_use]
pub fn states(schedule: &Schedule) -> Vec<StateKey> {
    let load = &schedule.load;
    let mut keys = Vec::new();
    for (policy, limit) in load.limits.iter().enumerate() {
        for subject in 0..load.subjects {
            // Odd subjects are for calls of several subjects, where those are split.
            let split = schedule.world.is_cluster() && subject % 2 == 1;
            let (policy, subject) = (format!("{DOMAIN}/p{policy}"), format!("u=s{subject}"));
            keys.push(StateKey { policy, subject, limit: limit.clone(), split, holds: None });
        }
    }
    let day = Duration::from_secs(86_400);
    let log = |amount| {
        Limit::builder(amount, day).algorithm(tallygate::Algorithm::FixedWindowFromFirstCall).build().expect("common")
    };
    let named = |name: &str, subject: &str, limit| {
        // Judged by what is used at the end: their calls are denied and hang up.
        StateKey { policy: format!("{DOMAIN}/{name}"), subject: subject.to_owned(), limit, split: true, holds: None }
    };
    for (subject, on_abandon) in [OnAbandon::Charge, OnAbandon::Refund, OnAbandon::Charge].into_iter().enumerate() {
        let limit = Limit::builder(load.limits[0].amount(), day).algorithm(load.limits[0].algorithm());
        let limit = limit.build().expect("a common limit");
        keys.push(StateKey { holds: Some(on_abandon), ..named("held", &format!("h={subject}"), limit) });
    }
    keys.push(named(SPENT, "a=attacker", log(1)));
    keys.push(named("shared", "tenant=acme", log(1_000_000)));
    keys.push(named("shared_quota", "tenant=acme", log(1_000_000)));
    keys
}

/// Whether this kind of server is there.
#[must_use]
pub fn has_valkey() -> bool {
    tallygate_testkit::valkey_available() && std::panic::catch_unwind(|| Flavour::Valkey.binary()).is_ok()
}
