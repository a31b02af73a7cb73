//! The log of a process, and what the tests of others need.

pub(super) mod scene;

use super::{Format, TelemetryError};

#[test]
fn a_process_sets_up_its_log_once() {
    let init = |filter: &str| super::init(Format::Text, filter);
    assert!(matches!(init("loud"), Err(TelemetryError::Filter { .. })));
    init("off").unwrap();
    assert_eq!(init("off").unwrap_err(), TelemetryError::AlreadySet);
}
