//! Limits on open streams: in total, and per peer.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How many streams may be open on a listener: watchers of its health, and reflection.
const MAX_OPEN: usize = 1024;
/// How many of them one peer may have.
const MAX_OPEN_PER_PEER: usize = MAX_OPEN / 2;

#[derive(Debug, Default)]
pub(super) struct Streams(Mutex<Open>);

#[derive(Debug, Default)]
struct Open {
    total: usize,
    by_peer: HashMap<Arc<str>, usize>,
}

impl Streams {
    /// `None` if there are too many. Dropping the stream makes room for another.
    pub(super) fn take(self: &Arc<Self>, peer: &Arc<str>) -> Option<OpenStream> {
        let mut open = self.open();
        let count = open.by_peer.get(peer).copied().unwrap_or_default();
        if open.total >= MAX_OPEN || count >= MAX_OPEN_PER_PEER {
            return None;
        }
        open.total += 1;
        open.by_peer.insert(Arc::clone(peer), count + 1);
        Some(OpenStream { streams: Arc::clone(self), peer: Arc::clone(peer) })
    }

    /// A panic cannot leave the counts half changed: nothing in between can panic.
    fn open(&self) -> MutexGuard<'_, Open> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A place among the open streams.
#[derive(Debug)]
pub(super) struct OpenStream {
    streams: Arc<Streams>,
    peer: Arc<str>,
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        let mut open = self.streams.open();
        open.total -= 1;
        if let Some(count) = open.by_peer.get_mut(&self.peer) {
            *count -= 1;
            if *count == 0 {
                open.by_peer.remove(&self.peer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_peer_could_hold_every_stream() {
        let (streams, [one, other, third]) = (Arc::new(Streams::default()), ["a", "b", "c"].map(Arc::from));
        let all_of = |peer| std::iter::from_fn(|| streams.take(peer)).collect::<Vec<_>>();
        let (mut held, others) = (all_of(&one), all_of(&other));
        assert_eq!((held.len(), others.len()), (512, 512));
        assert!(streams.take(&third).is_none(), "there are 1024");
        held.pop();
        assert!(streams.take(&third).is_some());
        drop((held, others));
        let open = streams.open();
        assert_eq!((open.total, open.by_peer.len()), (0, 0));
    }
}
