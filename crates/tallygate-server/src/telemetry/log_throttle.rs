//! Says that policies answer without their store: at once, and then not at every call.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// How long a policy stays quiet after a line about it.
pub(super) const QUIET: Duration = Duration::from_secs(10);

/// When each policy was last spoken of, and how often it has answered since.
///
/// Only calls that the store failed come here. Policies are those of the operator's files, so their number is bounded.
#[derive(Debug, Default)]
pub(super) struct OnErrorNotes(Mutex<HashMap<String, Note>>);

#[derive(Debug)]
struct Note {
    said_at: Instant,
    answered: u64,
}

impl OnErrorNotes {
    /// Counts an answer of a policy. If it is time for a line: how many answers it speaks of, this one included.
    pub(super) fn answered(&self, policy: &str, now: Instant) -> Option<u64> {
        let mut notes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(note) = notes.get_mut(policy) else {
            notes.insert(policy.to_owned(), Note { said_at: now, answered: 0 });
            return Some(1);
        };
        note.answered += 1;
        if now.saturating_duration_since(note.said_at) < QUIET {
            return None;
        }
        note.said_at = now;
        Some(std::mem::take(&mut note.answered))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_first_answer_is_told_at_once_for_each_policy() {
        let (notes, now) = (OnErrorNotes::default(), Instant::now());
        assert_eq!(notes.answered("a/x", now), Some(1));
        assert_eq!(notes.answered("a/x", now), None);
        assert_eq!(notes.answered("b/x", now), Some(1));
    }

    proptest! {
        #[test]
        fn lines_are_ten_seconds_apart_and_count_every_answer(waits in prop::collection::vec(0u64..6_000, 1..60)) {
            let (notes, mut now) = (OnErrorNotes::default(), Instant::now());
            let (mut told, mut said_at) = (0, None::<Instant>);
            for wait in &waits {
                now += Duration::from_millis(*wait);
                if let Some(answered) = notes.answered("a/x", now) {
                    prop_assert!(said_at.is_none_or(|at| now - at >= QUIET));
                    (told, said_at) = (told + answered, Some(now));
                }
            }
            // The rest is told with the next line.
            now += QUIET;
            told += notes.answered("a/x", now).unwrap();
            prop_assert_eq!(told, waits.len() as u64 + 1);
        }
    }
}
