//! Whether the store is up, and the log of its changes.

use std::collections::HashMap;

use tallygate::StoreError;
use tallygate_redis::{Health, ServerHealth};
use tokio::time::Instant;

use super::Parts;

/// Whether any part of the store answers, or the error of calls.
pub type Condition = Result<(), StoreError>;

/// Writes what is known of the store, and one log line for every change of the store and of its servers.
pub(super) struct HealthLog<'a> {
    parts: &'a Parts,
    /// Nothing has been logged yet.
    silent: bool,
    down_since: Option<Instant>,
    /// The servers of several that are down, since when, and their errors.
    down: HashMap<String, (Instant, StoreError)>,
}

impl<'a> HealthLog<'a> {
    /// For a store that has not answered yet.
    pub(super) fn new(parts: &'a Parts) -> Self {
        Self { parts, silent: true, down_since: Some(Instant::now()), down: HashMap::new() }
    }

    /// What is known of the servers.
    pub(super) fn servers(&mut self, health: Health) {
        if health.servers.len() > 1 {
            health.servers.iter().for_each(|server| self.server(server));
        }
        // Those that were replaced, or removed from the cluster, are of no interest any more.
        self.down.retain(|address, _| health.servers.iter().any(|server| server.address == *address));
        let condition = health.any();
        self.parts.health.send_replace(Some(health));
        match condition {
            Ok(()) => self.up(),
            Err(error) => self.down(error),
        }
    }

    /// True if this is a change. The text of an error may differ with every attempt, so its kind is compared.
    fn write(&self, condition: Condition) -> bool {
        self.parts.condition.send_if_modified(|present| {
            let kinds = [&*present, &condition].map(|condition| condition.as_ref().err().map(StoreError::kind));
            *present = condition;
            kinds[0] != kinds[1]
        })
    }

    fn up(&mut self) {
        if !self.write(Ok(())) {
            return;
        }
        let store = self.parts.place.as_str();
        let down_ms = self.down_since.take().map_or(0, millis_since);
        if self.silent {
            tracing::info!(store, "the store is up");
        } else {
            tracing::info!(store, down_ms, "the store is up again");
        }
        self.silent = false;
    }

    pub(super) fn down(&mut self, because: StoreError) {
        if self.write(Err(because.clone())) || self.silent {
            self.down_since.get_or_insert_with(Instant::now);
            let store = self.parts.place.as_str();
            tracing::warn!(store, reason = %because, "the store is down; on_error answers until it is back");
        }
        self.silent = false;
    }

    /// One server of several.
    fn server(&mut self, server: &ServerHealth) {
        let (address, slots) = (server.address.as_str(), server.slots);
        let before = self.down.remove(address);
        let Some(error) = &server.error else {
            if let Some((since, _)) = before {
                let down_ms = millis_since(since);
                tracing::info!(server = address, slots, down_ms, "a server of the store is up again");
            }
            return;
        };
        if before.as_ref().is_none_or(|(_, known)| known.kind() != error.kind()) {
            tracing::warn!(server = address, slots, reason = %error, "a server of the store is down; on_error answers for its slots");
        }
        let since = before.map_or_else(Instant::now, |(since, _)| since);
        self.down.insert(address.to_owned(), (since, error.clone()));
    }
}

fn millis_since(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX)
}
