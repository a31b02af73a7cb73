//! Whether the store is up, who wants to know, and what the log says about it.

use std::mem::discriminant;

use tallygate::StoreError;
use tokio::sync::watch;
use tokio::time::Instant;

/// Whether the store answers.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Condition {
    /// It answered when it was last asked.
    Up,
    /// It did not, or it refused.
    Down {
        /// What was last heard.
        because: StoreError,
    },
}

impl Condition {
    /// Whether it is `Up`.
    pub fn is_up(&self) -> bool {
        matches!(self, Self::Up)
    }

    /// Whether someone who waits for changes wants to hear of this one. The words of a reason change with every attempt.
    fn differs(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Up, Self::Up) => false,
            (Self::Down { because: one }, Self::Down { because: other }) => discriminant(one) != discriminant(other),
            _ => true,
        }
    }
}

/// The present condition. Only the probe writes it.
#[derive(Debug)]
pub(super) struct Health(watch::Sender<Condition>);

impl Health {
    pub(super) fn new(condition: Condition) -> Self {
        Self(watch::Sender::new(condition))
    }

    pub(super) fn is_up(&self) -> bool {
        self.0.borrow().is_up()
    }

    pub(super) fn condition(&self) -> Condition {
        self.0.borrow().clone()
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<Condition> {
        self.0.subscribe()
    }

    /// What to tell a caller while there is no connection.
    pub(super) fn reason(&self) -> StoreError {
        match &*self.0.borrow() {
            Condition::Down { because } => because.clone(),
            Condition::Up => StoreError::Unavailable { reason: "the connection is being opened".to_owned() },
        }
    }

    /// True if this is news.
    fn write(&self, condition: Condition) -> bool {
        self.0.send_if_modified(|present| {
            let news = present.differs(&condition);
            *present = condition;
            news
        })
    }
}

/// Writes the health, and the log: once for every change.
pub(super) struct HealthLog<'a> {
    health: &'a Health,
    place: &'a str,
    down_since: Option<Instant>,
    /// Nothing has been said yet of a store that was never there.
    silent: bool,
}

impl<'a> HealthLog<'a> {
    /// For a store that has not been seen yet.
    pub(super) fn new(health: &'a Health, place: &'a str) -> Self {
        Self { health, place, down_since: Some(Instant::now()), silent: true }
    }

    pub(super) fn up(&mut self) {
        if !self.health.write(Condition::Up) {
            return;
        }
        let down = self.down_since.take().map_or_else(Default::default, |since| since.elapsed());
        if self.silent {
            tracing::info!(store = self.place, "the store is up");
        } else {
            tracing::info!(store = self.place, down_ms = millis(down), "the store is up again");
        }
        self.silent = false;
    }

    pub(super) fn down(&mut self, because: StoreError) {
        let news = self.health.write(Condition::Down { because: because.clone() });
        if news || self.silent {
            self.down_since.get_or_insert_with(Instant::now);
            tracing::warn!(store = self.place, reason = %because, "the store is down");
        }
        self.silent = false;
    }
}

fn millis(span: std::time::Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}
