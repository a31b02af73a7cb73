//! What a listener counts.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Counts of one listener, read at any time; each is exact, together they are no snapshot.
#[derive(Debug, Default)]
pub struct ListenStats {
    connections: AtomicU64,
    shed: AtomicU64,
    requests: AtomicU64,
    panics: AtomicU64,
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

    pub(crate) fn add_shed(&self) {
        self.shed.fetch_add(1, Relaxed);
    }

    pub(crate) fn add_request(&self) {
        self.requests.fetch_add(1, Relaxed);
    }

    pub(crate) fn add_panic(&self) {
        self.panics.fetch_add(1, Relaxed);
    }

    /// Counts a connection as open until the guard goes.
    pub(super) fn connection(self: &Arc<Self>) -> OpenConnection {
        self.connections.fetch_add(1, Relaxed);
        OpenConnection(Arc::clone(self))
    }
}

#[derive(Debug)]
pub(super) struct OpenConnection(Arc<ListenStats>);

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Relaxed);
    }
}
