//! Tallygate's store over Redis and Valkey: one server, a Sentinel-watched master, or a cluster.

mod any;
mod store;

mod script;

mod connection;
mod url;

mod audit;

pub use any::{AnyStore, AnyStoreBuilder};
pub use audit::{Audit, AuditReport, LargeKey, ServerReport, Sweep, Usage};
pub use store::{ConnectError, RedisStore, RedisStoreBuilder};
pub use url::{StoreUrl, UrlError};
