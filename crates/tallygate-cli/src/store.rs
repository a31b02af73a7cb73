//! The store of a command, and how long to wait for it.

use std::io::{self, Write};
use std::time::Duration;

use tallygate_redis::{AnyStore, ConnectError};

/// The store of a command.
#[derive(Debug, clap::Args)]
pub(crate) struct StoreArgs {
    /// Where states live: `memory` (this process only), or the URL of a Redis or Valkey server
    // A URL may contain a password, so the help does not show it.
    #[arg(long, value_name = "URL", env = "TALLYGATE_STORE", hide_env_values = true, default_value = AnyStore::MEMORY)]
    pub(crate) store: String,
    /// The prefix of all keys on a server
    #[arg(long, value_name = "PREFIX", env = "TALLYGATE_PREFIX", default_value = "tallygate")]
    pub(crate) prefix: String,
}

impl StoreArgs {
    /// The URL of the server; `None` for the embedded store.
    pub(crate) fn url(&self) -> Option<&str> {
        (self.store.trim() != AnyStore::MEMORY).then_some(self.store.as_str())
    }

    pub(crate) async fn open(&self) -> anyhow::Result<AnyStore> {
        let store = AnyStore::builder(&self.store).prefix(&self.prefix).deadline(PATIENCE).open().await;
        store.map_err(blame)
    }
}

/// People wait longer than services do.
const PATIENCE: Duration = Duration::from_secs(2);

/// Names the option that is wrong.
fn blame(error: ConnectError) -> anyhow::Error {
    let option = if matches!(error, ConnectError::Prefix { .. }) { "--prefix" } else { "--store" };
    anyhow::Error::from(error).context(option)
}

/// Notes on stderr that the embedded store does not outlive the command.
pub(crate) fn note_if_forgotten(store: &AnyStore) {
    if matches!(store, AnyStore::Memory(_)) {
        let _ = writeln!(
            io::stderr(),
            "note: the embedded store forgets everything when this command ends; to keep it, \
             add --store redis://127.0.0.1:6379 or set TALLYGATE_STORE"
        );
    }
}
