//! Policy files in the three formats.
#![no_main]

#[path = "../../../crates/tallygate-config/tests/fuzz/policy_files.rs"]
mod policy_files;

tallygate_fuzz::target!(policy_files::run);
