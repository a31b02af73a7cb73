//! Coalesced refreshes of what is known about the servers.

use std::sync::Arc;

use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout_at};

/// Shared by the calls that suspect a change and the one task that finds out: any number of requests during a refresh are
/// one more refresh.
pub(crate) struct Refresh {
    requested: Arc<Notify>,
    finished: watch::Sender<u64>,
}

impl Refresh {
    pub(crate) fn new() -> Self {
        Self { requested: Arc::new(Notify::new()), finished: watch::Sender::new(0) }
    }

    /// Notified when a refresh is requested, and to request one.
    pub(crate) fn requested(&self) -> Arc<Notify> {
        Arc::clone(&self.requested)
    }

    pub(crate) fn request(&self) {
        self.requested.notify_one();
    }

    pub(crate) fn done(&self) {
        self.finished.send_modify(|count| *count += 1);
    }

    /// Requests a refresh and waits for it; false if the deadline comes first.
    pub(crate) async fn wait(&self, deadline: Instant) -> bool {
        let mut finished = self.finished.subscribe();
        self.request();
        timeout_at(deadline, finished.changed()).await.is_ok()
    }
}
