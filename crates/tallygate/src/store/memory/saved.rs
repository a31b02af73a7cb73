//! What an embedded store hands out to be saved, and takes back when a process starts again.

use std::fmt;

use super::bytes::Limits;
use super::overrides::Kept;
use super::print::Factors;
use super::{MemoryStore, MemoryStoreBuilder, Padded, lock};
use crate::sync::MutexGuard;

/// The secret by which a store hashes keys. A caller that knows it can choose keys that collide.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret([u8; Secret::BYTES]);

impl Secret {
    /// How many bytes it has.
    pub const BYTES: usize = 32;

    /// Draws a new one from the random numbers of the operating system.
    pub fn random() -> Self {
        let mut bytes = [0; Self::BYTES];
        getrandom::fill(&mut bytes).expect("the operating system has random numbers");
        Self(bytes)
    }

    /// One that was saved.
    pub const fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        Self(bytes)
    }

    /// Its bytes.
    pub const fn as_bytes(&self) -> &[u8; Self::BYTES] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// An entry of a store, in the form in which it is saved: a state, a counter, a hold, what is held of a state, an answer that is
/// remembered, or the overrides. Only this library can read it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SavedEntry {
    /// Tells it from all others of the store.
    pub key: SavedKey,
    /// What is to be saved; `None` if there is no longer anything.
    pub value: Option<Vec<u8>>,
}

/// Which entry of a store it is.
pub type SavedKey = [u8; SAVED_KEY_BYTES];

pub(super) const SAVED_KEY_BYTES: usize = 21;

/// The error of an entry that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RestoreError {
    /// A newer version has written it.
    #[error(
        "an entry has the format {found}, which a newer version has written; this one knows {}",
        super::shard::FORMAT
    )]
    Newer {
        /// The version of its format.
        found: u8,
    },
    /// It is not what was saved.
    #[error("an entry is damaged: {}", .key.iter().map(|byte| format!("{byte:02x}")).collect::<String>())]
    Damaged {
        /// Its key.
        key: SavedKey,
    },
}

/// A store that is being filled with what was saved.
#[derive(Debug)]
pub struct Restoring {
    store: MemoryStore,
    limits: Limits,
}

impl MemoryStoreBuilder {
    /// Builds a store whose entries are saved elsewhere: first it is given what was saved, then it says what changes.
    pub fn restore(self, secret: &Secret) -> Restoring {
        let store = MemoryStore { factors: Factors::of(secret), ..self.build() };
        Restoring { store, limits: Limits::new() }
    }
}

impl Restoring {
    /// Takes an entry that was saved. Returns false if it no longer counts: then it can be deleted where it was saved.
    pub fn take(&mut self, key: &SavedKey, value: &[u8]) -> Result<bool, RestoreError> {
        if let Some(kept) = Kept::of_saved(key, value) {
            *self.store.overrides.lock() = kept.map_err(|found| match found {
                _ if found > super::shard::FORMAT => RestoreError::Newer { found },
                _ => RestoreError::Damaged { key: *key },
            })?;
            return Ok(true);
        }
        let now = self.store.now().as_micros();
        let shards = &self.store.shards;
        let shard = super::shard::home(key, value, shards.len());
        lock(&shards[shard]).restore(key, value, now, &mut self.limits)
    }

    /// The store. From now on it notes what changes.
    pub fn finish(self) -> MemoryStore {
        self.store.shards.iter().for_each(|shard| lock(shard).record(true));
        self.store
    }
}

impl MemoryStore {
    /// What has changed since the last time, as of one instant: with this, what was saved before becomes what the store holds now.
    /// Meanwhile no call is decided. `None` if it is not known, because it was [forgotten](Self::forget_changes), was not [restored], or too much
    /// has changed: then all must be [saved again](Self::everything).
    ///
    /// [restored]: MemoryStoreBuilder::restore
    pub fn changes(&self) -> Option<Vec<SavedEntry>> {
        let mut changes = Vec::new();
        let known =
            |(index, shard): (usize, &mut MutexGuard<'_, _>)| super::shard::Shard::changes(shard, index, &mut changes);
        let complete = self.lock_all().iter_mut().enumerate().all(known);
        // What is not taken now is taken with everything.
        complete.then(|| {
            changes.extend(self.overrides.lock().take_saved(false));
            changes
        })
    }

    /// All that the store holds, as of one instant. [`changes`](Self::changes) goes on from there.
    pub fn everything(&self) -> Vec<SavedEntry> {
        let mut all = Vec::new();
        self.lock_all().iter_mut().enumerate().for_each(|(index, shard)| shard.everything(index, &mut all));
        all.extend(self.overrides.lock().take_saved(true));
        all
    }

    /// Ends to note what changes, until [`everything`](Self::everything) is asked for: nobody can save it for a while.
    pub fn forget_changes(&self) {
        self.shards.iter().for_each(|shard| lock(shard).record(false));
    }

    /// In order of their index, as calls do.
    fn lock_all(&self) -> Vec<MutexGuard<'_, super::shard::Shard>> {
        self.shards.iter().map(|shard: &Padded| lock(shard)).collect()
    }
}
