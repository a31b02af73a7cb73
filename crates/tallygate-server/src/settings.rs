//! How a server is set up.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tallygate_http::{Dialect, Trust, TrustedProxies};
use tokio::sync::Notify;

use crate::Event;
use crate::accept::{ListenSettings, TlsSettings};
use crate::store::StoreSpec;
#[cfg(feature = "otlp")]
use crate::telemetry::Traces;
use crate::token::Token;

/// How a server is set up. [`Settings::default`] serves the built-in policy on the embedded store.
#[derive(Clone)]
pub struct Settings {
    /// A policy file, or a folder of them; `None` for the built-in policy. Watched for changes.
    pub policies: Option<PathBuf>,
    /// Where states live.
    pub store: StoreSpec,
    /// In which words limits are told in headers.
    pub dialect: Dialect,
    /// Whom forward-auth believes. Proxies on this machine unless said.
    pub trust: Trust,
    /// What opens reset and the admin listener.
    pub token: Option<Token>,
    /// Certificates for all listeners; `None` for plain text.
    pub tls: Option<TlsSettings>,
    /// Times and caps of each listener.
    pub listen: ListenSettings,
    /// How long `/readyz` says no before the ports close, so that whoever sends calls here can turn away.
    pub notice: Duration,
    /// Traces every decision, if there is a collector.
    #[cfg(feature = "otlp")]
    pub traces: Option<Traces>,
    /// Notified to have the files read again, as SIGHUP does. If the server is busy reading them, it starts over after that.
    pub reload: Arc<Notify>,
    /// Told what happens.
    pub on_event: Arc<dyn Fn(Event<'_>) + Send + Sync>,
}

impl Default for Settings {
    fn default() -> Self {
        let loopback = "127.0.0.0/8, ::1/128".parse::<TrustedProxies>().expect("two networks");
        Self {
            policies: None,
            store: StoreSpec::new("memory"),
            dialect: Dialect::default(),
            trust: Trust { proxies: loopback, ..Trust::default() },
            token: None,
            tls: None,
            listen: ListenSettings::default(),
            notice: Duration::from_millis(500),
            #[cfg(feature = "otlp")]
            traces: None,
            reload: Arc::default(),
            on_event: Arc::new(|_| {}),
        }
    }
}
