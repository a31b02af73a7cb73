//! Is each answer what the algorithm says?

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use super::Record;
use crate::call::{Call, Verb};
use crate::check::{Check, Cost};
use crate::clock::ManualClock;
use crate::decision::Status;
use crate::key::Key;
use crate::limit::Limit;
use crate::store::MemoryStore;

/// A wrong answer.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Mismatch {
    /// The index of the record.
    pub index: usize,
    /// The recorded answer.
    pub record: Record,
    /// The right answer; `None` if the cost is invalid for the limit.
    pub expected: Option<Status>,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "record {}: {:?}, expected ", self.index, self.record)?;
        match &self.expected {
            Some(status) => write!(f, "{status:?}"),
            None => write!(f, "an error: the cost is above the capacity"),
        }
    }
}

/// How far a server's clock may step back within a history. Valkey 9.1 was observed to step back by up to 81
/// microseconds; this leaves room for busier machines.
pub const SERVER_STEP_BACK: Duration = Duration::from_millis(20);

/// Puts the same questions to an embedded store, and returns the records whose answers differ.
///
/// The records must be all those of one key under one limit, in any order; the key was unused before, and saw no refund
/// and no reset. They are sorted into an order in which they can have happened: by time; at one instant `remaining`
/// only falls, and a denial follows the call that left its `remaining`. The clock may have stepped back by less than
/// `step_back`: if the next answer by time is wrong, the first right one within that time is taken before it. After the
/// first wrong answer, records are ordered by time alone.
pub fn replay(limit: &Limit, records: &[Record], step_back: Duration) -> Vec<Mismatch> {
    let mut order: Vec<usize> = (0..records.len()).collect();
    order.sort_by_key(|&index| {
        let record = &records[index];
        (record.decided_at, Reverse(record.remaining), !record.allowed)
    });
    let mut pending = VecDeque::from(order);
    let clock = ManualClock::default();
    let mut store = MemoryStore::builder().capacity(1).clock(clock.clone()).build();
    let key = Key::new("replay", "key").expect("both parts are short and not empty");
    let ask = |store: &MemoryStore, record: &Record| {
        clock.set(record.decided_at);
        let check = [Check::new(key, limit).cost(Cost::new(record.cost).ok()?)];
        let decision = Call::new(Verb::Check, &check).ok()?.ask_now(store)?.ok()?;
        Some(decision.binding())
    };
    let mut wrong = Vec::new();
    while let Some(&first) = pending.front() {
        let since_first = |index: usize| records[index].decided_at.as_micros() - records[first].decided_at.as_micros();
        let near = pending.iter().take_while(|&&index| {
            index == first || wrong.is_empty() && u128::from(since_first(index)) < step_back.as_micros()
        });
        let next = near.enumerate().find_map(|(place, &index)| {
            let copy = store.copy();
            let status = ask(&copy, &records[index])?;
            is(&records[index], &status).then_some((place, copy))
        });
        let place = next.as_ref().map_or(0, |(place, _)| *place);
        pending.remove(place);
        match next {
            Some((_, copy)) => store = copy,
            None => {
                let record = records[first].clone();
                wrong.push(Mismatch { index: first, expected: ask(&store, &record), record });
            }
        }
    }
    wrong
}

/// Whether a record agrees with the status, in the fields that it has.
fn is(record: &Record, status: &Status) -> bool {
    record.allowed == status.allowed()
        && record.remaining.is_none_or(|remaining| remaining == status.remaining())
        && record.retry_after.is_none_or(|wait| Some(wait) == status.retry_after())
        && record.reset_after.is_none_or(|wait| wait == status.reset_after())
}
