//! Whether the store is up, and the log of its changes.

use tallygate::StoreError;
use tokio::sync::watch;
use tokio::time::Instant;

/// Whether the store answered the last probes, or the last error.
pub type Condition = Result<(), StoreError>;

/// Writes the condition, and one log line for every change.
pub(super) struct HealthLog<'a> {
    condition: &'a watch::Sender<Condition>,
    place: &'a str,
    down_since: Option<Instant>,
    /// Nothing has been logged yet.
    silent: bool,
}

impl<'a> HealthLog<'a> {
    /// For a store that has not answered yet.
    pub(super) fn new(condition: &'a watch::Sender<Condition>, place: &'a str) -> Self {
        Self { condition, place, down_since: Some(Instant::now()), silent: true }
    }

    /// True if this is a change. The text of an error may differ with every attempt, so its kind is compared.
    fn write(&self, condition: Condition) -> bool {
        self.condition.send_if_modified(|present| {
            let kinds = [&*present, &condition].map(|condition| condition.as_ref().err().map(StoreError::kind));
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
            tracing::warn!(store = self.place, reason = %because, "the store is down; on_error answers until it is back");
        }
        self.silent = false;
    }
}
