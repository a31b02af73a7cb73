//! Waits for something outside this process, with a limit and a name.

use std::thread;
use std::time::{Duration, Instant};

/// Generous, because test machines are small and busy; a healthy wait ends in milliseconds.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Calls `ready` until it answers `Some`.
///
/// # Panics
/// After `limit`, naming `what`.
pub fn until<T>(what: &str, limit: Duration, mut ready: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = ready() {
            return value;
        }
        assert!(start.elapsed() < limit, "waited {limit:?} for {what}");
        thread::sleep(Duration::from_millis(5));
    }
}
