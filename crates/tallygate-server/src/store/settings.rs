//! Which store a server works with, and how it treats it.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use tallygate_redis::{AnyStore, ConnectError, RedisStore, RedisStoreBuilder, StoreUrl, Sweep};

/// Between two steps of an audit: its few hundred keys are a millisecond of the server's work, at most one in twenty.
const AUDIT_REST: Duration = Duration::from_millis(20);

/// The settings of a [`ServedStore`](super::ServedStore).
#[derive(Clone)]
pub struct StoreSpec {
    text: String,
    prefix: String,
    deadline: Duration,
    in_flight: usize,
    audit_every: Option<Duration>,
    audit_keys: u64,
}

impl StoreSpec {
    /// The store that `text` names: `memory`, or the URL of a Redis or Valkey server.
    pub fn new(text: &str) -> Self {
        Self {
            text: text.trim().to_owned(),
            prefix: "tallygate".to_owned(),
            deadline: Duration::from_millis(15),
            in_flight: 1024,
            audit_every: Some(Duration::from_secs(5 * 60)),
            audit_keys: 100_000,
        }
    }

    /// What every key on a server begins with. `tallygate` unless said.
    #[must_use]
    pub fn prefix(mut self, prefix: &str) -> Self {
        prefix.clone_into(&mut self.prefix);
        self
    }

    /// How long a call may take. 15 ms unless said.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// How many calls may be under way at once. 1024 unless said.
    #[must_use]
    pub fn in_flight(mut self, calls: usize) -> Self {
        self.in_flight = calls;
        self
    }

    /// How long between two audits; zero is never. Five minutes unless said.
    #[must_use]
    pub fn audit_every(mut self, every: Duration) -> Self {
        self.audit_every = Some(every).filter(|every| !every.is_zero());
        self
    }

    /// How many keys an audit looks at before it stops. 100,000 unless said.
    #[must_use]
    pub fn audit_keys(mut self, keys: u64) -> Self {
        self.audit_keys = keys;
        self
    }

    pub(super) fn is_memory(&self) -> bool {
        self.text == AnyStore::MEMORY
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// Where states live, without the password.
    pub fn place(&self) -> String {
        if self.is_memory() {
            return self.text.clone();
        }
        StoreUrl::from_str(&self.text).map_or_else(|_| "an unreadable URL".to_owned(), |url| url.to_string())
    }

    pub(super) fn server(&self) -> RedisStoreBuilder {
        RedisStore::builder(&self.text).prefix(&self.prefix).deadline(self.deadline).in_flight(self.in_flight)
    }

    pub(super) fn sweep(&self) -> Result<Sweep, ConnectError> {
        Ok(Sweep::of(&self.prefix)?.at_most(self.audit_keys).rest(AUDIT_REST))
    }

    pub(super) fn audit_interval(&self) -> Option<Duration> {
        self.audit_every
    }
}

impl fmt::Debug for StoreSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreSpec")
            .field("place", &self.place())
            .field("prefix", &self.prefix)
            .field("deadline", &self.deadline)
            .field("in_flight", &self.in_flight)
            .field("audit_every", &self.audit_every)
            .field("audit_keys", &self.audit_keys)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_never_printed() {
        for url in ["redis://me:hunter2@h/1", "redis://hunter2@h", "redis+sentinel://h/m?sentinel_password=hunter2"] {
            let printed = format!("{:?}", StoreSpec::new(url));
            assert!(!printed.contains("hunter2"), "{printed}");
        }
    }
}
