//! What callers and proxies read and write, on any HTTP edge.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on must stop")]

mod address; // only a trusted proxy can name the caller
mod decision; // the decision as JSON
mod fuzz; // inputs that a fuzzer found
mod headers; // headers parse, agree with each other, and never promise too early
