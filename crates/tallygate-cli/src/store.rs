//! Which store a command works on, and how long it waits for it.

use std::io::{self, Write};
use std::time::Duration;

use tallygate_redis::{AnyStore, ConnectError};

/// Where the states are kept.
#[derive(Debug, clap::Args)]
pub(crate) struct StoreArgs {
    /// Where states live: `memory` (this process only), or the URL of a Redis or Valkey server
    // A URL may hold a password, so its value stays out of the help.
    #[arg(long, value_name = "URL", env = "TALLYGATE_STORE", hide_env_values = true, default_value = AnyStore::MEMORY)]
    pub(crate) store: String,
    /// What the keys on a server begin with
    #[arg(long, value_name = "PREFIX", env = "TALLYGATE_PREFIX", default_value = "tallygate")]
    pub(crate) prefix: String,
}

impl StoreArgs {
    /// The URL of the server, unless states live in this process.
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

/// Names the option that is to blame.
fn blame(error: ConnectError) -> anyhow::Error {
    let option = if matches!(error, ConnectError::Prefix { .. }) { "--prefix" } else { "--store" };
    anyhow::Error::from(error).context(option)
}

/// Says on stderr if what a command did here is forgotten when it ends.
pub(crate) fn note_if_forgotten(store: &AnyStore) {
    if matches!(store, AnyStore::Memory(_)) {
        let _ = writeln!(
            io::stderr(),
            "note: the embedded store forgets everything when this command ends; to keep it, \
             add --store redis://127.0.0.1:6379 or set TALLYGATE_STORE"
        );
    }
}
