//! The accept loop over real sockets: every limit, every ending, TLS.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on must stop")]

mod client;
mod ending;
mod limits;
mod server;
mod timeouts;
mod tls;
mod versions;
