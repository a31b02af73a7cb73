//! The hot keys of one shard.

use std::sync::Arc;

use hashbrown::HashTable;

use super::hot::Hot;
use super::pool::{AGE, Pool, Unspent};
use super::refill::Refill;
use crate::store::memory::print::Print;

/// A key that was not used for this long is not hot any more, in microseconds.
const IDLE: u64 = 5 * AGE;

#[derive(Debug, Default)]
pub(super) struct Shard {
    pools: HashTable<Pool>,
    hot: Hot,
}

impl Shard {
    pub(super) fn len(&self) -> usize {
        self.pools.len()
    }

    pub(super) fn units(&self) -> u64 {
        self.pools.iter().map(Pool::units).sum()
    }

    pub(super) fn find(&mut self, print: Print) -> Option<&mut Pool> {
        self.pools.find_mut(print.bucket_hash(), |pool| pool.print == print)
    }

    /// Counts a call about a key without a pool. If it is asked about often: how many units it has used, and since when.
    pub(super) fn hot(&mut self, print: Print, units: u64, now: u64) -> Option<(u64, u64)> {
        self.hot.count(print, units, now)
    }

    /// Adds a pool, if there is room.
    pub(super) fn insert(&mut self, pool: Pool, capacity: usize, now: u64) {
        self.hot.forget(pool.print);
        if self.pools.len() >= capacity {
            self.sweep(now);
        }
        if self.pools.len() < capacity {
            self.pools.insert_unique(pool.print.bucket_hash(), pool, |pool| pool.print.bucket_hash());
        }
    }

    /// Removes pools that nobody uses and that hold nothing.
    fn sweep(&mut self, now: u64) {
        self.pools.retain(|pool| pool.units() > 0 || now.saturating_sub(pool.used_at) < IDLE);
    }

    /// Removes a pool. Returns how many units were in it.
    pub(super) fn forget(&mut self, print: Print) -> u64 {
        match self.pools.find_entry(print.bucket_hash(), |pool| pool.print == print) {
            Ok(entry) => entry.remove().0.units(),
            Err(_) => 0,
        }
    }

    /// The refills in flight.
    pub(super) fn refills(&self) -> Vec<Arc<Refill>> {
        self.pools.iter().filter_map(|pool| pool.refill.clone()).collect()
    }

    /// Takes units that `choose` gives back out of a pool. Without any, removes pools that nobody uses.
    pub(super) fn give_back(
        &mut self,
        now: u64,
        choose: impl Fn(&mut Pool, u64) -> Option<Unspent>,
    ) -> Option<Unspent> {
        let unspent = self.pools.iter_mut().find_map(|pool| choose(pool, now));
        if unspent.is_none() {
            self.sweep(now);
        }
        unspent
    }
}
