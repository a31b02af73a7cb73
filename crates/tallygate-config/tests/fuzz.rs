//! The kept inputs of the fuzz target. `cargo xtask fuzz` looks for more.

use tallygate_testkit::corpus::replay;

mod policy_files;

#[test]
fn files_are_read_or_refused_with_a_place() {
    replay("policy_files", policy_files::run);
}
