//! The overrides of an embedded store. Twin: `tallygate-redis/lua/overrides.lua`.

use super::MemoryStore;
use super::saved::{SAVED_KEY_BYTES, SavedEntry, SavedKey};
use super::shard::FORMAT;
use crate::live::{Overrides, Reading, Replaced, Replacement};
use crate::store::StoreError;

/// Under which they are saved: one entry, whose key begins like no other.
const KEY: SavedKey = {
    let mut key = [0; SAVED_KEY_BYTES];
    key[0] = b'o';
    key
};

/// Their revision, and the set as a shared store would keep it.
#[derive(Debug, Clone, Default)]
pub(super) struct Kept {
    revision: u64,
    record: Vec<u8>,
    /// Since they were last saved.
    changed: bool,
}

impl Kept {
    /// What is to be saved. `all` says also what has not changed.
    pub(super) fn take_saved(&mut self, all: bool) -> Option<SavedEntry> {
        let changed = std::mem::take(&mut self.changed);
        let value = || [&[FORMAT][..], &self.revision.to_le_bytes(), &self.record].concat();
        (changed || all && self.revision > 0).then(|| SavedEntry { key: KEY, value: Some(value()) })
    }

    /// What was saved, if it is this. `None` if it is an entry of another kind.
    pub(super) fn of_saved(key: &SavedKey, value: &[u8]) -> Option<Result<Self, u8>> {
        if *key != KEY {
            return None;
        }
        let Some((&format, rest)) = value.split_first() else { return Some(Err(0)) };
        let parts = rest.split_first_chunk().filter(|_| format == FORMAT);
        let kept = parts.map(|(revision, record)| Self {
            revision: u64::from_le_bytes(*revision),
            record: record.to_vec(),
            changed: false,
        });
        Some(kept.ok_or(format))
    }
}

impl Overrides for MemoryStore {
    async fn read_overrides(&self, known: Option<u64>) -> Result<Reading, StoreError> {
        let kept = self.overrides.lock();
        let record = (known != Some(kept.revision)).then(|| kept.record.clone());
        Ok(Reading::new(self.clock.now(), kept.revision, record))
    }

    async fn replace_overrides(&self, replacement: Replacement) -> Result<Replaced, StoreError> {
        let mut kept = self.overrides.lock();
        let now = self.clock.now();
        if kept.revision != replacement.of || now > replacement.not_after {
            return Ok(Replaced::NotDone);
        }
        // The time, so that no revision comes again.
        let revision = now.as_micros().max(kept.revision + 1);
        *kept = Kept { revision, record: replacement.record, changed: true };
        Ok(Replaced::Done(revision))
    }
}
