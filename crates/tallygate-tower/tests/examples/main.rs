//! The examples, as processes of their own.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on must stop")]

mod outbound;
mod plans;
mod process;
mod services;
