//! How long to leave a server alone that was not there.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

const FIRST: Duration = Duration::from_millis(50);
const MOST: Duration = Duration::from_secs(2);

/// Waits that double, each cut by up to half: many servers that lost one store do not come back in step.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    failures: u32,
}

impl Backoff {
    pub(super) fn next(&mut self) -> Duration {
        let longest = FIRST.saturating_mul(2_u32.saturating_pow(self.failures)).min(MOST);
        self.failures = self.failures.saturating_add(1);
        jitter(longest / 2, longest)
    }
}

/// A random span between two.
pub(crate) fn jitter(least: Duration, most: Duration) -> Duration {
    let random = u32::try_from(RandomState::new().build_hasher().finish() % 1024).unwrap_or(0);
    least + most.saturating_sub(least) * random / 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_from_the_first_to_the_longest_and_stay_there() {
        let mut backoff = Backoff::default();
        let waits: Vec<Duration> = (0..100).map(|_| backoff.next()).collect();
        assert!(waits[0] >= FIRST / 2 && waits[0] <= FIRST, "{:?}", waits[0]);
        assert!(waits.iter().all(|wait| *wait <= MOST));
        assert!(waits[6..].iter().all(|wait| *wait >= MOST / 2));
    }
}
