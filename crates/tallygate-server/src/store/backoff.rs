//! How long to wait between attempts to connect.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

const FIRST: Duration = Duration::from_millis(50);
const MOST: Duration = Duration::from_secs(2);

/// Waits that double up to a maximum, each shortened by up to half, so that many servers do not reconnect in step.
pub(super) fn waits() -> impl Iterator<Item = Duration> {
    let longest = std::iter::successors(Some(FIRST), |longest| Some((*longest * 2).min(MOST)));
    longest.map(|longest| jitter(longest / 2, longest))
}

/// A random duration between two.
pub(crate) fn jitter(least: Duration, most: Duration) -> Duration {
    let random = u32::try_from(RandomState::new().build_hasher().finish() % 1024).unwrap_or(0);
    least + most.saturating_sub(least) * random / 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_from_the_first_to_the_longest_and_stay_there() {
        let waits: Vec<Duration> = waits().take(100).collect();
        assert!(waits[0] >= FIRST / 2 && waits[0] <= FIRST, "{:?}", waits[0]);
        assert!(waits.iter().all(|wait| *wait <= MOST));
        assert!(waits[6..].iter().all(|wait| *wait >= MOST / 2));
    }
}
