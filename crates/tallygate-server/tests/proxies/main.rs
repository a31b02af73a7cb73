//! The configurations in `examples/`, run by the proxies themselves as they stand, but for ports and timeouts.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod caddy;
mod caller;
mod envoy;
mod forward_auth;
mod nginx;
mod rig;
#[path = "../support/running.rs"]
mod running;
mod traefik;
