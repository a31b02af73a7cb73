//! The settings of the store.

use std::path::PathBuf;
use std::time::Duration;

use tallygate_redis::{AnyStore, StoreUrl};

/// The settings of a [`ServedStore`](super::ServedStore). They may contain a password, so there is no `Debug`; print their
/// [place](Self::place).
#[derive(Clone)]
pub struct StoreSpec {
    /// `memory`, or the URL of a Redis or Valkey server.
    pub store: String,
    /// Where the embedded store is kept when the process ends. `None`: nowhere.
    pub data_dir: Option<PathBuf>,
    /// The prefix of every key. Defaults to `tallygate`.
    pub prefix: String,
    /// How long a call may take. Defaults to 15 ms.
    pub deadline: Duration,
    /// Whether concurrent calls about one key share runs of a script. Defaults to true.
    pub coalesce: bool,
    /// The time between two audits; zero disables them. Defaults to five minutes.
    pub audit_every: Duration,
}

impl StoreSpec {
    /// `text` is `memory`, or the URL of a Redis or Valkey server.
    pub fn new(text: &str) -> Self {
        Self {
            store: text.trim().to_owned(),
            data_dir: None,
            prefix: "tallygate".to_owned(),
            deadline: Duration::from_millis(15),
            coalesce: true,
            audit_every: Duration::from_secs(5 * 60),
        }
    }

    /// `memory`, or the URL without its password.
    pub fn place(&self) -> String {
        if self.store == AnyStore::MEMORY {
            return self.store.clone();
        }
        self.store.parse::<StoreUrl>().map_or_else(|_| "an invalid URL".to_owned(), |url| url.to_string())
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
