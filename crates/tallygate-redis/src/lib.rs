//! Tallygate's store over Redis and Valkey: one server, a Sentinel-watched master, or a cluster.

mod any;
mod store;

mod script;

mod url;

mod fault;
mod tls;
mod wire;

mod node;

mod lookout;

mod cluster;
mod sentinel;

mod link;

mod audit;

pub use any::{AnyStore, AnyStoreBuilder};
pub use audit::{Audit, AuditReport, LargeKey, ServerReport, Sweep, Usage};
pub use store::{ConnectError, RedisStore, RedisStoreBuilder};
pub use url::{StoreUrl, UrlError};
