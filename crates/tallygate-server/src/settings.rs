//! The settings of a server.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tallygate::request::RequestId;
use tallygate_http::{Dialect, Trust, TrustedProxies};
use tokio::sync::Notify;

use crate::Event;
use crate::accept::{ListenSettings, TlsSettings};
use crate::store::StoreSpec;
#[cfg(feature = "otlp")]
use crate::telemetry::Traces;
use crate::token::{Refunds, Token};

/// The settings of a server. The default serves the built-in policy on the embedded store.
#[derive(Clone)]
pub struct Settings {
    /// A policy file, or a folder of them, watched for changes. `None` for the built-in policy.
    pub policies: Option<PathBuf>,
    /// The store of the states.
    pub store: StoreSpec,
    /// How many instances share the store, until they have been counted: for one that starts while the store is
    /// unreachable. Defaults to one.
    pub instances: u32,
    /// Which headers report the limits.
    pub dialect: Dialect,
    /// Whether the header `X-Tallygate-Source` says where an answer came from.
    pub source_header: bool,
    /// For how long the answer to a call with a request id is remembered, from a millisecond to a day.
    pub request_id_ttl: Duration,
    /// The proxies that forward-auth trusts. Defaults to those on this machine.
    pub trust: Trust,
    /// The tokens for reset, delete and the admin listener, and for checks if one has that scope.
    pub token: Option<Token>,
    /// Who may refund. `None`: everybody who may check, if HTTP and gRPC listen on loopback only; otherwise those with a token.
    pub refunds: Option<Refunds>,
    /// Names that `Host` may have on a loopback listener, besides addresses and `localhost`.
    pub allowed_hosts: Vec<String>,
    /// Certificates for all listeners; `None` for plain text.
    pub tls: Option<TlsSettings>,
    /// Timeouts and limits of each listener.
    pub listen: ListenSettings,
    /// How long `/readyz` fails before the ports close, so that load balancers can react.
    pub notice: Duration,
    /// Traces decisions, if there is a collector.
    #[cfg(feature = "otlp")]
    pub traces: Option<Traces>,
    /// Notify it to reload the files, as SIGHUP does. During a reload, another one follows.
    pub reload: Arc<Notify>,
    /// Called for every event.
    pub on_event: Arc<dyn Fn(Event<'_>) + Send + Sync>,
}

impl Default for Settings {
    fn default() -> Self {
        let loopback = "127.0.0.0/8, ::1/128".parse::<TrustedProxies>().expect("two networks");
        Self {
            policies: None,
            store: StoreSpec::new("memory"),
            instances: 1,
            dialect: Dialect::default(),
            source_header: false,
            request_id_ttl: RequestId::KEPT,
            trust: Trust { proxies: loopback, ..Trust::default() },
            token: None,
            refunds: None,
            allowed_hosts: Vec::new(),
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
