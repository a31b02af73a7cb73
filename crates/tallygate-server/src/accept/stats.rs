//! What a listener counts.

use std::sync::atomic::AtomicU64;

/// Counts of one listener, read at any time; each is exact, together they are no snapshot.
#[derive(Debug, Default)]
pub struct ListenStats {
    /// Connections open now.
    pub connections: AtomicU64,
    /// Connections and requests turned away because there were too many.
    pub shed: AtomicU64,
    /// Requests whose header was read, shed ones included.
    pub requests: AtomicU64,
    /// Requests whose handler panicked.
    pub panics: AtomicU64,
}
