//! The whole server, in this process, on real ports.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod admin;
mod forward_auth;
mod http;
mod reload;
#[path = "../support/running.rs"]
mod running;
mod served;
mod sharing;
mod store_down;
