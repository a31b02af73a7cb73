//! A real cluster, built with commands alone: no `redis-cli` needed.

use std::ops::RangeInclusive;

use crate::find::Flavour;
use crate::resp::Reply;
use crate::server::{Server, field};
use crate::wait::{PATIENCE, until};

const SLOTS: u32 = 16_384;

/// Masters first, then the replicas: `nodes()[masters + i * replicas_per_master ..]` start as replicas of master `i`.
#[derive(Debug)]
pub struct Cluster {
    nodes: Vec<Server>,
    ids: Vec<String>,
}

impl Cluster {
    /// Starts the cluster, with slots evenly assigned, and waits until every node reports it ok.
    ///
    /// # Panics
    /// When it does not come up.
    #[must_use]
    pub fn start(flavour: Flavour, masters: usize, replicas_per_master: usize) -> Self {
        let count = masters * (1 + replicas_per_master);
        let nodes: Vec<Server> = (0..count).map(|_| Server::of(flavour).cluster().start()).collect();
        let ids = nodes.iter().map(|node| node.command(&["CLUSTER", "MYID"]).ok().text()).collect();
        let cluster = Self { nodes, ids };
        for (index, node) in cluster.nodes.iter().enumerate() {
            // Distinct from the start: otherwise the nodes first have to resolve conflicts.
            run(node, &["CLUSTER", "SET-CONFIG-EPOCH", &(index + 1).to_string()]);
            if index < masters {
                let slots = share(index, masters);
                let (first, last) = (slots.start().to_string(), slots.end().to_string());
                run(node, &["CLUSTER", "ADDSLOTSRANGE", &first, &last]);
            }
        }
        cluster.meet();
        for index in masters..count {
            let master = &cluster.ids[(index - masters) / replicas_per_master];
            // Refused until gossip has brought the master's name.
            until("a replica to know its master", PATIENCE, || {
                let reply = cluster.nodes[index].command(&["CLUSTER", "REPLICATE", master]);
                (!reply.is_error()).then_some(())
            });
        }
        for replica in &cluster.nodes[masters..] {
            until("a replica to synchronise", PATIENCE, || (replica.info("master_link_status")? == "up").then_some(()));
        }
        cluster.wait_ok();
        cluster
    }

    fn meet(&self) {
        let (first, rest) = self.nodes.split_first().expect("at least one master");
        for node in rest {
            let port = node.port().to_string();
            let bus = node.bus_port().expect("a cluster node").to_string();
            run(first, &["CLUSTER", "MEET", "127.0.0.1", &port, &bus]);
        }
        let count = self.nodes.len().to_string();
        for node in &self.nodes {
            until("the nodes to meet", PATIENCE, || {
                (cluster_info(node, "cluster_known_nodes")? == count).then_some(())
            });
        }
    }

    /// `redis+cluster://host:port,host:port,…`: every node.
    #[must_use]
    pub fn url(&self) -> String {
        let addrs: Vec<_> = self.nodes.iter().map(|node| node.addr().to_string()).collect();
        format!("redis+cluster://{}", addrs.join(","))
    }

    /// All nodes, in the order of their start, whatever their current role.
    #[must_use]
    pub fn nodes(&self) -> &[Server] {
        &self.nodes
    }

    /// Waits until every live node reports the cluster ok and no other live node as failing, and all report the same owners
    /// and epochs. (A node that takes over a slot before it knows the last epoch would claim it with one that the others
    /// reject; and one that still takes another for dead finds itself in a minority when a third dies.)
    ///
    /// # Panics
    /// When that does not come.
    pub fn wait_ok(&self) {
        until("cluster_state:ok everywhere", PATIENCE, || {
            let mut owners = None;
            for node in self.nodes.iter().filter(|node| node.is_alive()) {
                if cluster_info(node, "cluster_state")? != "ok" {
                    return None;
                }
                let seen = (self.owners(node)?, self.epochs(node)?);
                if owners.get_or_insert_with(|| seen.clone()) != &seen {
                    return None;
                }
            }
            Some(())
        });
    }

    /// The index of the node that serves this slot, according to the first live node.
    ///
    /// # Panics
    /// When no node serves it.
    #[must_use]
    pub fn node_of(&self, slot: u16) -> usize {
        until("a node to serve the slot", PATIENCE, || {
            let node = self.nodes.iter().find(|node| node.is_alive())?;
            let owners = self.owners(node)?;
            let owner = owners.iter().find(|(range, _)| range.contains(&i64::from(slot)));
            owner.map(|(_, index)| *index)
        })
    }

    /// The slot of a key, as the server computes it.
    #[must_use]
    pub fn slot_of(&self, key: &[u8]) -> u16 {
        let node = self.nodes.iter().find(|node| node.is_alive());
        let reply = node.expect("a live node").command(&[b"CLUSTER".as_slice(), b"KEYSLOT", key]);
        u16::try_from(reply.int()).expect("a slot fits")
    }

    /// Moves a slot with its keys to a master while clients keep using it.
    pub fn move_slot(&self, slot: u16, to: usize) {
        let from = self.node_of(slot);
        if from == to {
            return;
        }
        self.begin_move(slot, from, to);
        while self.move_keys(slot, from, to, 100) > 0 {}
        self.end_move(slot, from, to);
    }

    /// Begins the migration: from here on absent keys are answered with `ASK`.
    pub fn begin_move(&self, slot: u16, from: usize, to: usize) {
        let slot = slot.to_string();
        let setslot = |node: usize, state: &str, other: usize| {
            run(&self.nodes[node], &["CLUSTER", "SETSLOT", &slot, state, &self.ids[other]]);
        };
        setslot(to, "IMPORTING", from);
        setslot(from, "MIGRATING", to);
    }

    /// Moves up to `count` keys of an open migration. Returns how many were moved.
    pub fn move_keys(&self, slot: u16, from: usize, to: usize, count: usize) -> usize {
        let (source, target) = (&self.nodes[from], &self.nodes[to]);
        let (slot, count) = (slot.to_string(), count.to_string());
        let keys = run(source, &["CLUSTER", "GETKEYSINSLOT", &slot, &count]);
        let port = target.port().to_string();
        let head = ["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"];
        let mut migrate: Vec<Vec<u8>> = head.map(|word| word.as_bytes().to_vec()).into();
        migrate.extend(keys.items().iter().map(|key| match key {
            Reply::Bulk(bytes) => bytes.clone(),
            other => panic!("not a key: {other:?}"),
        }));
        if !keys.items().is_empty() {
            // NOKEY, if the keys have expired in the meantime, is not an error.
            let _ = source.command(&migrate).ok();
        }
        keys.items().len()
    }

    /// Ends the migration: the new owner first, so that the slot is never without one.
    pub fn end_move(&self, slot: u16, from: usize, to: usize) {
        let slot_text = slot.to_string();
        let assign = ["CLUSTER", "SETSLOT", &slot_text, "NODE", &self.ids[to]];
        run(&self.nodes[to], &assign);
        run(&self.nodes[from], &assign);
        for (index, node) in self.nodes.iter().enumerate() {
            if index != from && index != to {
                // Replicas refuse; a dead node will learn it by gossip.
                let _ = node.try_command(&assign);
            }
        }
        self.wait_ok();
    }

    /// Fails master `index` over to one of its replicas. Returns the index of the new master.
    ///
    /// # Panics
    /// When it has no live replica.
    pub fn failover(&self, index: usize) -> usize {
        let replica = self.replica_of(index).expect("a live replica");
        self.take_over(replica, &["CLUSTER", "FAILOVER"]);
        replica
    }

    /// Lets a replica of master `index` take over without asking anyone: what it had not received is lost. Returns the
    /// index of the new master.
    ///
    /// # Panics
    /// When it has no live replica.
    pub fn take_over_from(&self, index: usize) -> usize {
        let replica = self.replica_of(index).expect("a live replica");
        self.take_over(replica, &["CLUSTER", "FAILOVER", "TAKEOVER"]);
        replica
    }

    /// Waits until a replica has taken over from a killed master. Returns the index of the new master.
    ///
    /// # Panics
    /// When none does.
    pub fn wait_for_takeover(&self, killed: usize, slot: u16) -> usize {
        until("a replica to take over", PATIENCE, || {
            let owner = self.node_of(slot);
            (owner != killed).then_some(owner)
        })
    }

    fn take_over(&self, replica: usize, command: &[&str]) {
        let node = &self.nodes[replica];
        until("the replica to become master", PATIENCE, || {
            if node.info("role")? == "master" {
                return Some(());
            }
            // Repeated: the master may refuse while a failover is in progress, and the request then lapses.
            let _ = node.try_command(command);
            std::thread::sleep(std::time::Duration::from_millis(200));
            None
        });
        self.wait_ok();
    }

    fn replica_of(&self, master: usize) -> Option<usize> {
        let port = self.nodes[master].port().to_string();
        self.nodes.iter().position(|node| {
            node.is_alive()
                && node.info("role").as_deref() == Some("slave")
                && node.info("master_port").as_deref() == Some(port.as_str())
        })
    }

    /// The configuration epoch of each live node, if none of them is thought to fail.
    fn epochs(&self, node: &Server) -> Option<Vec<String>> {
        let nodes = node.try_command(&["CLUSTER", "NODES"]).ok()?.text();
        let alive = self.ids.iter().zip(&self.nodes).filter(|(_, node)| node.is_alive());
        let epoch = |id: &str| {
            let fields: Vec<&str> = nodes.lines().find(|line| line.starts_with(id))?.split(' ').collect();
            if fields.get(2)?.contains("fail") { None } else { fields.get(6).map(|epoch| (*epoch).to_owned()) }
        };
        alive.map(|(id, _)| epoch(id)).collect()
    }

    /// Slot ranges with the index of their master, in order.
    fn owners(&self, node: &Server) -> Option<Vec<(RangeInclusive<i64>, usize)>> {
        let reply = node.try_command(&["CLUSTER", "SLOTS"]).ok()?;
        if reply.is_error() {
            return None;
        }
        let mut owners = Vec::new();
        for row in reply.items() {
            let [first, last, master, ..] = row.items() else {
                panic!("CLUSTER SLOTS answered {row:?}");
            };
            let id = master.items().get(2)?.text();
            let index = self.ids.iter().position(|known| *known == id)?;
            owners.push((first.int()..=last.int(), index));
        }
        owners.sort_by_key(|(range, _)| *range.start());
        Some(owners)
    }
}

fn share(index: usize, masters: usize) -> RangeInclusive<u32> {
    let bound = |index: usize| {
        let index = u32::try_from(index).expect("few masters");
        index * SLOTS / u32::try_from(masters).expect("few masters")
    };
    bound(index)..=bound(index + 1) - 1
}

fn run(node: &Server, args: &[&str]) -> Reply {
    node.command(args).ok()
}

fn cluster_info(node: &Server, name: &str) -> Option<String> {
    field(&node.try_command(&["CLUSTER", "INFO"]).ok()?.text(), name)
}
