//! The memory store and policies, as a program uses them.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on must stop")]

mod allotments; // units taken in advance stay within the published bounds
mod cancellation; // dropped calls are made completely or not at all
mod capacity; // never more keys than allowed, and no limit reset to make room
mod concurrency; // what is in flight, reserved and renewed
mod conformance; // the properties that every store has
mod counters; // sums, refusals, expiry
mod deny_cache; // repeated denials are those that the store would give
mod evaluation; // from a call under policies to its verdict
mod funds; // costs with several payers
mod fuzz; // inputs that a fuzzer found
mod holds; // units reserved now and settled later
mod layouts; // the bytes of stored states
mod model; // every answer is that of an independent model in exact fractions
mod regressions; // bugs that were found
mod requests; // calls with an id, and their repeats
mod saved; // a store that is restored is the one that was saved
mod threads; // many threads on one key get exactly the limit
mod up_to; // calls that take what is left
mod zero_limits; // limits of zero beside others, whatever the store answers

use tallygate::clock::Timestamp;

/// When the clock of most tests starts.
const START: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);
