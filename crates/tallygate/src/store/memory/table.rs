//! A table keyed by fingerprints, swept a few buckets at a time.

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

use super::print::Print;

/// A value that equals a fresh one from some instant on.
pub(super) trait Expires {
    fn expired(&self, now: u64) -> bool;
}

#[derive(Debug, Clone)]
pub(super) struct Table<T> {
    entries: HashTable<(Print, T)>,
    /// The number of shared entries.
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
    print.bucket_hash()
}

impl<T: Expires> Table<T> {
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// The number of entries that belong to one key.
    pub(super) fn own(&self) -> usize {
        self.entries.len() - self.shared
    }

    pub(super) fn get(&self, print: Print) -> Option<&T> {
        self.entries.find(print.bucket_hash(), |(other, _)| *other == print).map(|(_, value)| value)
    }

    #[inline]
    pub(super) fn get_mut(&mut self, print: Print) -> Option<&mut T> {
        self.entries.find_mut(print.bucket_hash(), |(other, _)| *other == print).map(|(_, value)| value)
    }

    pub(super) fn insert(&mut self, print: Print, value: T) {
        match self.entries.entry(print.bucket_hash(), |(other, _)| *other == print, bucket_hash) {
            Entry::Occupied(mut occupied) => occupied.get_mut().1 = value,
            Entry::Vacant(vacant) => {
                vacant.insert((print, value));
                self.shared += usize::from(print.is_shared());
            }
        }
    }

    pub(super) fn remove(&mut self, print: Print) -> Option<T> {
        let found = self.entries.find_entry(print.bucket_hash(), |(other, _)| *other == print).ok()?;
        self.shared -= usize::from(print.is_shared());
        Some(found.remove().0.1)
    }

    /// Removes expired entries from the next `buckets` buckets, and shrinks the table when most of it is unused.
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

    /// Sweeps a few buckets every few calls.
    #[inline]
    pub(super) fn sweep_sometimes(&mut self, now: u64) {
        self.steps = self.steps.wrapping_add(1);
        if self.steps.is_multiple_of(16) {
            self.sweep(now, 2);
        }
    }
}
