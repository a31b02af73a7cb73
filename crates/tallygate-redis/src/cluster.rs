//! A cluster: which master serves which slot, learnt from the servers and followed as slots move.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use redis::Value;
use tallygate::StoreError;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep};

use crate::fault::{Fault, none_of};
use crate::lookout::Lookout;
use crate::node::Node;
use crate::url::Address;
use crate::wire::Dial;

const SLOTS: usize = 16384;
const NOBODY: u16 = u16::MAX;
/// A slot map is asked for at most this often, however many calls find theirs outdated.
const BETWEEN_LOOKS: Duration = Duration::from_millis(20);
/// One hung server must not keep us from asking the next.
const LOOK: Duration = Duration::from_millis(300);

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
    watch: AbortHandle,
}

struct Shared {
    /// What every node has in common; its address is replaced.
    dial: Dial,
    seeds: Vec<Address>,
    nodes: Mutex<HashMap<Address, Arc<Node>>>,
    map: RwLock<Map>,
    lookout: Lookout,
    turn: AtomicUsize,
}

struct Map {
    /// For each slot the index of its master, or [`NOBODY`].
    owners: Vec<u16>,
    masters: Vec<Arc<Node>>,
}

impl Map {
    fn empty() -> Self {
        Self { owners: vec![NOBODY; SLOTS], masters: Vec::new() }
    }

    fn assign(&mut self, first: usize, last: usize, node: &Arc<Node>) {
        let known = self.masters.iter().position(|master| Arc::ptr_eq(master, node)).unwrap_or_else(|| {
            self.masters.push(Arc::clone(node));
            self.masters.len() - 1
        });
        if let (Some(owners), Ok(known)) = (self.owners.get_mut(first..=last.min(SLOTS - 1)), u16::try_from(known)) {
            owners.fill(known);
        }
    }
}

impl Cluster {
    /// `seeds` is not empty: the URL has a host at least.
    pub(crate) async fn connect(seeds: Vec<Dial>) -> Result<Self, StoreError> {
        let addresses: Vec<Address> = seeds.iter().map(|seed| seed.address.clone()).collect();
        let dial = seeds.into_iter().next().ok_or_else(|| StoreError::Refused {
            reason: "the cluster has no address".into(),
            remedy: "name a node: redis+cluster://host:port".into(),
        })?;
        let shared = Arc::new(Shared {
            seeds: addresses,
            nodes: Mutex::default(),
            map: RwLock::new(Map::empty()),
            lookout: Lookout::new(),
            turn: AtomicUsize::new(0),
            dial,
        });
        shared.look(shared.dial.timeout).await?;
        let (weak, wanted) = (Arc::downgrade(&shared), shared.lookout.wanted());
        let watch = tokio::spawn(async move {
            loop {
                wanted.notified().await;
                let Some(shared) = weak.upgrade() else { return };
                // A failed look leaves the old map, and the calls that need a newer one ask again.
                drop(shared.look(LOOK).await);
                drop(shared);
                sleep(BETWEEN_LOOKS).await;
            }
        });
        Ok(Self { shared, watch: watch.abort_handle() })
    }

    /// The master of a slot, as far as we know.
    pub(crate) fn owner(&self, slot: u16) -> Option<Arc<Node>> {
        let owner = {
            let map = self.shared.map.read().unwrap_or_else(PoisonError::into_inner);
            map.owners.get(usize::from(slot)).and_then(|owner| map.masters.get(usize::from(*owner))).cloned()
        };
        if owner.is_none() {
            self.look_again();
        }
        owner
    }

    /// Takes a `MOVED` at its word for this one slot, and has the rest of the map read anew.
    pub(crate) fn moved(&self, slot: u16, address: &str, said_by: &Address) -> Option<Arc<Node>> {
        let node = self.at(address, said_by)?;
        {
            let mut map = self.shared.map.write().unwrap_or_else(PoisonError::into_inner);
            map.assign(usize::from(slot), usize::from(slot), &node);
        }
        self.look_again();
        Some(node)
    }

    /// The node at an address that another node named.
    pub(crate) fn at(&self, address: &str, said_by: &Address) -> Option<Arc<Node>> {
        Some(self.shared.node(&Address::named(address, said_by)?))
    }

    pub(crate) fn look_again(&self) {
        self.shared.lookout.look_again();
    }

    /// Has the map read anew and waits for it; false if the deadline comes first.
    pub(crate) async fn renew(&self, deadline: Instant) -> bool {
        self.shared.lookout.renew(deadline).await
    }

    pub(crate) fn masters(&self) -> Vec<Arc<Node>> {
        let map = self.shared.map.read().unwrap_or_else(PoisonError::into_inner);
        let mut serving = vec![false; map.masters.len()];
        for owner in &map.owners {
            if let Some(serving) = serving.get_mut(usize::from(*owner)) {
                *serving = true;
            }
        }
        map.masters.iter().zip(serving).filter(|(_, serving)| *serving).map(|(node, _)| Arc::clone(node)).collect()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.watch.abort();
    }
}

impl Shared {
    fn node(&self, address: &Address) -> Arc<Node> {
        let mut nodes = self.nodes();
        let node = nodes.entry(address.clone()).or_insert_with(|| {
            let dial = Dial { address: address.clone(), ..self.dial.clone() };
            Node::new(dial, Some(self.lookout.wanted()))
        });
        Arc::clone(node)
    }

    fn nodes(&self) -> MutexGuard<'_, HashMap<Address, Arc<Node>>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks one node after the other until one tells who serves what.
    async fn look(&self, patience: Duration) -> Result<(), StoreError> {
        let mut command = redis::cmd("CLUSTER");
        command.arg("SLOTS");
        let mut failed = Vec::new();
        for node in self.candidates() {
            let found = node.ask(&command, Instant::now() + patience).await.and_then(|reply| self.read(&reply, &node));
            match found {
                Ok(map) => {
                    *self.map.write().unwrap_or_else(PoisonError::into_inner) = map;
                    // The map holds its masters, a call holds the one it asks; who is held by nobody else may go.
                    self.nodes().retain(|address, node| self.seeds.contains(address) || Arc::strong_count(node) > 1);
                    self.lookout.has_looked();
                    return Ok(());
                }
                Err(fault) => failed.push(fault.into_store_error(node.address())),
            }
        }
        Err(none_of("node of the cluster", failed))
    }

    /// Those we are connected to first, then the seeds in their order. The start moves on each time, lest we listen for
    /// ever to one node that the others have cast out.
    fn candidates(&self) -> Vec<Arc<Node>> {
        let mut candidates: Vec<Arc<Node>> = self.nodes().values().filter(|node| node.is_open()).cloned().collect();
        candidates.sort_by_cached_key(|node| node.address().to_string());
        if !candidates.is_empty() {
            let start = self.turn.fetch_add(1, Ordering::Relaxed) % candidates.len();
            candidates.rotate_left(start);
        }
        for seed in self.seeds.iter().map(|seed| self.node(seed)) {
            if !candidates.iter().any(|known| Arc::ptr_eq(known, &seed)) {
                candidates.push(seed);
            }
        }
        let known: Vec<Arc<Node>> = self.nodes().values().cloned().collect();
        for node in known {
            if !candidates.iter().any(|known| Arc::ptr_eq(known, &node)) {
                candidates.push(node);
            }
        }
        candidates
    }

    /// `[[first, last, [host, port, …], replica…]…]`.
    fn read(&self, reply: &Value, said_by: &Arc<Node>) -> Result<Map, Fault> {
        let mut map = Map::empty();
        for range in array(reply) {
            let range = array(range);
            let [Value::Int(first), Value::Int(last), master, ..] = range else { continue };
            let [host, Value::Int(port), ..] = array(master) else { continue };
            let (Ok(first), Ok(last), Ok(port)) =
                (usize::try_from(*first), usize::try_from(*last), u16::try_from(*port))
            else {
                continue;
            };
            let host = match host {
                Value::BulkString(host) => String::from_utf8_lossy(host),
                _ => "".into(),
            };
            let node = self.node(&Address::beside(&host, port, said_by.address()));
            map.assign(first, last, &node);
        }
        if map.masters.is_empty() {
            return Err(Fault::NotReady("that no slot has a server".into()));
        }
        Ok(map)
    }
}

fn array(value: &Value) -> &[Value] {
    match value {
        Value::Array(parts) => parts,
        _ => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::slot_of;

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
        // An empty or unclosed tag is no tag.
        assert_ne!(slot_of(b"foo{}{bar}"), slot_of(b"bar"));
        assert_ne!(slot_of(b"foo{bar"), slot_of(b"bar"));
    }
}
