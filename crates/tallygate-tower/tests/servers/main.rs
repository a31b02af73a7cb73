//! The layer in real servers, over real ports.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on must stop")]

mod axum;
mod hyper;
mod tonic;
