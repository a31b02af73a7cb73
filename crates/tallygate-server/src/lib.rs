//! The server: decisions over HTTP and Envoy's rate limit service, with metrics and an admin API.
//!
//! [`run`] starts it. The command line is `tallygate serve`.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use tallygate_server::listen::Listener;
//! use tallygate_server::{Listeners, Settings};
//!
//! let http = Listener::bind("127.0.0.1:8080".parse()?)?;
//! let listeners = Listeners { http: Some(http), ..Listeners::default() };
//! tallygate_server::run(Settings::default(), listeners, std::future::pending()).await?;
//! # Ok(()) }
//! ```

mod run;
mod settings;

mod accept;
mod http;

mod edge;
mod question;

mod app;
mod instances;
mod live;
mod loaded;

mod answer;
mod decision_event;

mod admin;
mod metrics;
mod reload;
pub mod store;
pub mod telemetry;
mod token;

mod histogram;
mod hold_counters;

/// Listeners: binding, serving, limits, certificates and counters.
pub mod listen {
    pub use crate::accept::{BindError, ListenSettings, ListenStats, Listener, Tls, TlsError, TlsSettings};
    pub use crate::http::serve;
}

pub mod proto;

#[cfg(any(test, fuzzing))]
pub mod fuzzing;

pub use histogram::Histogram;
pub use run::{Event, Listeners, RunError, run};
pub use settings::Settings;
pub use token::{Holder, Refunds, Scope, Token, TokenError};
