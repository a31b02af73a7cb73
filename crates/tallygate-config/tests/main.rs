//! Files in, decisions out.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on must stop")]

mod arbitrary; // no input makes the reader panic
mod envoy; // the examples that envoyproxy/ratelimit documents
mod envoy_walk; // the walk down the tree against a model, over random trees
mod examples; // the files in `examples/policies`
mod findings; // every mistake is reported with its place and a remedy
mod folders; // files and folders on disk
mod fuzz; // inputs that a fuzzer found
mod limitador; // the examples that limitador documents
mod own; // our own format
mod scene; // a set of policies on a clock that stands still
mod schema; // the JSON schema knows what the reader knows
