//! The text of a limit.
#![no_main]

#[path = "../../../crates/tallygate/tests/fuzz/limit_text.rs"]
mod limit_text;

tallygate_fuzz::target!(limit_text::run);
