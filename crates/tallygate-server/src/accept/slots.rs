//! Limits on open connections: in total, and per peer.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tallygate_http::Prefixes;

use super::{ListenSettings, ListenStats};

#[derive(Debug)]
pub(super) struct Slots {
    settings: ListenSettings,
    /// The most of one peer: never all, unless there is only one.
    per_peer: usize,
    /// Counts the connections that have a slot.
    stats: Arc<ListenStats>,
    /// Locked by accepting and closing, never by a request.
    by_peer: Mutex<HashMap<String, usize>>,
}

impl Slots {
    pub(super) fn new(settings: &ListenSettings, stats: &Arc<ListenStats>) -> Arc<Self> {
        let per_peer = settings.max_connections_per_peer.min(settings.max_connections.div_ceil(2));
        Arc::new(Self { settings: settings.clone(), per_peer, stats: Arc::clone(stats), by_peer: Mutex::default() })
    }

    /// `None` if there are too many. Dropping the slot frees it.
    pub(super) fn take(self: &Arc<Self>, ip: IpAddr) -> Option<Slot> {
        // A host with one address of a /64 has them all, so they count as one peer.
        let peer = (self.settings.cap_loopback || !ip.is_loopback()).then(|| Prefixes::default().mask(ip));
        let mut by_peer = self.by_peer();
        if self.stats.connections.load(Relaxed) >= self.settings.max_connections as u64 {
            return None;
        }
        if let Some(peer) = &peer {
            let count = by_peer.get(peer).copied().unwrap_or_default();
            if count >= self.per_peer {
                return None;
            }
            by_peer.insert(peer.clone(), count + 1);
        }
        self.stats.connections.fetch_add(1, Relaxed);
        Some(Slot { slots: Arc::clone(self), peer })
    }

    /// A panic cannot leave the counts half changed: nothing in between can panic.
    fn by_peer(&self) -> MutexGuard<'_, HashMap<String, usize>> {
        self.by_peer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
pub(super) struct Slot {
    slots: Arc<Slots>,
    peer: Option<String>,
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut by_peer = self.slots.by_peer();
        self.slots.stats.connections.fetch_sub(1, Relaxed);
        let Some(peer) = &self.peer else { return };
        if let Some(count) = by_peer.get_mut(peer) {
            *count -= 1;
            if *count == 0 {
                by_peer.remove(peer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots(max_connections: usize, max_connections_per_peer: usize) -> Arc<Slots> {
        let settings = ListenSettings { max_connections, max_connections_per_peer, ..ListenSettings::default() };
        Slots::new(&settings, &Arc::default())
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_slot_is_free_again_once_dropped() {
        let slots = slots(3, 2);
        let first = slots.take(ip("192.0.2.1")).unwrap();
        let _second = slots.take(ip("192.0.2.1")).unwrap();
        assert!(slots.take(ip("192.0.2.1")).is_none(), "a third of the same peer");
        let _other = slots.take(ip("192.0.2.2")).unwrap();
        assert!(slots.take(ip("192.0.2.3")).is_none(), "a fourth in total");
        drop(first);
        assert!(slots.take(ip("192.0.2.1")).is_some());
    }

    #[test]
    fn nothing_is_remembered_of_peers_that_left() {
        let slots = slots(10, 1);
        drop((slots.take(ip("192.0.2.1")), slots.take(ip("2001:db8::1"))));
        assert_eq!((slots.stats.connections.load(Relaxed), slots.by_peer().len()), (0, 0));
    }

    /// Each refused peer left an entry behind.
    #[test]
    fn nothing_is_remembered_of_peers_that_never_came_in() {
        let slots = slots(10, 0);
        assert!(slots.take(ip("192.0.2.1")).is_none() && slots.take(ip("192.0.2.2")).is_none());
        assert_eq!(slots.by_peer().len(), 0);
    }

    /// With `--max-connections 1000`: the limit of one peer was 1,000 as well.
    #[test]
    fn one_peer_took_every_connection_if_there_are_no_more_than_it_may_have() {
        for (total, of_one) in [(1000, 500), (3, 2), (2, 1), (1, 1)] {
            let slots = slots(total, 1000);
            let held: Vec<_> = std::iter::from_fn(|| slots.take(ip("192.0.2.1"))).collect();
            assert_eq!(held.len(), of_one, "of {total}");
            assert_eq!(slots.take(ip("192.0.2.2")).is_some(), total > 1, "another, of {total}");
        }
    }

    #[test]
    fn a_64_is_one_peer() {
        let slots = slots(10, 1);
        let _first = slots.take(ip("2001:db8::1")).unwrap();
        assert!(slots.take(ip("2001:db8::ffff:2")).is_none());
        assert!(slots.take(ip("2001:db8:0:1::1")).is_some());
    }

    #[test]
    fn loopback_is_capped_in_total_only() {
        let slots = slots(3, 1);
        let held: Vec<_> = ["127.0.0.1", "127.0.0.1", "::1"].map(|text| slots.take(ip(text)).unwrap()).into();
        assert!(slots.take(ip("127.0.0.1")).is_none());
        drop(held);
    }
}
