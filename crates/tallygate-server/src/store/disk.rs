//! The embedded store with a data directory.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use tallygate::MemoryStore;
use tallygate_disk::{OpenError, SaveError};
use tallygate_redis::{AnyStore, ConnectError};

use super::ServedStore;
use super::stats::Timed;

/// Why a store did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The URL or the prefix is invalid.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The data directory cannot be used.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The store could not be saved.
    #[error(transparent)]
    Save(#[from] SaveError),
    /// A data directory, for a store that keeps its states elsewhere.
    #[error(
        "a data directory keeps the embedded store, but the store is {place}: leave out one of --data-dir and --store"
    )]
    NotEmbedded {
        /// The store.
        place: String,
    },
}

/// The embedded store of a server.
struct Embedded(Arc<OnceLock<Timed<AnyStore>>>);

impl AsRef<MemoryStore> for Embedded {
    fn as_ref(&self) -> &MemoryStore {
        match self.0.get().map(|timed| &timed.store) {
            Some(AnyStore::Memory(store)) => store,
            _ => unreachable!("it was set to an embedded store before it was saved"),
        }
    }
}

/// Takes back what was saved in a directory, and goes on saving. It does not return before everything is read.
pub(super) fn start(directory: &Path) -> Result<ServedStore, StartError> {
    let (store, saver) = tallygate_disk::open(directory, MemoryStore::builder())?;
    tracing::info!(directory = %directory.display(), entries = store.len(), "took back the store from its data directory");
    let served = ServedStore::from(store);
    let at = directory.to_owned();
    let on_change = move |saved: Result<(), &SaveError>| match saved {
        Ok(()) => tracing::info!(directory = %at.display(), "the store is saved again; nothing is missing"),
        Err(error) => tracing::error!(
            directory = %at.display(),
            reason = %error,
            "decisions go on in memory, and a crash would lose all since the last save: make room, or repair the disk"
        ),
    };
    let saving = saver.start(Embedded(Arc::clone(&served.parts.store)), on_change)?;
    *locked(&served.saving) = Some(saving);
    Ok(served)
}

pub(super) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
