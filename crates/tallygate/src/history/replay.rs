//! Is each answer what the algorithm says?

use std::cmp::Reverse;
use std::fmt;

use super::Record;
use crate::check::{Check, Cost};
use crate::clock::{ManualClock, Timestamp};
use crate::decision::Status;
use crate::key::Key;
use crate::limit::Limit;
use crate::limiter::Limiter;
use crate::store::MemoryStore;

/// An answer that is not the right one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mismatch {
    /// Which of the records.
    pub index: usize,
    /// What was answered.
    pub record: Record,
    /// What is right; `None` if no call can have this cost.
    pub expected: Option<Status>,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "record {}: {:?}, but right is ", self.index, self.record)?;
        match &self.expected {
            Some(status) => write!(f, "{status:?}"),
            None => write!(f, "an error: the cost is above the capacity"),
        }
    }
}

/// Asks the same questions of an embedded store, and returns the records whose answers differ from its own.
///
/// The records are all those of one key under one limit, in any order, on a clock that did not step back; the key was
/// unused before, and saw no refund and no reset. Calls of one instant are put in the order in which they can have
/// happened: what remains only falls, and a denial at some remainder came after the call that left it.
pub fn replay(limit: &Limit, records: &[Record]) -> Vec<Mismatch> {
    let mut order: Vec<usize> = (0..records.len()).collect();
    order.sort_by_key(|&index| {
        let record = &records[index];
        (record.decided_at, Reverse(record.remaining), !record.allowed)
    });
    let clock = ManualClock::new(Timestamp::from_micros(0));
    let limiter = Limiter::new(MemoryStore::builder().clock(clock.clone()).build());
    let key = Key::new("replay", "key").expect("both parts are short and not empty");
    let wrong = order.into_iter().filter_map(|index| {
        let record = &records[index];
        clock.set(record.decided_at);
        let cost = Cost::new(record.cost).ok();
        let decision = cost.and_then(|cost| limiter.check_now(Check::new(key, limit).cost(cost)).ok());
        let expected = decision.map(|decision| *decision.binding());
        let right = expected.is_some_and(|status| is(record, &status));
        (!right).then(|| Mismatch { index, record: record.clone(), expected })
    });
    wrong.collect()
}

/// Whether a record says what the status says, as far as it says anything.
fn is(record: &Record, status: &Status) -> bool {
    record.allowed == status.allowed()
        && record.remaining.is_none_or(|remaining| remaining == status.remaining())
        && record.retry_after.is_none_or(|wait| Some(wait) == status.retry_after())
        && record.reset_after.is_none_or(|wait| wait == status.reset_after())
}
