//! The kept inputs of the fuzz targets, and states that were replaced by others. `cargo xtask fuzz` looks for more.

use tallygate_testkit::corpus::replay;

mod states;
mod store_url;

#[test]
fn no_message_shows_a_password() {
    replay("store_url", store_url::run);
}
