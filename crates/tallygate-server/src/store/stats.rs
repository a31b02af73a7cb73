//! What the calls to the store came to: how long they took, and how they failed.

use std::sync::atomic::{AtomicU64, Ordering};

use tallygate::StoreError;

use crate::histogram::Histogram;

/// What was asked of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Op {
    Check,
    Peek,
    Refund,
    Reset,
    Count,
}

const OPS: [&str; 5] = ["check", "peek", "refund", "reset", "count"];
const KINDS: [&str; 5] = ["unavailable", "ambiguous", "overloaded", "refused", "corrupt"];

/// Counted as calls end, read when someone asks.
#[derive(Debug, Default)]
pub struct StoreStats {
    errors: [AtomicU64; KINDS.len()],
    durations: [Histogram; OPS.len()],
}

impl StoreStats {
    /// How many calls the store could not answer, by kind. Every kind is there, those that never happened too.
    pub fn errors(&self) -> [(&'static str, u64); 5] {
        std::array::from_fn(|at| (KINDS[at], self.errors[at].load(Ordering::Relaxed)))
    }

    /// How long calls took that went as far as a server, failed ones included, by operation. The embedded store is not
    /// timed: it answers in a fraction of the smallest bucket, and reading the clock would cost as much as the decision.
    pub fn durations(&self) -> [(&'static str, &Histogram); 5] {
        std::array::from_fn(|at| (OPS[at], &self.durations[at]))
    }

    pub(super) fn duration(&self, op: Op) -> &Histogram {
        &self.durations[op as usize]
    }

    pub(super) fn count(&self, error: &StoreError) {
        let kind = match error {
            StoreError::Unavailable { .. } => 0,
            StoreError::Ambiguous { .. } => 1,
            StoreError::Overloaded { .. } => 2,
            StoreError::Refused { .. } => 3,
            // What this code does not know was not foreseen by whoever reads the number either.
            _ => 4,
        };
        self.errors[kind].fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_counted_under_its_name() {
        let stats = StoreStats::default();
        let reason = String::new;
        let errors = [
            StoreError::Unavailable { reason: reason() },
            StoreError::Ambiguous { reason: reason() },
            StoreError::Overloaded { in_flight: 1 },
            StoreError::Refused { reason: reason(), remedy: reason() },
            StoreError::Corrupt { reason: reason() },
        ];
        for (times, error) in errors.iter().enumerate() {
            (0..=times).for_each(|_| stats.count(error));
        }
        let expected = [("unavailable", 1), ("ambiguous", 2), ("overloaded", 3), ("refused", 4), ("corrupt", 5)];
        assert_eq!(stats.errors(), expected);
        stats.duration(Op::Reset).observe(std::time::Duration::from_millis(1));
        let counted = stats.durations().map(|(op, histogram)| (op, histogram.snapshot().2));
        assert_eq!(counted, [("check", 0), ("peek", 0), ("refund", 0), ("reset", 1), ("count", 0)]);
    }
}
