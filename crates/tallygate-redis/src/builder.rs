//! The settings of a store, and how to connect to it.

use std::sync::Arc;
use std::time::Duration;

use tallygate::clock::Clock;
#[cfg(feature = "manual-clock")]
use tallygate::clock::ManualClock;
use tallygate::{MemoryStore, StoreError};

use crate::any_store::AnyStore;
use crate::coalesce::Lanes;
use crate::connection::{Client, Settings};
use crate::scripts::Scripts;
use crate::server_time::ServerTime;
use crate::store::{Engine, RedisStore};
use crate::url::{StoreUrl, UrlError};

/// The maximum of any timeout.
const LONGEST_WAIT: Duration = Duration::from_secs(3600);

/// The settings of a [`RedisStore`], or of an [`AnyStore`]; the embedded store ignores them.
#[derive(Debug, Clone)]
#[must_use = "call `.connect().await`, or for an `AnyStore` `.open().await`"]
pub struct RedisStoreBuilder {
    in_memory: bool,
    // Parsed, so that debug output has no password.
    url: Result<StoreUrl, UrlError>,
    prefix: String,
    settings: Settings,
    coalesces: bool,
    #[cfg(feature = "manual-clock")]
    clock: Option<ManualClock>,
    #[cfg(feature = "manual-clock")]
    client_clock: Option<ManualClock>,
}

/// The error of opening a store.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The URL is invalid.
    #[error(transparent)]
    Url(#[from] UrlError),
    /// The key prefix is invalid.
    #[error("invalid key prefix `{prefix}`: use 1 to 64 letters, digits, `-`, `_`, `.` or `/`")]
    Prefix {
        /// The prefix.
        prefix: String,
    },
    /// The URL needs TLS, and there is no crypto provider for it.
    #[error(
        "no crypto provider for TLS is installed: call `CryptoProvider::install_default` of rustls at startup, or enable \
         the feature `tls-ring` or `tls-aws-lc-rs` of tallygate-redis"
    )]
    NoCryptoProvider,
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
            coalesces: true,
            #[cfg(feature = "manual-clock")]
            clock: None,
            #[cfg(feature = "manual-clock")]
            client_clock: None,
        }
    }

    /// Sets the prefix of every key. Defaults to `tallygate`.
    pub fn prefix(mut self, prefix: &str) -> Self {
        prefix.clone_into(&mut self.prefix);
        self
    }

    /// Sets how long a decision may take, including connecting, waiting, redirections and retries. Defaults to 50 ms.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.settings.deadline = deadline.min(LONGEST_WAIT);
        self
    }

    /// Sets how many calls may be in flight at once to one server; in a cluster each master has as many. Defaults to 1024.
    pub fn in_flight(mut self, calls: usize) -> Self {
        self.settings.in_flight = calls;
        self
    }

    /// Sets whether concurrent calls about one key share runs of a script. Defaults to true. A call that meets no other runs at
    /// once either way, and the decisions are those of separate runs. Without it, each call is a run of its own, and a hot
    /// key costs the server more.
    pub fn coalesce(mut self, coalesce: bool) -> Self {
        self.coalesces = coalesce;
        self
    }

    /// Sets how long opening a connection may take. Defaults to one second.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.settings.connect_timeout = timeout.min(LONGEST_WAIT);
        self
    }

    /// Uses a manual clock instead of the server's. All clients of the server must share it.
    #[cfg(feature = "manual-clock")]
    pub fn manual_clock(mut self, clock: ManualClock) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Uses a manual clock instead of this process's. It decides nothing: it only says around which instant the windows of a
    /// calendar are sent to the server. Defaults to that of [`manual_clock`](Self::manual_clock).
    #[cfg(feature = "manual-clock")]
    pub fn client_clock(mut self, clock: ManualClock) -> Self {
        self.client_clock = Some(clock);
        self
    }

    /// Validates the URL and the prefix, without connecting.
    pub fn validate(&self) -> Result<(), ConnectError> {
        self.url.as_ref().map_err(Clone::clone)?;
        check_prefix(&self.prefix)
    }

    /// Opens the store that the text names, which may be `memory`. An invalid prefix is an error for the embedded store
    /// too, so that moving to a server later changes only the text.
    pub async fn open(self) -> Result<AnyStore, ConnectError> {
        if self.in_memory {
            check_prefix(&self.prefix)?;
            return Ok(MemoryStore::new().into());
        }
        Ok(self.connect().await?.into())
    }

    /// Connects, and checks that the server can be used.
    pub async fn connect(self) -> Result<RedisStore, ConnectError> {
        let url = self.url?;
        check_prefix(&self.prefix)?;
        let settings = Settings { prefix: self.prefix.clone(), ..self.settings };
        let client = Client::connect(&url, settings).await?;
        #[cfg(not(feature = "manual-clock"))]
        let scripts = Scripts::new();
        #[cfg(feature = "manual-clock")]
        let scripts = if self.clock.is_some() { Scripts::on_manual_clock() } else { Scripts::new() };
        #[cfg(not(feature = "manual-clock"))]
        let here = Clock::wall();
        #[cfg(feature = "manual-clock")]
        let here = self.client_clock.or_else(|| self.clock.clone()).map_or_else(Clock::wall, Clock::from);
        let engine = Engine {
            client,
            server_time: ServerTime::new(here),
            prefix: self.prefix,
            scripts,
            coalesces: self.coalesces,
            lanes: Lanes::default(),
            #[cfg(feature = "manual-clock")]
            clock: self.clock,
        };
        engine.check_permissions().await?;
        Ok(RedisStore { engine: Arc::new(engine) })
    }
}

/// Characters with no special meaning in a pattern, a hash tag or a key.
pub(crate) fn check_prefix(prefix: &str) -> Result<(), ConnectError> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./".contains(&byte);
    if prefix.is_empty() || prefix.len() > 64 || !prefix.bytes().all(plain) {
        return Err(ConnectError::Prefix { prefix: prefix.to_owned() });
    }
    Ok(())
}
