//! Random delays between attempts, so that many clients of one server do not retry in step.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

/// A random duration between two.
pub(crate) fn random_between(least: Duration, most: Duration) -> Duration {
    let random = random() % 1024;
    least + most.saturating_sub(least) * u32::try_from(random).unwrap_or(0) / 1024
}

fn random() -> u64 {
    #[cfg(test)]
    if let Some(number) = super::simulation::network::random() {
        return number;
    }
    RandomState::new().build_hasher().finish()
}

/// Delays that double up to a maximum. Each is cut by up to a half at random.
pub(crate) struct Backoff {
    first: Duration,
    most: Duration,
    attempts: u32,
}

impl Backoff {
    pub(crate) const fn new(first: Duration, most: Duration) -> Self {
        Self { first, most, attempts: 0 }
    }

    pub(crate) fn next(&mut self) -> Duration {
        let delay = (self.first * 2_u32.pow(self.attempts)).min(self.most);
        self.attempts = (self.attempts + 1).min(16);
        random_between(delay / 2, delay)
    }

    pub(crate) fn reset(&mut self) {
        self.attempts = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_the_maximum_and_start_over() {
        let millis = Duration::from_millis;
        let mut backoff = Backoff::new(millis(5), millis(250));
        for full in [5, 10, 20, 40, 80, 160, 250, 250].into_iter().chain([250; 20]) {
            let delay = backoff.next();
            assert!((millis(full) / 2..=millis(full)).contains(&delay), "{delay:?} of {full} ms");
        }
        backoff.reset();
        assert!(backoff.next() <= millis(5));
    }
}
