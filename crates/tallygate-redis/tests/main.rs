//! The store on real servers: Redis, Valkey and clusters, healthy and failing.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on must stop")]
#![allow(clippy::disallowed_methods, reason = "real servers, in real time")]

mod allotments; // units taken in advance, on the clocks of real servers
mod calendar; // limits by calendar, and instances that disagree about it
mod cancellation; // dropped calls leave nothing half done
mod concurrency; // many processes on one limit get exactly the limit
mod conformance; // the properties that every store has
mod counters; // counters answer as those in memory
mod doctor; // what is found on real servers, healthy and not
mod expiry; // keys live as long as their state counts
mod fuzz; // inputs that a fuzzer found, and states that were replaced
mod holds; // units reserved now and settled later, by processes that die
mod instances; // how many processes share a store
mod live; // limits that change, and the overrides that change them
mod logs; // what is special about a sliding log
mod refusals; // errors with their remedy: permissions, addresses, foreign keys
mod regressions; // bugs that were found
mod slots; // a cluster: slots that move, calls over several slots
mod states; // which calls share a state, and what it costs to lose one
mod support; // shared by the others: stores, load, verification of answers
mod twins; // the scripts answer as the memory store does, call by call

/// Failures of servers, and what callers may still rely on: the bound, a timely answer, and recovery.
mod faults {
    mod clock; // a server clock that jumps
    mod failover; // another server takes over
    mod flush; // scripts that the server loses
    mod freeze; // a server that hangs
    mod health; // what is an outage, and of which server
    mod restart; // a server that is killed and comes back
    mod wire; // a network that loses, cuts or delays replies
}
