//! The log of a process, and what the tests of others need.

pub(super) mod scene;

use super::{Format, LogSettings, TelemetryError};

#[test]
fn a_process_sets_up_its_log_once() {
    let init = |filter: &str| super::init(&LogSettings { format: Format::Text, filter: filter.to_owned() });
    assert!(matches!(init("loud"), Err(TelemetryError::Filter { .. })));
    init("off").unwrap();
    assert_eq!(init("off").unwrap_err(), TelemetryError::AlreadySet);
}
