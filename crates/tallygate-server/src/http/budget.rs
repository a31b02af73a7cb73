//! The memory of request bodies: one budget for each listener.
//!
//! Bodies that are still arriving are refused to make room, the oldest first: an honest body arrives within milliseconds, one
//! that holds its memory on purpose grows old. A peer that holds more than half makes room among its own, so that it
//! cannot displace others; alone, it can use everything.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use http::HeaderMap;
use tokio_util::sync::CancellationToken;

/// What a body counts at least, in bytes, with its header: its task and its stream take as much.
pub(super) const LEAST: usize = 4 * 1024;
/// What a map takes for one field beside its bytes: an entry and its place in the index.
const FIELD: usize = 112;

/// The memory of a header, in bytes.
pub(super) fn header_memory(headers: &HeaderMap) -> usize {
    let bytes: usize = headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum();
    headers.capacity() * FIELD + bytes
}

#[derive(Debug)]
pub(super) struct Budget {
    bytes: usize,
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    total: usize,
    by_peer: HashMap<Arc<str>, usize>,
    /// Bodies that are not complete, by age. The others cannot be refused any more: their requests are being answered.
    arriving: BTreeMap<u64, Arriving>,
    next: u64,
}

#[derive(Debug)]
struct Arriving {
    peer: Arc<str>,
    bytes: usize,
    refused: CancellationToken,
}

/// There is no room, or it was needed for others.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no memory for this body")]
pub(super) struct NoRoom;

impl Budget {
    pub(super) fn new(bytes: usize) -> Arc<Self> {
        Arc::new(Self { bytes, held: Mutex::default() })
    }

    /// Room for a body of which `bytes` have arrived.
    pub(super) fn take(self: &Arc<Self>, peer: &Arc<str>, bytes: usize) -> Result<Share, NoRoom> {
        let mut held = self.held();
        let id = held.next;
        held.next += 1;
        let refused = CancellationToken::new();
        let body = Arriving { peer: Arc::clone(peer), bytes: 0, refused: refused.clone() };
        held.arriving.insert(id, body);
        let mut share =
            Share { budget: Arc::clone(self), peer: Arc::clone(peer), id, bytes: 0, arriving: true, refused };
        let grown = self.grow(&mut held, &mut share, bytes.max(LEAST));
        drop(held);
        grown.map(|()| share)
    }

    fn grow(&self, held: &mut Held, share: &mut Share, bytes: usize) -> Result<(), NoRoom> {
        let more = bytes.saturating_sub(share.bytes);
        if !held.arriving.contains_key(&share.id) {
            return Err(NoRoom);
        }
        while held.total + more > self.bytes {
            let oldest = held.refusable(&share.peer).ok_or(NoRoom)?;
            held.refuse(oldest);
        }
        // It may have been the oldest itself.
        let Some(body) = held.arriving.get_mut(&share.id) else { return Err(NoRoom) };
        body.bytes += more;
        share.bytes += more;
        held.total += more;
        *held.by_peer.entry(Arc::clone(&share.peer)).or_default() += more;
        Ok(())
    }

    /// A panic cannot leave the counts half changed: nothing in between can panic.
    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Held {
    /// The oldest body: of `peer`, if it holds more than half of what is held.
    fn refusable(&self, peer: &Arc<str>) -> Option<u64> {
        let holds = self.by_peer.get(peer).copied().unwrap_or_default();
        let own = (holds > self.total / 2).then(|| self.arriving.iter().find(|(_, body)| body.peer == *peer));
        own.unwrap_or_else(|| self.arriving.iter().next()).map(|(id, _)| *id)
    }

    fn refuse(&mut self, id: u64) {
        if let Some(body) = self.arriving.remove(&id) {
            body.refused.cancel();
            self.give_back(&body.peer, body.bytes);
        }
    }

    fn give_back(&mut self, peer: &Arc<str>, bytes: usize) {
        self.total -= bytes;
        if let Some(holds) = self.by_peer.get_mut(peer) {
            *holds -= bytes;
            if *holds == 0 {
                self.by_peer.remove(peer);
            }
        }
    }
}

/// Memory of one body. Dropping it gives it back.
#[derive(Debug)]
pub(super) struct Share {
    budget: Arc<Budget>,
    peer: Arc<str>,
    id: u64,
    bytes: usize,
    arriving: bool,
    refused: CancellationToken,
}

impl Share {
    /// Room for `bytes` in total.
    pub(super) fn grow_to(&mut self, bytes: usize) -> Result<(), NoRoom> {
        let budget = Arc::clone(&self.budget);
        budget.grow(&mut budget.held(), self, bytes)
    }

    /// Cancelled if the body was refused to make room.
    pub(super) fn refused(&self) -> &CancellationToken {
        &self.refused
    }

    /// The body is complete, and keeps its memory until the share is dropped.
    pub(super) fn arrived(&mut self) -> Result<(), NoRoom> {
        if !self.arriving {
            return Ok(());
        }
        let found = self.budget.held().arriving.remove(&self.id);
        self.arriving = found.is_none();
        found.map(drop).ok_or(NoRoom)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut held = self.budget.held();
        // If it was refused, its bytes have been given back.
        if !self.arriving || held.arriving.remove(&self.id).is_some() {
            held.give_back(&self.peer, self.bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn peer(name: &str) -> Arc<str> {
        Arc::from(name)
    }

    fn is_refused(share: &Share) -> bool {
        share.refused().is_cancelled()
    }

    #[test]
    fn the_oldest_makes_room_and_a_complete_body_never_does() {
        let (budget, one) = (Budget::new(4 * LEAST), peer("a"));
        let mut complete = budget.take(&one, 0).unwrap();
        complete.arrived().unwrap();
        let shares: Vec<Share> = (0..4).map(|_| budget.take(&one, 0).unwrap()).collect();
        assert_eq!(shares.iter().map(is_refused).collect::<Vec<_>>(), [true, false, false, false]);
        assert!(!is_refused(&complete));
        let mut last = budget.take(&one, 3 * LEAST).unwrap();
        assert!(shares.iter().all(is_refused));
        assert_eq!(last.grow_to(3 * LEAST + 1), Err(NoRoom), "it is the only one left that could make room");
        assert!(is_refused(&last));
        drop((shares, last, complete));
        let held = budget.held();
        assert_eq!((held.total, held.by_peer.len(), held.arriving.len()), (0, 0, 0));
    }

    #[test]
    fn a_peer_that_holds_most_makes_room_among_its_own() {
        let (budget, flood, other) = (Budget::new(10 * LEAST), peer("flood"), peer("other"));
        let honest = budget.take(&other, 0).unwrap();
        let held: Vec<Share> = (0..200).map(|_| budget.take(&flood, 0).unwrap()).collect();
        assert!(!is_refused(&honest), "it is the oldest of all");
        assert_eq!(held.iter().filter(|share| !is_refused(share)).count(), 9);
        assert!(budget.take(&other, 2 * LEAST).is_ok());
    }

    #[test]
    fn a_single_peer_can_use_everything() {
        let (budget, proxy) = (Budget::new(100 * LEAST), peer("proxy"));
        let held: Vec<Share> = (0..100).map(|_| budget.take(&proxy, 0).unwrap()).collect();
        assert!(!held.iter().any(is_refused));
        assert_eq!(budget.take(&proxy, 101 * LEAST).err(), Some(NoRoom), "larger than the budget");
    }

    proptest! {
        /// Whatever comes and goes, the total is what the shares hold, and never above the budget.
        #[test]
        fn the_books_balance(steps in prop::collection::vec((0..4_u8, 0..3_usize, 0..6 * LEAST, any::<prop::sample::Index>()), 0..80)) {
            let budget = Budget::new(12 * LEAST);
            let peers = ["a", "b", "c"].map(peer);
            let mut shares: Vec<Share> = Vec::new();
            for (step, peer, bytes, at) in steps {
                match step {
                    0 => shares.extend(budget.take(&peers[peer], bytes)),
                    _ if shares.is_empty() => {}
                    1 => drop(shares.swap_remove(at.index(shares.len()))),
                    2 => { let _ = { let at = at.index(shares.len()); shares[at].grow_to(bytes) }; }
                    _ => { let _ = { let at = at.index(shares.len()); shares[at].arrived() }; }
                }
                let live = shares.iter().filter(|share| !is_refused(share)).map(|share| share.bytes).sum::<usize>();
                let held = budget.held();
                prop_assert!(held.total <= 12 * LEAST);
                prop_assert_eq!(held.total, live);
                prop_assert_eq!(held.by_peer.values().sum::<usize>(), live);
            }
            drop(shares);
            prop_assert_eq!(budget.held().total, 0);
        }
    }
}
