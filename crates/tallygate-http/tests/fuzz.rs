//! The kept inputs of the fuzz target. `cargo xtask fuzz` looks for more.

use tallygate_testkit::corpus::replay;

mod client_address;

#[test]
fn whatever_a_client_writes_it_cannot_choose_its_address() {
    replay("client_address", client_address::run);
}
