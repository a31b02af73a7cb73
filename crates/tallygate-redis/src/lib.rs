//! Tallygate's store over Redis and Valkey: one server, a master monitored by Sentinels, or a cluster.
//!
//! Every decision is one script in one round trip, on the server's clock. A call that may have been charged is never sent
//! again.
//!
//! ```no_run
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use tallygate::{Check, Key, Limit, Limiter};
//! use tallygate_redis::RedisStore;
//!
//! let limiter = Limiter::new(RedisStore::connect("redis://127.0.0.1:6379").await?);
//! let limit: Limit = "100/min".parse()?;
//! let decision = limiter.check(Check::new(Key::new("api", "user:42")?, &limit)).await?;
//! if !decision.allowed() {
//!     println!("try again in {:?}", decision.binding().retry_after());
//! }
//! # Ok(()) }
//! ```
//!
//! [`StoreUrl`] lists the forms of the URL. [`AnyStore`] takes the same URLs, or `memory` for the embedded store.
//!
//! # TLS
//!
//! `rediss://` needs one of these features. None is enabled by default, and none installs a crypto provider for the
//! process. A provider that the application has installed (`rustls::crypto::CryptoProvider::install_default`) is always
//! used.
//!
//! | feature | without an installed provider |
//! |---|---|
//! | `tls` | connecting fails with [`ConnectError::NoCryptoProvider`] |
//! | `tls-ring` | uses ring |
//! | `tls-aws-lc-rs` | uses aws-lc-rs |
//!
//! Use `tls` if another part of your program already uses rustls: two providers in one program make
//! `rustls::ClientConfig::builder()` panic, unless one is installed.

mod any_store;
mod builder;
mod store;

mod coalesce;
mod common;
mod counters;
mod health;
mod holds;
mod instances;
mod overrides;
mod server_time;
mod split;

mod scripts;
mod wire;

mod connection;
mod url;

mod audit;
mod doctor;

#[cfg(any(test, fuzzing))]
pub mod fuzzing;

pub use any_store::AnyStore;
pub use audit::{Audit, AuditReport, LargeKey, ServerReport, Sweep, Usage};
pub use builder::{ConnectError, RedisStoreBuilder};
pub use doctor::{Charge, Diagnosis, Doctor, DoctorCheck, Finding, Latency, ServerFigures, Severity};
pub use health::{Health, ServerHealth};
pub use store::RedisStore;
pub use url::{StoreUrl, UrlError};
