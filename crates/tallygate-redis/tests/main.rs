//! The store on real servers: Redis, Valkey and clusters, in good health and bad.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on must stop")]
#![allow(clippy::disallowed_methods, reason = "real servers, in real time")]

mod cancellation; // calls that are dropped leave nothing half done
mod concurrency; // many processes on one limit get exactly what it allows
mod conformance; // the properties that every store has
mod counters; // counters answer as those in memory do
mod expiry; // keys live as long as their state counts
mod refusals; // errors that name their remedy: rights, addresses, foreign keys
mod regressions; // bugs that were found
mod slots; // a cluster: slots that move, calls over several slots
mod support; // shared by the others: stores, load, judges of the answers
mod twins; // the scripts answer as the memory store does, call by call

/// What goes wrong with servers, and what callers may still rely on: the bound, an answer in time, and recovery.
mod faults {
    mod clock; // a server clock that jumps
    mod failover; // another server takes over
    mod flush; // scripts that the server forgets
    mod freeze; // a server that hangs
    mod restart; // a server that is killed and comes back
    mod wire; // a network that loses, cuts, delays or swallows
}
