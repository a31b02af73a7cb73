//! The kept inputs of the fuzz targets. `cargo xtask fuzz` looks for more.

use tallygate_testkit::corpus::replay;

mod keys;
mod limit_text;
mod matching;

#[test]
fn limits_are_read_as_they_are_written() {
    replay("limit_text", limit_text::run);
}

#[test]
fn keys_never_collide_and_never_move_a_slot() {
    replay("keys", keys::run);
}

#[test]
fn hostile_descriptors_match_what_the_rules_say() {
    replay("matching", matching::run);
}
