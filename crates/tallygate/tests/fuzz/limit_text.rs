//! The text of a limit: read or refused with a place, and what is read is written so that it is read again as the same.

use std::time::Duration;

use tallygate::limit::LimitError;
use tallygate::{Algorithm, Limit};

pub fn run(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let parsed = text.parse::<Limit>();
    match &parsed {
        Ok(limit) => is_sound(limit),
        Err(error) => is_told(error, &text),
    }
    for &algorithm in Algorithm::OVER_TIME {
        match (Limit::parse_with(&text, Some(algorithm)), &parsed) {
            // Text that names its algorithm keeps it.
            (Ok(chosen), Ok(limit)) if limit.algorithm() != Algorithm::default() => assert_eq!(&chosen, limit),
            (Ok(chosen), Ok(limit)) => {
                is_sound(&chosen);
                assert_eq!((chosen.amount(), chosen.window()), (limit.amount(), limit.window()), "{text}");
            }
            // What is too slow or too large for a bucket may be fine for a window, and the other way round.
            (Ok(chosen), Err(_)) => is_sound(&chosen),
            (Err(error), _) => is_told(&error, &text),
        }
    }
}

fn is_sound(limit: &Limit) {
    let written = limit.to_string();
    assert!(written.len() <= 80, "{written}");
    let again: Limit = written.parse().unwrap_or_else(|error| panic!("{written}: {error}"));
    assert_eq!(&again, limit, "{written}");
    assert_eq!(again.to_string(), written);
    assert!(limit.amount() <= Limit::MAX_AMOUNT && limit.capacity() <= Limit::MAX_AMOUNT, "{written}");
    let most_days = if limit.calendar().is_some() { 366 } else { 365 };
    let (shortest, longest) = (Duration::from_millis(1), Duration::from_secs(most_days * 86_400));
    assert!((shortest..=longest).contains(&limit.window()), "{written}");
    assert!(limit.tick() * 1000 <= limit.window() || limit.tick() == Duration::from_micros(1), "{written}");
    for of in [1, 2, 7, u32::MAX] {
        let share = limit.share(1, of);
        assert!(share.capacity() <= limit.capacity().max(1) && share.window() == limit.window(), "{written}: {share}");
    }
}

/// The message names a place in the text, has three lines of bounded length, and nothing in it drives a terminal.
fn is_told(error: &LimitError, text: &str) {
    let LimitError::Syntax { at, problem, .. } = error else { panic!("{error:?} has no place") };
    assert!(*at <= text.chars().count(), "{error:?}");
    assert!(!problem.is_empty() && problem.len() <= 300 + text.len(), "{error:?}");
    let said = error.to_string();
    assert_eq!(said.lines().count(), 3, "{said}");
    assert!(said.lines().all(|line| !line.contains(|c: char| c.is_control())), "{said:?}");
    assert!(said.len() <= 700 + 16 * text.len(), "{said}");
}
