//! The check of a limiter's answers, the same for recipes and for Tallygate.

use serde::Serialize;
use tallygate::Limit;
use tallygate::history::{self, Mismatch, Record};

/// The findings about a limiter, in its answers and on the server.
#[derive(Debug, Serialize)]
pub struct Evidence {
    /// Units admitted in the span that exceeded its bound the most, or came nearest to it.
    pub admitted: Option<u64>,
    /// The most the limit allows in that span.
    pub bound: Option<u64>,
    /// Calls admitted beyond the bound.
    pub violations: usize,
    /// Calls denied although the limit allowed them.
    pub wrongly_denied: usize,
    /// Keys that would never expire.
    pub orphans: u64,
    /// Whether there are none of these.
    pub sound: bool,
    /// Answers other than the algorithm gives, in any field. A recipe may differ because of the resolution of its clock, so
    /// this counts for Tallygate only.
    #[serde(skip)]
    mismatches: usize,
    #[serde(skip)]
    example: Option<String>,
}

impl Evidence {
    /// Checks all calls of one key.
    pub(crate) fn judge(limit: &Limit, records: &[Record], orphans: u64) -> Self {
        let bound = history::bound(limit, records);
        let wrong = history::replay(limit, records, history::SERVER_STEP_BACK);
        let had_room =
            |mismatch: &&Mismatch| !mismatch.record.allowed && mismatch.expected.is_some_and(|status| status.allowed());
        let (violations, wrongly_denied) = (bound.violations.len(), wrong.iter().filter(had_room).count());
        let example = bound.violations.first().map(ToString::to_string);
        Self {
            admitted: bound.worst.map(|span| span.admitted),
            bound: bound.worst.map(|span| span.allowed),
            violations,
            wrongly_denied,
            orphans,
            sound: violations == 0 && wrongly_denied == 0 && orphans == 0,
            mismatches: wrong.len(),
            example: example.or_else(|| wrong.first().map(ToString::to_string)),
        }
    }

    /// Sound, and every answer right to the unit and the microsecond.
    pub fn is_exact(&self) -> bool {
        self.sound && self.mismatches == 0
    }

    /// The first fault, as text.
    pub fn fault(&self) -> String {
        self.example.clone().unwrap_or_else(|| format!("{} keys would never expire", self.orphans))
    }
}

#[cfg(test)]
mod tests {
    use tallygate::clock::Timestamp;

    use super::*;

    #[test]
    fn each_fault_is_enough_and_none_is_none() {
        let limit: Limit = "2/s sliding_log".parse().unwrap();
        let judge = |outcomes: &[(u64, bool)], orphans| {
            let record = |&(millis, allowed)| Record::bare(Timestamp::from_micros(millis * 1000), 1, allowed);
            Evidence::judge(&limit, &outcomes.iter().map(record).collect::<Vec<_>>(), orphans)
        };
        assert!(judge(&[(5000, true), (5100, true), (5200, false), (6000, true)], 0).is_exact());
        assert!(!judge(&[(5000, true)], 1).sound);
        let over = judge(&[(5000, true), (5100, true), (5200, true)], 0);
        assert_eq!((over.violations, over.wrongly_denied, over.admitted, over.bound), (1, 0, Some(3), Some(2)));
        let starved = judge(&[(5000, true), (5100, false)], 0);
        assert_eq!((starved.violations, starved.wrongly_denied, starved.sound), (0, 1, false));
    }
}
