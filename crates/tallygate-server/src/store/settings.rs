//! Which store a server works with, and how it treats it.

use std::time::Duration;

use tallygate_redis::{AnyStore, StoreUrl};

/// The settings of a [`ServedStore`](super::ServedStore). They hold a password, perhaps, so only their [place](Self::place)
/// can be printed.
#[derive(Clone)]
pub struct StoreSpec {
    /// `memory`, or the URL of a Redis or Valkey server.
    pub store: String,
    /// What every key on a server begins with. `tallygate` unless said.
    pub prefix: String,
    /// How long a call may take. 15 ms unless said.
    pub deadline: Duration,
    /// How long between two audits; zero is never. Five minutes unless said.
    pub audit_every: Duration,
    /// How many keys an audit looks at before it stops. 100,000 unless said.
    pub audit_keys: u64,
}

impl StoreSpec {
    /// The store that `text` names: `memory`, or the URL of a Redis or Valkey server.
    pub fn new(text: &str) -> Self {
        Self {
            store: text.trim().to_owned(),
            prefix: "tallygate".to_owned(),
            deadline: Duration::from_millis(15),
            audit_every: Duration::from_secs(5 * 60),
            audit_keys: 100_000,
        }
    }

    /// Where states live, without the password.
    pub fn place(&self) -> String {
        if self.store == AnyStore::MEMORY {
            return self.store.clone();
        }
        self.store.parse::<StoreUrl>().map_or_else(|_| "an unreadable URL".to_owned(), |url| url.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_never_printed() {
        for url in ["redis://me:hunter2@h/1", "redis://hunter2@h", "redis+sentinel://h/m?sentinel_password=hunter2"] {
            let printed = StoreSpec::new(url).place();
            assert!(!printed.contains("hunter2"), "{printed}");
        }
    }
}
