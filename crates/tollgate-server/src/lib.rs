//! The server of Tollgate.

#[doc(hidden)] // For tests that speak to the server; not an interface.
pub mod proto;
