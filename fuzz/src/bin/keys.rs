//! Policy names and subjects as the key of a state.
#![no_main]

#[path = "../../../crates/tallygate/tests/fuzz/keys.rs"]
mod keys;

tallygate_fuzz::target!(keys::run);
