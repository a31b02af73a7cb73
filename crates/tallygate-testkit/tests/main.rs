//! The testkit itself: it does what tests rely on, and leaves nothing behind.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on must stop")]
#![allow(clippy::disallowed_methods, reason = "measures real servers in real time")]

mod http; // the HTTP client and server
mod model; // the comparison with the model finds mistakes
mod servers; // Redis, Valkey, clusters, sentinels, the fault proxy
mod tools; // proxies, Prometheus, daemons
mod traces; // a trace finds a store that answers differently
