//! A store chosen by a text.

use tallygate::call::Call;
use tallygate::counter::{CounterError, CounterName, CounterOp, CounterValue, Counters};
use tallygate::hold::{Hold, HoldPage, HoldQuery, Holds, Resolution, Resolved, Work};
use tallygate::live::{Overrides, Reading, Replaced, Replacement};
use tallygate::{Decision, MemoryStore, Store, StoreError};

use crate::builder::{ConnectError, RedisStoreBuilder};
use crate::store::RedisStore;

/// The store that a text names: `memory` for the embedded one, or the URL of a Redis or Valkey server (see
/// [`StoreUrl`](crate::StoreUrl)). Moving from one process to a fleet changes only that text.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use tallygate::{Check, Key, Limit, Limiter};
/// use tallygate_redis::AnyStore;
///
/// let place = std::env::var("TALLYGATE_STORE").unwrap_or("memory".into()); // or "redis://10.0.0.5:6379"
/// # let place = { let _ = place; AnyStore::MEMORY };
/// let limiter = Limiter::new(AnyStore::open(&place).await?);
/// let limit: Limit = "100/min".parse()?;
/// assert!(limiter.check(Check::new(Key::new("api", "user:42")?, &limit)).await?.allowed());
/// # Ok(()) }
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum AnyStore {
    /// States in this process.
    Memory(MemoryStore),
    /// States on a server, shared by any number of processes.
    Redis(RedisStore),
}

impl AnyStore {
    /// The name of the embedded store.
    pub const MEMORY: &str = "memory";

    /// Opens the store that `text` names, with default settings.
    pub async fn open(text: &str) -> Result<Self, ConnectError> {
        Self::builder(text).open().await
    }

    /// Starts a store with other settings.
    pub fn builder(text: &str) -> RedisStoreBuilder {
        RedisStoreBuilder::new(text)
    }
}

impl AnyStore {
    /// A page of the open holds. See [`MemoryStore::open_holds`] and [`RedisStore::open_holds`].
    pub async fn open_holds(&self, query: &HoldQuery) -> Result<HoldPage, StoreError> {
        match self {
            Self::Memory(store) => Ok(store.open_holds(query)),
            Self::Redis(store) => store.open_holds(query).await,
        }
    }
}

impl From<MemoryStore> for AnyStore {
    fn from(store: MemoryStore) -> Self {
        Self::Memory(store)
    }
}

impl From<RedisStore> for AnyStore {
    fn from(store: RedisStore) -> Self {
        Self::Redis(store)
    }
}

impl Store for AnyStore {
    async fn call(&self, call: &Call<'_>) -> Result<Decision, StoreError> {
        match self {
            Self::Memory(store) => store.call(call).await,
            Self::Redis(store) => store.call(call).await,
        }
    }

    fn call_now(&self, call: &Call<'_>) -> Option<Result<Decision, StoreError>> {
        match self {
            Self::Memory(store) => store.call_now(call),
            Self::Redis(_) => None,
        }
    }
}

impl Holds for AnyStore {
    async fn resolve(&self, resolution: &Resolution<'_>) -> Result<Resolved, StoreError> {
        match self {
            Self::Memory(store) => store.resolve(resolution).await,
            Self::Redis(store) => store.resolve(resolution).await,
        }
    }

    fn cancel_soon(&self, hold: Hold) {
        match self {
            Self::Memory(store) => store.cancel_soon(hold),
            Self::Redis(store) => store.cancel_soon(hold),
        }
    }

    fn finish(&self, work: Work) {
        match self {
            Self::Memory(store) => store.finish(work),
            Self::Redis(store) => store.finish(work),
        }
    }
}

impl Counters for AnyStore {
    async fn count(&self, name: &CounterName, op: CounterOp) -> Result<CounterValue, CounterError> {
        match self {
            Self::Memory(store) => store.count(name, op).await,
            Self::Redis(store) => store.count(name, op).await,
        }
    }
}

impl Overrides for AnyStore {
    async fn read_overrides(&self, known: Option<u64>) -> Result<Reading, StoreError> {
        match self {
            Self::Memory(store) => store.read_overrides(known).await,
            Self::Redis(store) => store.read_overrides(known).await,
        }
    }

    async fn replace_overrides(&self, replacement: Replacement) -> Result<Replaced, StoreError> {
        match self {
            Self::Memory(store) => store.replace_overrides(replacement).await,
            Self::Redis(store) => store.replace_overrides(replacement).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_text_names_a_store_or_says_why_not() {
        assert!(matches!(AnyStore::open(" memory\n").await, Ok(AnyStore::Memory(_))));
        assert!(matches!(AnyStore::open("memroy").await, Err(ConnectError::Url(_))));
        assert!(matches!(AnyStore::open("http://host").await, Err(ConnectError::Url(_))));
        let spaced = AnyStore::builder("memory").prefix("a b").open().await;
        assert!(matches!(spaced, Err(ConnectError::Prefix { .. })));
        // Nothing listens on port 1.
        assert!(matches!(AnyStore::open("redis://127.0.0.1:1").await, Err(ConnectError::Store(_))));
    }

    #[test]
    fn debug_output_of_settings_has_no_password() {
        let printed = format!("{:?}", AnyStore::builder("redis://user:hunter2@h").prefix("p"));
        assert!(!printed.contains("hunter2"), "{printed}");
    }
}
