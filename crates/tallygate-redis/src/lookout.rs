//! Asks the task that knows the servers to look again, and waits for it.

use std::sync::Arc;

use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout_at};

/// Shared by those who suspect that the servers have changed and the one task that finds out: any number of suspicions while
/// it looks are one more look.
pub(crate) struct Lookout {
    wanted: Arc<Notify>,
    looks: watch::Sender<u64>,
}

impl Lookout {
    pub(crate) fn new() -> Self {
        Self { wanted: Arc::new(Notify::new()), looks: watch::Sender::new(0) }
    }

    /// What to notify, or to be notified by, when a look is wanted.
    pub(crate) fn wanted(&self) -> Arc<Notify> {
        Arc::clone(&self.wanted)
    }

    pub(crate) fn look_again(&self) {
        self.wanted.notify_one();
    }

    pub(crate) fn has_looked(&self) {
        self.looks.send_modify(|looks| *looks += 1);
    }

    /// Has someone look and waits for it; false if the deadline comes first.
    pub(crate) async fn renew(&self, deadline: Instant) -> bool {
        let mut looks = self.looks.subscribe();
        self.look_again();
        timeout_at(deadline, looks.changed()).await.is_ok()
    }
}
