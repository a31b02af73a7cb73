//! The settings of a store, and connecting to it.

use std::sync::Arc;
use std::time::Duration;

#[cfg(feature = "manual-clock")]
use tallygate::ManualClock;
use tallygate::{MemoryStore, StoreError};

use crate::any_store::AnyStore;
use crate::connection::{Client, Settings};
use crate::scripts::Scripts;
use crate::store::{Engine, RedisStore};
use crate::url::{StoreUrl, UrlError};

/// Waits are cut to this: nobody means longer ones.
const LONGEST_WAIT: Duration = Duration::from_secs(3600);

/// The settings of a [`RedisStore`], or of an [`AnyStore`], whose embedded store has no use for them.
#[derive(Debug, Clone)]
#[must_use = "call `.connect().await`, or for an `AnyStore` `.open().await`"]
pub struct RedisStoreBuilder {
    in_memory: bool,
    // Not as it was written: so it prints no password.
    url: Result<StoreUrl, UrlError>,
    prefix: String,
    settings: Settings,
    #[cfg(feature = "manual-clock")]
    clock: Option<ManualClock>,
}

/// Why there is no store.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The URL is wrong.
    #[error(transparent)]
    Url(#[from] UrlError),
    /// The prefix cannot begin a key.
    #[error("`{prefix}` cannot begin a key: use 1 to 64 letters, digits, `-`, `_`, `.` or `/`")]
    Prefix {
        /// What was asked.
        prefix: String,
    },
    /// The server cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl RedisStoreBuilder {
    pub(crate) fn new(text: &str) -> Self {
        Self {
            in_memory: text.trim() == AnyStore::MEMORY,
            url: text.parse(),
            prefix: "tallygate".to_owned(),
            settings: Settings::default(),
            #[cfg(feature = "manual-clock")]
            clock: None,
        }
    }

    /// What every key begins with. `tallygate` unless said.
    pub fn prefix(mut self, prefix: &str) -> Self {
        prefix.clone_into(&mut self.prefix);
        self
    }

    /// How long a decision may take: connecting, waiting, redirections and retries included. 50 ms unless said.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.settings.deadline = deadline.min(LONGEST_WAIT);
        self
    }

    /// How many calls may be under way at once. 1024 unless said.
    pub fn in_flight(mut self, calls: usize) -> Self {
        self.settings.in_flight = calls;
        self
    }

    /// How long opening a connection may take. One second unless said.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.settings.connect_timeout = timeout.min(LONGEST_WAIT);
        self
    }

    /// Decides by a clock that a test moves. Every client of the server must share it.
    #[cfg(feature = "manual-clock")]
    pub fn manual_clock(mut self, clock: ManualClock) -> Self {
        self.clock = Some(clock);
        self
    }

    /// What is wrong with the URL or the prefix, if anything: all that no server needs to be asked for.
    pub fn validate(&self) -> Result<(), ConnectError> {
        self.url.as_ref().map_err(Clone::clone)?;
        check_prefix(&self.prefix)
    }

    /// Opens the store that the text names, which may be `memory`. A prefix that no server would take is an error for the
    /// embedded store too: moving to a server later changes the text and nothing else.
    pub async fn open(self) -> Result<AnyStore, ConnectError> {
        if self.in_memory {
            check_prefix(&self.prefix)?;
            return Ok(MemoryStore::new().into());
        }
        Ok(self.connect().await?.into())
    }

    /// Connects, and makes sure that the server can be used.
    pub async fn connect(self) -> Result<RedisStore, ConnectError> {
        let url = self.url?;
        check_prefix(&self.prefix)?;
        let client = Client::connect(&url, self.settings).await?;
        #[cfg(not(feature = "manual-clock"))]
        let scripts = Scripts::new();
        #[cfg(feature = "manual-clock")]
        let scripts = if self.clock.is_some() { Scripts::on_manual_clock() } else { Scripts::new() };
        let engine = Engine {
            client,
            prefix: self.prefix,
            scripts,
            #[cfg(feature = "manual-clock")]
            clock: self.clock,
        };
        engine.check_permissions().await?;
        Ok(RedisStore { engine: Arc::new(engine) })
    }
}

/// Nothing that a pattern, a hash tag or the parts of a key could trip over.
pub(crate) fn check_prefix(prefix: &str) -> Result<(), ConnectError> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./".contains(&byte);
    if prefix.is_empty() || prefix.len() > 64 || !prefix.bytes().all(plain) {
        return Err(ConnectError::Prefix { prefix: prefix.to_owned() });
    }
    Ok(())
}
