//! What a listener counts.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Counts of one listener, read at any time; each is exact, together they are no snapshot.
#[derive(Debug, Default)]
pub struct ListenStats {
    pub(super) connections: AtomicU64,
    pub(crate) shed: AtomicU64,
    pub(crate) requests: AtomicU64,
    pub(crate) panics: AtomicU64,
}

impl ListenStats {
    /// Connections open now.
    pub fn connections(&self) -> u64 {
        self.connections.load(Relaxed)
    }

    /// Connections and requests turned away because there were too many.
    pub fn shed(&self) -> u64 {
        self.shed.load(Relaxed)
    }

    /// Requests whose header was read, shed ones included.
    pub fn requests(&self) -> u64 {
        self.requests.load(Relaxed)
    }

    /// Requests whose handler panicked.
    pub fn panics(&self) -> u64 {
        self.panics.load(Relaxed)
    }
}
