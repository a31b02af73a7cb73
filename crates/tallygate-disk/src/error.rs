//! Why a directory cannot be used, and why something could not be saved.

use std::io;
use std::path::PathBuf;

/// Why a data directory cannot be opened. Nothing in it was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Another process has it open.
    #[error("the data directory {} is in use by another process: stop that process, or choose another directory", .path.display())]
    InUse {
        /// The directory.
        path: PathBuf,
    },
    /// It cannot be read and written.
    #[error(
        "the data directory {} cannot be used: {source}. It must be a directory that this user can read and write, on a disk that has room",
        .path.display()
    )]
    Unusable {
        /// The directory.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// A newer version has written it.
    #[error("{} was written by a newer version: {found}. Use that version, or choose another directory", .path.display())]
    Newer {
        /// The file.
        path: PathBuf,
        /// What was found.
        found: String,
    },
    /// Its file is not what was written.
    #[error(
        "{} is damaged: {problem}. Restore it from a backup; or move it away, to start with limits of which nothing is used",
        .path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
}

/// Why the store could not be saved. It goes on in memory.
#[derive(Debug, thiserror::Error)]
#[error("the store could not be saved: {problem}")]
pub struct SaveError {
    pub(crate) problem: String,
}

impl SaveError {
    pub(crate) fn new(problem: impl ToString) -> Self {
        Self { problem: problem.to_string() }
    }
}
