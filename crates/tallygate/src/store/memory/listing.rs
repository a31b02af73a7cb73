//! The list of open holds of all shards.

use super::{MemoryStore, lock};
use crate::hold::{HoldCursor, HoldPage, HoldQuery, OpenHold};

/// When a hold was charged, its shard, and its number there: no other hold has the same, and the order is that of the list.
type Place = (u64, u64, u64);

impl MemoryStore {
    /// A page of the open holds, the oldest first; the pages, too, are in this order. One shard after the other is locked, for a moment.
    /// A hold that was closed, because its limit was changed or its state was reset, is listed until it ends.
    pub fn open_holds(&self, query: &HoldQuery) -> HoldPage {
        let now = self.clock.now();
        let after: Option<Place> = query.cursor().map(|HoldCursor([at, shard, number])| (at, shard, number));
        let mut found: Vec<(Place, OpenHold)> = Vec::new();
        // Up to where every shard was looked at.
        let mut stop: Option<Place> = None;
        for (shard, holds) in (0_u64..).zip(&self.shards) {
            let from = match after {
                None => (0, 0),
                Some((at, last, _)) if shard < last => (at.saturating_add(1), 0),
                Some((at, last, number)) if shard == last => (at, number.saturating_add(1)),
                Some((at, ..)) => (at, 0),
            };
            let (listed, stopped) = lock(holds).holds.list(query, from, now);
            found.extend(listed.into_iter().map(|((at, number), hold)| ((at, shard, number), hold)));
            // Where it stopped was not looked at.
            let stopped = stopped.map(|(at, number)| (at, shard, number.saturating_sub(1)));
            stop = [stop, stopped].into_iter().flatten().min();
        }
        found.sort_unstable_by_key(|(place, _)| *place);
        if let Some(stop) = stop {
            found.truncate(found.partition_point(|(place, _)| *place <= stop));
        }
        let mut next = stop;
        if found.len() > query.most() {
            found.truncate(query.most());
            next = found.last().map(|(place, _)| *place);
        }
        let next = next.map(|(at, shard, number)| HoldCursor([at, shard, number]));
        HoldPage { holds: found.into_iter().map(|(_, hold)| hold).collect(), next }
    }
}
