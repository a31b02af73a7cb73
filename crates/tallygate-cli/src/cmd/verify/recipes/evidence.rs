//! What the calls of a recipe prove. The judge knows neither which recipe it sees nor whether it is ours.

use tallygate::Limit;
use tallygate::history::{self, Record, Span};

use crate::table::thousands;

/// What was found in the answers, and on the server.
#[derive(Debug, Clone)]
pub(crate) struct Evidence {
    /// The span that went furthest beyond its bound, or came nearest to it.
    pub(crate) worst: Option<Span>,
    /// Calls admitted beyond the bound.
    pub(crate) violations: usize,
    /// Calls denied although there was room.
    pub(crate) starved: u64,
    /// Answers other than the algorithm gives, in any field. A recipe may differ for the grain of its clock alone, so
    /// this convicts nobody but ours.
    mismatches: usize,
    /// Keys that would never expire.
    pub(crate) orphans: u64,
    example: Option<String>,
}

impl Evidence {
    /// Judges all calls of one key. On a clock that flaps, what is right at each call is not told: only the bound is.
    pub(crate) fn judge(limit: &Limit, records: &[Record], flapping: bool, orphans: u64) -> Self {
        let bound = history::bound(limit, records);
        let wrong = if flapping { Vec::new() } else { history::replay(limit, records) };
        let had_room = |mismatch: &&history::Mismatch| {
            !mismatch.record.allowed && mismatch.expected.is_some_and(|status| status.allowed())
        };
        let denied: Vec<&history::Mismatch> = wrong.iter().filter(had_room).collect();
        let example = bound.violations.first().map(ToString::to_string);
        Self {
            worst: bound.worst,
            violations: bound.violations.len(),
            starved: denied.len() as u64,
            mismatches: wrong.len(),
            orphans,
            example: example.or_else(|| wrong.first().map(ToString::to_string)),
        }
    }

    pub(crate) fn is_sound(&self) -> bool {
        self.violations == 0 && self.starved == 0 && self.orphans == 0
    }

    /// Sound, and every answer right to the unit and the microsecond.
    pub(crate) fn is_exact(&self) -> bool {
        self.is_sound() && self.mismatches == 0
    }

    pub(crate) fn worst_text(&self) -> String {
        self.worst.map_or("0".to_owned(), |span| format!("{} of {}", thousands(span.admitted), thousands(span.allowed)))
    }

    pub(crate) fn words(&self) -> String {
        self.example.clone().unwrap_or_else(|| format!("{} keys would never expire", self.orphans))
    }
}

#[cfg(test)]
mod tests {
    use tallygate::Timestamp;

    use super::*;

    fn records(outcomes: &[(u64, bool)]) -> Vec<Record> {
        outcomes
            .iter()
            .map(|&(millis, allowed)| Record::bare(Timestamp::from_micros(millis * 1000), 1, allowed))
            .collect()
    }

    #[test]
    fn each_fault_is_enough_and_none_is_none() {
        let limit: Limit = "2/s sliding_log".parse().unwrap();
        let judge = |outcomes: &[(u64, bool)], orphans| Evidence::judge(&limit, &records(outcomes), false, orphans);
        assert!(judge(&[(5000, true), (5100, true), (5200, false), (6000, true)], 0).is_sound());
        assert!(!judge(&[(5000, true)], 1).is_sound());
        let over = judge(&[(5000, true), (5100, true), (5200, true)], 0);
        assert_eq!((over.violations, over.starved, over.worst_text().as_str()), (1, 0, "3 of 2"));
        let starved = judge(&[(5000, true), (5100, false)], 0);
        assert_eq!((starved.violations, starved.starved), (0, 1));
    }
}
