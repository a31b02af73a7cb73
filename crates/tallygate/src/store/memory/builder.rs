//! Builds a [`MemoryStore`].

use super::overrides::Kept;
use super::print::Factors;
use super::shard::Shard;
use super::{MemoryStore, MemoryStoreBuilder, Overflow, Padded};
use crate::clock::Clock;
use crate::sync::Mutex;

impl MemoryStoreBuilder {
    const MOST_SHARDS: usize = 64;
    /// With fewer keys per shard, random imbalance would fill one shard long before the others.
    const KEYS_PER_SHARD: usize = 4096;

    /// Sets the maximum number of keys. Defaults to one million.
    pub fn capacity(mut self, keys: usize) -> Self {
        self.capacity = keys.max(1);
        self
    }

    /// Sets what happens beyond the capacity. Defaults to 1024 shared states for each policy.
    pub fn overflow(mut self, overflow: Overflow) -> Self {
        self.overflow = overflow;
        self
    }

    /// Sets the clock. Defaults to the system clock.
    pub fn clock(mut self, clock: impl Into<Clock>) -> Self {
        self.clock = Some(clock.into());
        self
    }

    /// Never drops a state. Memory grows with every key; for tests that compare with a store whose keys do not expire.
    pub fn without_sweep(mut self) -> Self {
        self.sweep = false;
        self
    }

    /// Builds the store.
    pub fn build(self) -> MemoryStore {
        let count = (self.capacity / Self::KEYS_PER_SHARD).clamp(1, Self::MOST_SHARDS);
        let count = if count.is_power_of_two() { count } else { count.next_power_of_two() / 2 };
        let shard = |index: usize| {
            let capacity = self.capacity / count + usize::from(index < self.capacity % count);
            let shared = match self.overflow {
                Overflow::Deny => 0,
                Overflow::Shared(states) => states.max(1).div_ceil(count),
            };
            Padded(Mutex::new(Shard::new(capacity, shared, self.sweep)))
        };
        MemoryStore {
            shards: (0..count).map(shard).collect(),
            factors: Factors::random(),
            clock: self.clock.unwrap_or_default(),
            overrides: Mutex::new(Kept::default()),
        }
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}
