//! Durations in fixed buckets.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The upper bounds of the buckets, in microseconds: 50 µs to 1 s.
const BOUNDS: [u64; 13] = [50, 100, 250, 500, 1000, 2500, 5000, 10_000, 25_000, 50_000, 100_000, 250_000, 1_000_000];

/// Durations by bucket. Observing is two relaxed additions; reading adds up.
#[derive(Debug, Default)]
pub struct Histogram {
    /// One for each bound, and one beyond the last.
    buckets: [AtomicU64; BOUNDS.len() + 1],
    sum_nanos: AtomicU64,
}

impl Histogram {
    /// Counts one duration.
    pub fn observe(&self, took: Duration) {
        let bucket = BOUNDS.partition_point(|bound| Duration::from_micros(*bound) < took);
        self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.sum_nanos.fetch_add(nanos, Ordering::Relaxed);
    }

    /// `(upper bound in seconds, durations up to it)` for each bound, the sum in seconds, and the count: the `le` buckets of
    /// Prometheus, with the count as `+Inf`. A concurrent observation may be in the buckets and not yet in the sum.
    pub fn snapshot(&self) -> (Vec<(f64, u64)>, f64, u64) {
        let mut count = 0;
        let counts = self.buckets.each_ref().map(|bucket| {
            count += bucket.load(Ordering::Relaxed);
            count
        });
        let bounds = BOUNDS.iter().map(|bound| Duration::from_micros(*bound).as_secs_f64());
        let sum = Duration::from_nanos(self.sum_nanos.load(Ordering::Relaxed));
        (bounds.zip(counts).collect(), sum.as_secs_f64(), count)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_bucket_counts_what_took_no_longer_than_its_bound(micros in prop::collection::vec(0_u64..2_000_000, 0..200)) {
            let histogram = Histogram::default();
            for micros in &micros {
                histogram.observe(Duration::from_micros(*micros));
            }
            let (buckets, sum, count) = histogram.snapshot();
            prop_assert_eq!(count, micros.len() as u64);
            prop_assert!((sum - micros.iter().sum::<u64>() as f64 / 1e6).abs() < 1e-6);
            prop_assert_eq!(buckets.len(), BOUNDS.len());
            for (bound, upto) in buckets {
                prop_assert_eq!(upto, micros.iter().filter(|micros| **micros as f64 / 1e6 <= bound).count() as u64);
            }
        }
    }

    #[test]
    fn the_longest_wait_does_not_overflow_a_bucket() {
        let histogram = Histogram::default();
        histogram.observe(Duration::MAX);
        let (buckets, _, count) = histogram.snapshot();
        assert_eq!((buckets[BOUNDS.len() - 1].1, count), (0, 1));
        assert_eq!(buckets[0].0, 0.000_05);
    }
}
