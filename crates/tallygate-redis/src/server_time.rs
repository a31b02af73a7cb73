//! About what time it is on the server. Never part of a decision: it only says around which instant the windows of a
//! calendar are sent, and if the server's clock lies outside them, it is asked once more.

use std::sync::atomic::{AtomicI64, Ordering};

use tallygate::clock::{Clock, Timestamp};

/// The clock of this process, and by how much the server's was ahead of it when it last mattered.
#[derive(Debug)]
pub(crate) struct ServerTime {
    clock: Clock,
    ahead: AtomicI64,
}

impl ServerTime {
    pub(crate) fn new(clock: Clock) -> Self {
        Self { clock, ahead: AtomicI64::new(0) }
    }

    /// The server's time, in microseconds, as far as it is known.
    pub(crate) fn about(&self) -> u64 {
        self.clock.now().as_micros().saturating_add_signed(self.ahead.load(Ordering::Relaxed))
    }

    /// The server's clock differs by more than the windows that it was sent.
    pub(crate) fn learn(&self, server: Timestamp) {
        let [server, here] = [server, self.clock.now()].map(|at| i64::try_from(at.as_micros()).unwrap_or(i64::MAX));
        self.ahead.store(server.saturating_sub(here), Ordering::Relaxed);
    }
}
