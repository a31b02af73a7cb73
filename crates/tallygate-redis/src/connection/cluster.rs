//! A cluster: which master owns which slot, learned from the servers and updated as slots move.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use redis::Value;
use tallygate::StoreError;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::conn::{ConnectOptions, Request};
use super::deadline::Deadline;
use super::failure::{Failure, NotSent, Redirect, none_of};
use super::node::Node;
use super::refresh::Refresh;
use super::topology::Route;
use crate::url::Address;

pub(crate) const SLOTS: usize = 16384;
const NO_OWNER: u16 = u16::MAX;
/// The slot map is read at most this often, however many calls find theirs outdated.
const REFRESH_INTERVAL: Duration = Duration::from_millis(20);
/// For one node to answer: one that hangs must not keep us from asking the next.
const REFRESH_TIMEOUT: Duration = Duration::from_millis(300);

/// CRC16/XMODEM over the hash tag of a key, or over all of it without one.
pub(crate) fn slot_of(key: &[u8]) -> u16 {
    let tag = key.iter().position(|b| *b == b'{').and_then(|open| {
        let tag = &key[open + 1..];
        tag.iter().position(|b| *b == b'}').filter(|length| *length > 0).map(|length| &tag[..length])
    });
    let mut crc = 0_u16;
    for byte in tag.unwrap_or(key) {
        crc = (crc << 8) ^ CRC16[usize::from((crc >> 8) ^ u16::from(*byte))];
    }
    crc % 16384
}

const CRC16: [u16; 256] = {
    let mut table = [0_u16; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = (byte as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

pub(crate) struct Cluster {
    shared: Arc<Shared>,
    /// Aborted when dropped.
    _task: JoinSet<()>,
}

struct Shared {
    /// Common to all nodes but for the address.
    options: ConnectOptions,
    seeds: Vec<Address>,
    nodes: Mutex<HashMap<Address, Arc<Node>>>,
    map: RwLock<SlotMap>,
    refresh: Refresh,
    turn: AtomicUsize,
}

struct SlotMap {
    /// For each slot the index of its master, or [`NO_OWNER`].
    owners: Vec<u16>,
    masters: Vec<Arc<Node>>,
}

impl SlotMap {
    fn empty() -> Self {
        Self { owners: vec![NO_OWNER; SLOTS], masters: Vec::new() }
    }

    fn assign(&mut self, first: usize, last: usize, node: &Arc<Node>) {
        let index = self.masters.iter().position(|master| Arc::ptr_eq(master, node)).unwrap_or_else(|| {
            self.masters.push(Arc::clone(node));
            self.masters.len() - 1
        });
        if let (Some(owners), Ok(index)) = (self.owners.get_mut(first..=last.min(SLOTS - 1)), u16::try_from(index)) {
            owners.fill(index);
        }
    }

    /// Gives each master a key of its own to be probed with.
    fn set_probe_tags(&self) {
        for (index, master) in self.masters.iter().enumerate() {
            let slot = self.owners.iter().position(|owner| usize::from(*owner) == index);
            if let Some(slot) = slot {
                master.set_probe_tag(&tag_of(slot));
            }
        }
    }
}

impl Cluster {
    pub(crate) async fn connect(seeds: &[Address], options: ConnectOptions) -> Result<Self, StoreError> {
        let shared = Arc::new(Shared {
            options,
            seeds: seeds.to_vec(),
            nodes: Mutex::default(),
            map: RwLock::new(SlotMap::empty()),
            refresh: Refresh::new(),
            turn: AtomicUsize::new(0),
        });
        shared.read_map(shared.options.timeout).await?;
        let mut task = JoinSet::new();
        let refreshed = Arc::clone(&shared);
        task.spawn(async move {
            loop {
                refreshed.refresh.requested().notified().await;
                // A failed refresh leaves the old map, and the calls that need a newer one request another.
                drop(refreshed.read_map(REFRESH_TIMEOUT).await);
                sleep(REFRESH_INTERVAL).await;
            }
        });
        Ok(Self { shared, _task: task })
    }

    /// The master of a slot, as far as known.
    pub(crate) fn owner(&self, slot: u16) -> Option<Arc<Node>> {
        let owner = {
            let map = self.shared.map.read().unwrap_or_else(PoisonError::into_inner);
            map.owners.get(usize::from(slot)).and_then(|owner| map.masters.get(usize::from(*owner))).cloned()
        };
        if owner.is_none() {
            self.shared.refresh.request();
        }
        owner
    }

    /// Follows a redirection by `from`. A `MOVED` changes the owner of its slot at once, and has the rest of the map read
    /// again.
    pub(crate) fn redirect(&self, redirect: &Redirect, from: &Address) -> Option<Route> {
        let node = self.shared.node(&Address::named(&redirect.address, from)?);
        if !redirect.asking {
            let slot = usize::from(redirect.slot);
            self.shared.map.write().unwrap_or_else(PoisonError::into_inner).assign(slot, slot, &node);
            self.shared.refresh.request();
        }
        Some(Route { node, asking: redirect.asking })
    }

    pub(crate) fn refresher(&self) -> &Refresh {
        &self.shared.refresh
    }

    /// The masters that have slots, and how many.
    pub(crate) fn masters(&self) -> Vec<(Arc<Node>, usize)> {
        let map = self.shared.map.read().unwrap_or_else(PoisonError::into_inner);
        let mut slots = vec![0_usize; map.masters.len()];
        for owner in &map.owners {
            if let Some(slots) = slots.get_mut(usize::from(*owner)) {
                *slots += 1;
            }
        }
        map.masters.iter().cloned().zip(slots).filter(|(_, slots)| *slots > 0).collect()
    }
}

/// A hash tag whose slot is `slot`.
fn tag_of(slot: usize) -> String {
    static TAGS: OnceLock<Vec<u32>> = OnceLock::new();
    let tags = TAGS.get_or_init(|| {
        let mut tags = vec![u32::MAX; SLOTS];
        let mut left = SLOTS;
        for number in 0_u32.. {
            let tag = &mut tags[usize::from(slot_of(number.to_string().as_bytes()))];
            if *tag == u32::MAX {
                (*tag, left) = (number, left - 1);
            }
            if left == 0 {
                break;
            }
        }
        tags
    });
    tags[slot].to_string()
}

impl Shared {
    fn node(&self, address: &Address) -> Arc<Node> {
        let mut nodes = self.nodes();
        let node = nodes
            .entry(address.clone())
            .or_insert_with(|| Node::new(self.options.with_address(address.clone()), Some(self.refresh.requested())));
        Arc::clone(node)
    }

    fn nodes(&self) -> MutexGuard<'_, HashMap<Address, Arc<Node>>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks one node after the other until one knows the owners of the slots.
    async fn read_map(&self, patience: Duration) -> Result<(), StoreError> {
        let map = self.ask_for_map(patience).await?;
        map.set_probe_tags();
        *self.map.write().unwrap_or_else(PoisonError::into_inner) = map;
        // The map holds its masters, and a call the node it uses; the rest can go.
        self.nodes().retain(|address, node| self.seeds.contains(address) || Arc::strong_count(node) > 1);
        self.refresh.done();
        Ok(())
    }

    async fn ask_for_map(&self, patience: Duration) -> Result<SlotMap, StoreError> {
        let mut command = redis::cmd("CLUSTER");
        command.arg("SLOTS");
        let mut failed = Vec::new();
        for node in self.candidates() {
            let reply = node.send(Request::Command(&command), Deadline::for_reading(patience)).await;
            match reply.and_then(|reply| self.parse_map(&reply, node.address())) {
                Ok(map) => return Ok(map),
                Err(failure) => failed.push(failure.at(node.address())),
            }
        }
        Err(none_of("node of the cluster", failed))
    }

    /// The connected nodes first, then the seeds in their order, then the others. The start rotates, so that one node that
    /// the others have removed is not the only one to be asked.
    fn candidates(&self) -> Vec<Arc<Node>> {
        let known: Vec<Arc<Node>> = self.nodes().values().cloned().collect();
        let mut candidates: Vec<Arc<Node>> = known.iter().filter(|node| node.is_open()).cloned().collect();
        candidates.sort_by_cached_key(|node| node.address().to_string());
        if !candidates.is_empty() {
            let start = self.turn.fetch_add(1, Ordering::Relaxed) % candidates.len();
            candidates.rotate_left(start);
        }
        for node in self.seeds.iter().map(|seed| self.node(seed)).chain(known) {
            if !candidates.iter().any(|candidate| Arc::ptr_eq(candidate, &node)) {
                candidates.push(node);
            }
        }
        candidates
    }

    fn parse_map(&self, reply: &Value, from: &Address) -> Result<SlotMap, Failure> {
        let mut map = SlotMap::empty();
        for (first, last, address) in slot_ranges(reply, from) {
            map.assign(first, last, &self.node(&address));
        }
        if map.masters.is_empty() {
            return Err(Failure::NotSent(NotSent::NoSlots));
        }
        Ok(map)
    }
}

/// The slots of each master, from `[[first, last, [host, port, …], replica…]…]`. What does not look like that is left out.
pub(crate) fn slot_ranges(reply: &Value, from: &Address) -> impl Iterator<Item = (usize, usize, Address)> {
    array(reply).iter().filter_map(|range| {
        let [Value::Int(first), Value::Int(last), master, ..] = array(range) else { return None };
        let [host, Value::Int(port), ..] = array(master) else { return None };
        let host = match host {
            Value::BulkString(host) => String::from_utf8_lossy(host),
            _ => "".into(),
        };
        let address = Address::beside(&host, u16::try_from(*port).ok()?, from);
        Some((usize::try_from(*first).ok()?, usize::try_from(*last).ok()?, address))
    })
}

fn array(value: &Value) -> &[Value] {
    match value {
        Value::Array(parts) => parts,
        _ => &[],
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Cluster, SLOTS, slot_of, tag_of};
    use crate::connection::client::Settings;
    use crate::connection::topology::Topology;
    use crate::url::{Address, StoreUrl};

    /// A node that had left the cluster was kept, and probed for as long as the process lived.
    #[tokio::test]
    async fn a_node_that_left_the_cluster_is_forgotten() {
        let servers = tallygate_testkit::Cluster::start(tallygate_testkit::Flavour::Redis, 3, 0);
        let url: StoreUrl = servers.url().parse().unwrap();
        let topology = Topology::connect(&url, &Settings::default(), &std::sync::Arc::default()).await.unwrap();
        let Topology::Cluster(Cluster { shared, .. }) = &topology else { panic!("a cluster") };
        let gone = Address::Tcp { host: "127.0.0.1".to_owned(), port: 1 };
        shared.node(&gone);
        shared.read_map(Duration::from_secs(10)).await.unwrap();
        assert!(!shared.nodes().contains_key(&gone));
        assert_eq!(shared.nodes().len(), 3);
    }

    #[test]
    fn every_slot_has_a_tag() {
        for slot in 0..SLOTS {
            assert_eq!(usize::from(slot_of(tag_of(slot).as_bytes())), slot);
        }
    }

    #[test]
    fn slots_are_those_of_the_cluster_specification() {
        for (key, slot) in [
            (&b"123456789"[..], 0x31C3),
            (b"", 0),
            (b"foo", 12182),
            (b"{user1000}.following", slot_of(b"user1000")),
            (b"{user1000}.followers", slot_of(b"user1000")),
            (b"foo{{bar}}zap", slot_of(b"{bar")),
            (b"foo{bar}{zap}", slot_of(b"bar")),
        ] {
            assert_eq!(slot_of(key), slot, "{}", String::from_utf8_lossy(key));
        }
        // An empty or unclosed tag is not a tag.
        assert_ne!(slot_of(b"foo{}{bar}"), slot_of(b"bar"));
        assert_ne!(slot_of(b"foo{bar"), slot_of(b"bar"));
    }
}
