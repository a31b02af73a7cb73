//! Files in, decisions out.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on must stop")]

mod arbitrary;
mod envoy;
mod envoy_walk;
mod examples;
mod findings;
mod folders;
mod limitador;
mod own;
mod scene;
mod schema;
