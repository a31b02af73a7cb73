//! Tallygate's store over Redis and Valkey: one server, a Sentinel-watched master, or a cluster.

mod any_store;
mod builder;
mod store;

mod counters;
mod split;

mod scripts;
mod wire;

mod connection;
mod url;

mod audit;

pub use any_store::AnyStore;
pub use audit::{Audit, AuditReport, LargeKey, ServerReport, Sweep, Usage};
pub use builder::{ConnectError, RedisStoreBuilder};
pub use store::RedisStore;
pub use url::{StoreUrl, UrlError};
