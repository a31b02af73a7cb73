//! Test support: throwaway Redis and Valkey servers, and ways to break them; throwaway web proxies and Prometheus, and
//! the HTTP to talk to them.
//!
//! Everything here panics with the reason and the remedy instead of returning errors.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "test support: a broken fixture must stop the test")]
#![allow(clippy::disallowed_methods, reason = "it waits for real processes, in real time")]

pub mod cancellation;
mod clock_shim;
pub mod cluster;
pub mod conformance;
pub mod corpus;
pub mod daemon;
mod faulty_store;
pub mod find;
pub mod http;
pub mod markdown;
pub mod model;
mod port;
mod project;
pub mod prometheus;
pub mod proxy;
pub mod random;
pub mod resp;
pub mod sentinel;
pub mod server;
mod skip;
mod tls;
pub mod tool;
pub mod traces;
pub mod upstream;
pub mod wait;
mod watchdog;
pub mod web_proxy;

pub use cluster::Cluster;
pub use daemon::{Daemon, Ready};
pub use faulty_store::{FaultyStore, Switch};
pub use find::{Flavour, valkey_available, valkey_or_skip};
pub use port::Port;
pub use project::Project;
pub use prometheus::{Prometheus, Sample};
pub use proxy::{FaultProxy, Mode};
pub use resp::{Connection, Reply};
pub use sentinel::Sentinel;
pub use server::{Builder, Server};
pub use tool::Tool;
pub use upstream::Upstream;
pub use web_proxy::Proxy;
