//! The layer around a service, as a program uses it.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on must stop")]

mod answers;
mod callers;
mod counting;
mod rig;
mod rules;
mod shortcut;
