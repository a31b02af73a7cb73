//! Which events are written: a level, or levels by target.

use tracing_subscriber::filter::{LevelFilter, Targets};

use super::TelemetryError;

const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// Reads `info` or `info,tallygate_server=debug`. The level for all targets defaults to `info`. A mistyped level is an
/// error; the library would read it as the name of a target.
pub(super) fn parse(written: &str) -> Result<Targets, TelemetryError> {
    let mut targets = Targets::new().with_default(LevelFilter::INFO);
    for directive in written.split(',').map(str::trim).filter(|directive| !directive.is_empty()) {
        targets = match directive.split_once('=') {
            Some((target, word)) => targets.with_target(target.trim(), level(word.trim())?),
            None => targets.with_default(level(directive)?),
        };
    }
    Ok(targets)
}

fn level(word: &str) -> Result<LevelFilter, TelemetryError> {
    // The library would also accept numbers and the empty string.
    let known = LEVELS.iter().find(|name| name.eq_ignore_ascii_case(word));
    known.and_then(|name| name.parse().ok()).ok_or_else(|| {
        let hint = tallygate::words::nearest(word, &LEVELS).map(|near| format!(" (did you mean `{near}`?)"));
        TelemetryError::Filter { written: word.to_owned(), hint: hint.unwrap_or_default() }
    })
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;

    #[test]
    fn levels_apply_to_all_or_to_a_target() {
        let filter = parse("WARN, tallygate_server=debug").unwrap();
        assert!(filter.would_enable("tallygate_server::run", &Level::DEBUG));
        assert!(!filter.would_enable("hyper", &Level::INFO));
        assert!(filter.would_enable("hyper", &Level::WARN));
    }

    #[test]
    fn info_is_written_unless_said() {
        for written in ["", "hyper=off"] {
            let filter = parse(written).unwrap();
            assert!(filter.would_enable("tallygate_server", &Level::INFO), "{written}");
            assert!(!filter.would_enable("tallygate_server", &Level::DEBUG), "{written}");
        }
    }

    #[test]
    fn a_mistyped_level_is_refused_with_the_one_meant() {
        for written in ["inof", "info,tallygate_server=inof"] {
            let error = parse(written).unwrap_err().to_string();
            assert!(error.contains("\"inof\"") && error.contains("did you mean `info`?"), "{error}");
        }
    }
}
