//! Which store a command works on: the only place that knows them all.

use std::io::{self, Write};
use std::time::Duration;

use tollgate::{
    Check, CounterError, CounterName, CounterOp, CounterValue, Decision, MemoryStore, Store, StoreError, Timestamp,
};
use tollgate_redis::{ConnectError, RedisStore};

/// Where the states are kept.
#[derive(Debug, clap::Args)]
pub(crate) struct StoreArgs {
    /// Where states live: `memory` (this process only), or the URL of a Redis or Valkey server
    // A URL may hold a password, so its value stays out of the help.
    #[arg(long, value_name = "URL", env = "TOLLGATE_STORE", hide_env_values = true, default_value = AnyStore::MEMORY)]
    pub(crate) store: String,
    /// What the keys on a server begin with
    #[arg(long, value_name = "PREFIX", env = "TOLLGATE_PREFIX", default_value = "tollgate")]
    pub(crate) prefix: String,
}

impl StoreArgs {
    /// The URL of the server, unless states live in this process.
    pub(crate) fn url(&self) -> Option<&str> {
        (self.store != AnyStore::MEMORY).then_some(self.store.as_str())
    }

    /// Opens the store.
    pub(crate) async fn open(&self) -> anyhow::Result<AnyStore> {
        Ok(match self.url() {
            None => AnyStore::Memory(MemoryStore::new()),
            Some(url) => AnyStore::Redis(Box::new(AnyStore::redis(url, &self.prefix).await?)),
        })
    }
}

/// People wait longer than services do.
const PATIENCE: Duration = Duration::from_secs(2);

/// One of the stores there are.
pub(crate) enum AnyStore {
    Memory(MemoryStore),
    Redis(Box<RedisStore>),
}

impl AnyStore {
    const MEMORY: &str = "memory";

    /// Says on stderr if what a command did here is forgotten when it ends.
    pub(crate) fn note_if_forgotten(&self) {
        match self {
            Self::Memory(_) => {
                let _ = writeln!(
                    io::stderr(),
                    "note: the embedded store forgets everything when this command ends; to keep it, \
                     add --store redis://127.0.0.1:6379 or set TOLLGATE_STORE"
                );
            }
            Self::Redis(_) => {}
        }
    }

    /// The store on a server, its keys beginning with `prefix`.
    pub(crate) async fn redis(url: &str, prefix: &str) -> anyhow::Result<RedisStore> {
        let store = RedisStore::builder(url).prefix(prefix).deadline(PATIENCE).connect().await;
        store.map_err(|error| match error {
            ConnectError::Prefix { .. } => anyhow::Error::from(error).context("--prefix"),
            error => anyhow::Error::from(error).context("--store"),
        })
    }
}

impl Store for AnyStore {
    async fn check(&self, checks: &[Check<'_>]) -> Result<Decision, StoreError> {
        match self {
            Self::Memory(store) => store.check(checks).await,
            Self::Redis(store) => store.check(checks).await,
        }
    }

    async fn peek(&self, checks: &[Check<'_>]) -> Result<Decision, StoreError> {
        match self {
            Self::Memory(store) => store.peek(checks).await,
            Self::Redis(store) => store.peek(checks).await,
        }
    }

    async fn refund(&self, check: &Check<'_>, charged_at: Option<Timestamp>) -> Result<u64, StoreError> {
        match self {
            Self::Memory(store) => store.refund(check, charged_at).await,
            Self::Redis(store) => store.refund(check, charged_at).await,
        }
    }

    async fn reset(&self, check: &Check<'_>) -> Result<bool, StoreError> {
        match self {
            Self::Memory(store) => store.reset(check).await,
            Self::Redis(store) => store.reset(check).await,
        }
    }

    async fn count(&self, name: &CounterName, op: CounterOp) -> Result<CounterValue, CounterError> {
        match self {
            Self::Memory(store) => store.count(name, op).await,
            Self::Redis(store) => store.count(name, op).await,
        }
    }
}
