//! Keeps the embedded store of `tallygate` in a directory: a restart resets no limit, and a crash loses at most what was charged in
//! the last second.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let parent = tempfile::tempdir()?;
//! # let directory = parent.path().join("data");
//! use std::sync::Arc;
//! use tallygate::{Limiter, MemoryStore};
//!
//! let (store, saver) = tallygate_disk::open(&directory, MemoryStore::builder())?;
//! let store = Arc::new(store);
//! let saving = saver.start(Arc::clone(&store), |_| {})?;
//!
//! let api = Limiter::over(store).limit("api", "10/day")?;
//! assert!(api.check_now("user:42")?.allowed());
//! saving.end()?;
//!
//! let (store, _) = tallygate_disk::open(&directory, MemoryStore::builder())?;
//! assert_eq!(Limiter::new(store).limit("api", "10/day")?.check_now("user:42")?.binding().remaining(), 8);
//! # Ok(()) }
//! ```
//!
//! Decisions are made in memory, and wait for no disk. A thread writes what has changed, twice a second, in one transaction: the
//! directory always has the store as it was at one instant. If the disk fails or is full, the store goes on without it, and is saved
//! whole as soon as that is possible again.

mod background;
mod directory;
mod error;
mod file;
mod saver;
#[cfg(test)]
mod tests;

pub use background::{Figures, Saving};
pub use directory::open;
pub use error::{OpenError, SaveError};
pub use saver::Saver;
