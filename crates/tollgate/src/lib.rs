//! (stub)
pub mod store;
