//! A limit whose numbers are known to change.

use std::sync::Arc;

use super::Limit;
use crate::clock::Timestamp;

/// A limit whose numbers change at known instants of the store's clock. The store picks the numbers that are in force when it decides:
/// however many callers know of the change, no state is ever decided by the old numbers after it was by the new ones. Cheap to
/// clone.
///
/// ```
/// use tallygate::clock::Timestamp;
/// use tallygate::limit::{Changes, Limit};
///
/// let (before, after): (Limit, Limit) = ("10/s".parse()?, "20/s".parse()?);
/// let noon = Timestamp::from_micros(1_800_000_000_000_000);
/// let changes = Changes::new(before, vec![(noon, after.clone())]).expect("both are token buckets");
/// assert_eq!(changes.limit_at(noon), &after);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Changes(Arc<Inner>);

#[derive(Debug, PartialEq, Eq)]
struct Inner {
    first: Limit,
    /// In order of time.
    then: Vec<(Timestamp, Limit)>,
}

impl Changes {
    /// `first` until the earliest of `then`, and from each instant on the limit beside it. `None` if two of the limits have states of
    /// their own, because their algorithms differ, or if one is zero, which needs no state; or if nothing changes.
    pub fn new(first: Limit, mut then: Vec<(Timestamp, Limit)>) -> Option<Self> {
        let kind = first.algorithm().kind();
        let same = |limit: &Limit| limit.amount() > 0 && limit.algorithm().kind() == kind;
        if then.is_empty() || !same(&first) || !then.iter().all(|(_, limit)| same(limit)) {
            return None;
        }
        then.sort_by_key(|(at, _)| *at);
        Some(Self(Arc::new(Inner { first, then })))
    }

    /// The limit before the first change.
    pub fn first(&self) -> &Limit {
        &self.0.first
    }

    /// The limit that is in force at this instant.
    pub fn limit_at(&self, now: Timestamp) -> &Limit {
        let begun = self.0.then.iter().rev().find(|(at, _)| *at <= now);
        begun.map_or(&self.0.first, |(_, limit)| limit)
    }

    /// From when until when that limit is in force, in microseconds; the end is not part of it.
    pub fn reach(&self, now: Timestamp) -> [u64; 2] {
        let next = self.0.then.partition_point(|(at, _)| *at <= now);
        let at = |place: usize| self.0.then.get(place).map(|(at, _)| at.as_micros());
        [next.checked_sub(1).and_then(at).unwrap_or(0), at(next).unwrap_or(1 << 53)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(text: &str) -> Limit {
        text.parse().unwrap()
    }

    #[test]
    fn the_limit_in_force_is_that_of_the_last_change() {
        let at = Timestamp::from_micros;
        let changes = Changes::new(limit("1/s"), vec![(at(20), limit("3/s")), (at(10), limit("2/s"))]).unwrap();
        let seen = |now: u64| (changes.limit_at(at(now)).amount(), changes.reach(at(now)));
        assert_eq!(seen(9), (1, [0, 10]));
        assert_eq!(seen(10), (2, [10, 20]));
        assert_eq!(seen(19), (2, [10, 20]));
        assert_eq!(seen(20), (3, [20, 1 << 53]));
    }

    #[test]
    fn only_limits_of_one_state_change_into_each_other() {
        let then = |text: &str| vec![(Timestamp::from_micros(1), limit(text))];
        assert!(Changes::new(limit("1/s"), then("2/min burst 9")).is_some());
        assert!(Changes::new(limit("1/s"), Vec::new()).is_none());
        assert!(Changes::new(limit("1/s"), then("0/s")).is_none());
        assert!(Changes::new(limit("0/s"), then("1/s")).is_none());
        assert!(Changes::new(limit("1/s"), then("1/s sliding_log")).is_none());
        assert!(Changes::new(limit("1/s fixed_window"), then("1/s fixed_window_from_first_call")).is_some());
    }
}
