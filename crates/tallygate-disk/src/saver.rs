//! Saves what has changed. If that fails, it begins anew with everything.

use std::panic::{AssertUnwindSafe, catch_unwind};

use redb::Database;
use tallygate::MemoryStore;

use crate::background::Saving;
use crate::directory::Directory;
use crate::error::SaveError;
use crate::file::{self, Changes, Problem};

/// Saves a store to the directory from which it was restored. It does so when [`save`](Self::save) is called, or by itself after [`start`](Self::start).
pub struct Saver {
    directory: Directory,
    /// `None` after a failure: redb wants its file to be opened again.
    database: Option<Database>,
    changes: Changes,
    /// Whether what has changed is not known any more, so that everything must be compared.
    behind: bool,
    /// In the file.
    entries: u64,
}

impl std::fmt::Debug for Saver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Saver").field("behind", &self.behind).finish_non_exhaustive()
    }
}

impl Saver {
    pub(crate) fn new(directory: Directory, database: Database) -> Self {
        Self { directory, database: Some(database), changes: Changes::new(), behind: false, entries: 0 }
    }

    /// Saves as its own thread until that is ended. `on_change` hears of the first failure after a success, and of the first success
    /// after a failure.
    pub fn start(
        self,
        store: impl AsRef<MemoryStore> + Send + 'static,
        on_change: impl Fn(Result<(), &SaveError>) + Send + 'static,
    ) -> Result<Saving, SaveError> {
        Saving::start(self, store, on_change)
    }

    /// Collects what has changed, without writing it: a short pause for calls, now, instead of a longer one later.
    pub(crate) fn collect(&mut self, store: &MemoryStore) {
        if self.behind {
            return;
        }
        match store.changes() {
            Some(changes) => self.changes.extend(changes.into_iter().map(|entry| (entry.key, entry.value))),
            None => self.fall_behind(store),
        }
    }

    /// Saves the store as it is at one instant of this call. When it returns, that is on the disk.
    pub fn save(&mut self, store: &MemoryStore) -> Result<(), SaveError> {
        self.collect(store);
        // A file that was changed by something else may break what redb takes for granted, as when it is opened.
        let write = AssertUnwindSafe(|| if self.behind { self.save_everything(store) } else { self.save_changes() });
        let broken = |_| Err(Problem::Damaged("its pages contradict each other".to_owned()));
        let saved = catch_unwind(write).unwrap_or_else(broken);
        saved.map_err(|problem| {
            self.fall_behind(store);
            SaveError::new(match problem {
                Problem::InUse => "another process has opened its file".to_owned(),
                Problem::Io(error) => error.to_string(),
                Problem::Newer(problem) | Problem::Damaged(problem) => problem,
            })
        })
    }

    fn fall_behind(&mut self, store: &MemoryStore) {
        store.forget_changes();
        (self.behind, self.changes, self.database) = (true, Changes::new(), None);
    }

    fn save_changes(&mut self) -> Result<(), Problem> {
        if self.changes.is_empty() {
            return Ok(());
        }
        let database = self.database.as_ref().expect("it is there unless the saver is behind");
        self.entries = file::write(database, &self.changes)?;
        // A peak should not be paid for ever.
        self.changes = Changes::with_capacity(self.changes.len().min(1024));
        Ok(())
    }

    /// Calls wait while everything is read, so it is read only when it can likely be written.
    fn save_everything(&mut self, store: &MemoryStore) -> Result<(), Problem> {
        let database = self.directory.database()?;
        file::probe(&database)?;
        self.entries = file::replace(&database, store.everything())?;
        (self.database, self.behind) = (Some(database), false);
        Ok(())
    }

    pub(crate) fn entries(&self) -> u64 {
        self.entries
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.directory.file_bytes()
    }
}
