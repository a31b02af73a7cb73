//! Descriptors under the rules of policies.
#![no_main]

#[path = "../../../crates/tallygate/tests/fuzz/matching.rs"]
mod matching;

tallygate_fuzz::target!(matching::run);
