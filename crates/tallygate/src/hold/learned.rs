//! What holds have used, learned from their settlements: how much to reserve for the next one.

use crate::sync::Mutex;

/// Numbers below this have a bucket each; above, each power of two has half as many.
const EXACT: u64 = 32;
const PER_POWER: usize = 16;
/// Up to the most units of any limit, 10^9 < 2^30.
const BUCKETS: usize = 32 + 25 * PER_POWER;

/// Fewer settlements say nothing about one in twenty.
const ENOUGH: u64 = 20;
/// When so many are counted, all counts are halved: what was long ago is forgotten.
const MOST: u64 = 1000;

/// Learns how much 19 of 20 holds use at most. It takes 2 kB, whatever it has seen.
///
/// The answer is at least the 95th percentile of what was observed, and at most a sixteenth more. Of a thousand settlements, the older half weighs half as much, and
/// so on. Until there are 20 of them, the answer is the one it was made with.
///
/// ```
/// use tallygate::hold::Learned;
///
/// let learned = Learned::from(500);
/// assert_eq!(learned.estimate(), 500);
/// for used in 1..=100 {
///     learned.observe(500, used);
/// }
/// assert!((95..=100).contains(&learned.estimate()));
/// ```
#[derive(Debug)]
pub struct Learned {
    first: u64,
    seen: Mutex<Seen>,
}

#[derive(Debug)]
struct Seen {
    counts: Box<[u16; BUCKETS]>,
    total: u64,
    figures: LearnedFigures,
}

/// How good the estimates were: of all settlements that were observed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LearnedFigures {
    /// Holds that have used no more than was reserved.
    pub enough: u64,
    /// Holds that have used more.
    pub short: u64,
    /// The units that these have used beyond what was reserved.
    pub short_units: u64,
}

impl Learned {
    /// Begins with an estimate.
    pub fn from(first: u64) -> Self {
        let seen = Seen { counts: Box::new([0; BUCKETS]), total: 0, figures: LearnedFigures::default() };
        Self { first: first.max(1), seen: Mutex::new(seen) }
    }

    /// How much to reserve for the next hold.
    pub fn estimate(&self) -> u64 {
        let seen = self.seen.lock();
        if seen.total < ENOUGH {
            return self.first;
        }
        // All but one in twenty.
        let mut left = seen.total - seen.total / 20;
        for (bucket, count) in seen.counts.iter().enumerate() {
            left = left.saturating_sub(u64::from(*count));
            if left == 0 {
                return last_of(bucket).max(1);
            }
        }
        self.first
    }

    /// A hold has reserved so many units, and used so many.
    pub fn observe(&self, reserved: u64, used: u64) {
        let mut seen = self.seen.lock();
        if seen.total == MOST {
            for count in seen.counts.iter_mut() {
                *count /= 2;
            }
            seen.total = seen.counts.iter().map(|count| u64::from(*count)).sum();
        }
        seen.counts[bucket_of(used)] += 1;
        seen.total += 1;
        let figures = &mut seen.figures;
        match used.checked_sub(reserved) {
            None | Some(0) => figures.enough += 1,
            Some(short) => {
                figures.short += 1;
                figures.short_units = figures.short_units.saturating_add(short);
            }
        }
    }

    /// How good the estimates were.
    pub fn figures(&self) -> LearnedFigures {
        self.seen.lock().figures
    }
}

fn bucket_of(used: u64) -> usize {
    let bucket = if used < EXACT {
        used
    } else {
        let power = u64::from(used.ilog2());
        // Five significant bits: one of 16 buckets of its power of two.
        EXACT + (power - 5) * 16 + ((used >> (power - 4)) & 15)
    };
    usize::try_from(bucket).unwrap_or(BUCKETS).min(BUCKETS - 1)
}

/// The largest number in a bucket.
fn last_of(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < EXACT {
        return bucket;
    }
    let (power, part) = ((bucket - EXACT) / 16 + 5, (bucket - EXACT) % 16);
    ((16 + part + 1) << (power - 4)) - 1
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// As many as this are all in memory: nothing is forgotten yet.
    fn all(numbers: impl Strategy<Value = u64>) -> impl Strategy<Value = Vec<u64>> {
        prop::collection::vec(numbers, 20..1000)
    }

    fn sizes() -> impl Strategy<Value = u64> {
        prop_oneof![0..40_u64, 0..5_000_u64, 0..=1_000_000_000_u64]
    }

    proptest! {
        #[test]
        fn the_estimate_is_the_percentile_within_a_bucket(used in all(sizes()), reserved in 0..10_000_u64) {
            let learned = Learned::from(7);
            for used in &used {
                learned.observe(reserved, *used);
            }
            let mut sorted = used.clone();
            sorted.sort_unstable();
            let exact = sorted[used.len() - used.len() / 20 - 1].max(1);
            let estimate = learned.estimate();
            prop_assert!(exact <= estimate && estimate <= exact + exact / 16, "{estimate}, exactly {exact}");
            prop_assert!(used.iter().filter(|used| **used > estimate).count() <= used.len() / 20);
            let short: Vec<u64> = used.iter().filter_map(|used| used.checked_sub(reserved)).filter(|short| *short > 0).collect();
            let figures = learned.figures();
            prop_assert_eq!(figures.short, short.len() as u64);
            prop_assert_eq!(figures.enough + figures.short, used.len() as u64);
            prop_assert_eq!(figures.short_units, short.iter().sum::<u64>());
        }

        #[test]
        fn every_number_is_in_its_bucket(used in sizes()) {
            let bucket = bucket_of(used);
            prop_assert!(used <= last_of(bucket));
            prop_assert!(bucket == 0 || last_of(bucket - 1) < used);
        }
    }

    #[test]
    fn it_forgets_what_was_long_ago() {
        let learned = Learned::from(1);
        for _ in 0..5_000 {
            learned.observe(1, 900_000);
        }
        assert!(learned.estimate() >= 900_000);
        for _ in 0..5_000 {
            learned.observe(1, 20);
        }
        assert_eq!(learned.estimate(), 20);
        learned.observe(0, u64::MAX);
        assert_eq!(learned.figures().short_units, u64::MAX, "it does not overflow");
    }

    #[test]
    fn it_says_the_first_until_it_has_seen_enough() {
        let learned = Learned::from(0);
        for _ in 0..19 {
            assert_eq!(learned.estimate(), 1);
            learned.observe(1, 0);
        }
        learned.observe(1, 0);
        assert_eq!(learned.estimate(), 1, "nothing cannot be reserved");
    }
}
