//! The counters of a listener.

use std::sync::atomic::AtomicU64;

/// The counters of one listener. Each is exact; together they are not a snapshot.
#[derive(Debug, Default)]
pub struct ListenStats {
    /// Open connections.
    pub connections: AtomicU64,
    /// Connections and requests refused because there were too many.
    pub shed: AtomicU64,
    /// Requests whose header was read, refused ones included.
    pub requests: AtomicU64,
    /// Requests whose handler panicked.
    pub panics: AtomicU64,
}
