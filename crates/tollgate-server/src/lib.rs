//! The server: decisions over HTTP and Envoy's rate limit service, and what operators need beside them.

pub mod listen;

#[doc(hidden)] // For tests that speak to the server; not an interface.
pub mod proto;
