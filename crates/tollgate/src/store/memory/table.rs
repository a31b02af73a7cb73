//! A table of what is known by the hash of its key, swept a few buckets at a time.

use std::hash::Hasher;

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use siphasher::sip128::{Hasher128, SipHasher13};

/// The keyed 128-bit hash that stands for a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Print([u64; 2]);

impl Print {
    /// The bit that tells a shared state from a key's own.
    const SHARED: u64 = 1 << 63;

    /// The length of the first part separates the two.
    pub(super) fn of(hasher: &SipHasher13, first: &[u8], second: &[u8]) -> Self {
        const SHORT: usize = 128;
        let length = 2 + first.len() + second.len();
        let hash = if length <= SHORT {
            let mut joined = [0; SHORT];
            let first_length = u16::try_from(first.len()).unwrap_or(u16::MAX);
            joined[..2].copy_from_slice(&first_length.to_le_bytes());
            joined[2..2 + first.len()].copy_from_slice(first);
            joined[2 + first.len()..length].copy_from_slice(second);
            hasher.hash(&joined[..length])
        } else {
            let mut hasher = *hasher;
            hasher.write_usize(first.len());
            hasher.write(first);
            hasher.write(second);
            hasher.finish128()
        };
        Self([hash.h1, hash.h2 & !Self::SHARED])
    }

    /// One of `count` shards, a power of two; by other bits than those that find the bucket.
    pub(super) fn shard(self, count: usize) -> usize {
        usize::try_from(self.0[1] & (count as u64 - 1)).unwrap_or(0)
    }

    /// The state that this key shares with others, one of `count`, for what `first` names.
    pub(super) fn shared(self, hasher: &SipHasher13, first: &[u8], count: usize) -> Self {
        let index = (self.0[1] >> 16) % count as u64;
        let Self([h1, h2]) = Self::of(hasher, first, &index.to_le_bytes());
        Self([h1, h2 | Self::SHARED])
    }

    fn is_shared(self) -> bool {
        self.0[1] & Self::SHARED != 0
    }
}

/// Something that can be told from nothing only until some instant.
pub(super) trait Expires {
    fn expired(&self, now: u64) -> bool;
}

#[derive(Debug)]
pub(super) struct Table<T> {
    entries: HashTable<(Print, T)>,
    /// How many of the entries are shared.
    shared: usize,
    cursor: usize,
    steps: u8,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self { entries: HashTable::new(), shared: 0, cursor: 0, steps: 0 }
    }
}

fn bucket_hash<T>((print, _): &(Print, T)) -> u64 {
    print.0[0]
}

impl<T: Expires> Table<T> {
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// How many entries are keys' own.
    pub(super) fn own(&self) -> usize {
        self.entries.len() - self.shared
    }

    pub(super) fn get(&self, print: Print) -> Option<&T> {
        self.entries.find(print.0[0], |(other, _)| *other == print).map(|(_, value)| value)
    }

    pub(super) fn get_mut(&mut self, print: Print) -> Option<&mut T> {
        self.entries.find_mut(print.0[0], |(other, _)| *other == print).map(|(_, value)| value)
    }

    pub(super) fn insert(&mut self, print: Print, value: T) {
        match self.entries.entry(print.0[0], |(other, _)| *other == print, bucket_hash) {
            Entry::Occupied(mut occupied) => occupied.get_mut().1 = value,
            Entry::Vacant(vacant) => {
                vacant.insert((print, value));
                self.shared += usize::from(print.is_shared());
            }
        }
    }

    pub(super) fn remove(&mut self, print: Print) -> Option<T> {
        let found = self.entries.find_entry(print.0[0], |(other, _)| *other == print).ok()?;
        self.shared -= usize::from(print.is_shared());
        Some(found.remove().0.1)
    }

    /// Looks at the next `buckets` buckets and drops what has expired in them; gives memory back when most is unused.
    pub(super) fn sweep(&mut self, now: u64, buckets: usize) {
        let count = self.entries.num_buckets();
        for _ in 0..buckets.min(count) {
            self.cursor = if self.cursor + 1 < count { self.cursor + 1 } else { 0 };
            if let Ok(found) = self.entries.get_bucket_entry(self.cursor)
                && found.get().1.expired(now)
            {
                let ((print, _), _) = found.remove();
                self.shared -= usize::from(print.is_shared());
            }
        }
        if count > 64 && self.entries.len() < count / 8 {
            self.entries.shrink_to(self.entries.len() * 2, bucket_hash);
        }
    }

    /// Sweeps a little, now and then.
    pub(super) fn sweep_sometimes(&mut self, now: u64) {
        self.steps = (self.steps + 1) % 16;
        if self.steps == 0 {
            self.sweep(now, 2);
        }
    }
}
