//! The address of a client, from what proxies forward.
#![no_main]

#[path = "../../../crates/tallygate-http/tests/fuzz/client_address.rs"]
mod client_address;

tallygate_fuzz::target!(client_address::run);
