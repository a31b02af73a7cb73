//! The server: decisions over HTTP and Envoy's rate limit service, and what operators need beside them.
//!
//! [`run`] is all of it; the command line is `tallygate serve`.
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

mod app;
mod policies;

mod admin;
mod http;
mod rls;

pub mod listen;
mod metrics;
mod reload;
pub mod store;
pub mod telemetry;
mod token;

mod histogram;

#[doc(hidden)] // For tests that speak to the server; not an interface.
pub mod proto;

pub use histogram::Histogram;
pub use run::{Event, Listeners, RunError, run};
pub use settings::{ReloadTrigger, Settings};
pub use token::{Token, WeakToken};
