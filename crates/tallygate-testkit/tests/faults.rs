//! What goes wrong with servers, and what callers may still rely on: the bound, an answer in time, and that it passes.
#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(clippy::disallowed_methods, reason = "real servers, in real time")]

mod support;

#[path = "faults/clock.rs"]
mod clock;
#[path = "faults/failover.rs"]
mod failover;
#[path = "faults/flush.rs"]
mod flush;
#[path = "faults/freeze.rs"]
mod freeze;
#[path = "faults/restart.rs"]
mod restart;
#[path = "faults/wire.rs"]
mod wire;
