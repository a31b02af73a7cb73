//! The URL of a store.
#![no_main]

#[path = "../../../crates/tallygate-redis/tests/fuzz/store_url.rs"]
mod store_url;

tallygate_fuzz::target!(store_url::run);
