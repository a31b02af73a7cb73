//! Whether the store is up, who wants to know, and what the log says about it.

use std::mem::discriminant;

use tallygate::StoreError;
use tokio::sync::watch;
use tokio::time::Instant;

/// Whether the store answered when it was last asked, or what was last heard instead.
pub type Condition = Result<(), StoreError>;

/// Writes the condition, and the log: once for every change.
pub(super) struct HealthLog<'a> {
    condition: &'a watch::Sender<Condition>,
    place: &'a str,
    down_since: Option<Instant>,
    /// Nothing has been said yet of a store that was never there.
    silent: bool,
}

impl<'a> HealthLog<'a> {
    /// For a store that has not been seen yet.
    pub(super) fn new(condition: &'a watch::Sender<Condition>, place: &'a str) -> Self {
        Self { condition, place, down_since: Some(Instant::now()), silent: true }
    }

    /// True if this is news. The words of a reason change with every attempt: its kind counts.
    fn write(&self, condition: Condition) -> bool {
        self.condition.send_if_modified(|present| {
            let kinds = [&*present, &condition].map(|condition| condition.as_ref().err().map(discriminant));
            *present = condition;
            kinds[0] != kinds[1]
        })
    }

    pub(super) fn up(&mut self) {
        if !self.write(Ok(())) {
            return;
        }
        let down = self.down_since.take().map_or_else(Default::default, |since| since.elapsed());
        if self.silent {
            tracing::info!(store = self.place, "the store is up");
        } else {
            let down_ms = u64::try_from(down.as_millis()).unwrap_or(u64::MAX);
            tracing::info!(store = self.place, down_ms, "the store is up again");
        }
        self.silent = false;
    }

    pub(super) fn down(&mut self, because: StoreError) {
        if self.write(Err(because.clone())) || self.silent {
            self.down_since.get_or_insert_with(Instant::now);
            tracing::warn!(store = self.place, reason = %because, "the store is down");
        }
        self.silent = false;
    }
}
