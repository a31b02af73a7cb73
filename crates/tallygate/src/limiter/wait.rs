//! Waiting until a call fits.

use std::future::Future;
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use super::{CheckError, Limiter};
use crate::check::Check;
use crate::decision::Decision;
use crate::store::Store;

/// The error of [`Limiter::until_ready`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotReady {
    /// The next attempt would come later than the caller is willing to wait. Nothing was charged.
    #[error("the call would have to wait another {wait:?}, which exceeds the time allowed for waiting")]
    TooLate {
        /// How long the next wait would be.
        wait: Duration,
    },
    /// Waiting does not help: the limit is zero.
    #[error("waiting does not help: the limit is zero")]
    Never,
    /// The store gave no answer, or the question is invalid.
    #[error(transparent)]
    Check(#[from] CheckError),
}

impl<S: Store> Limiter<S> {
    /// Waits until all checks fit, then charges them. Use it for calls to a service with a rate limit of its own; all
    /// users of the store share the limit.
    ///
    /// Waits exactly as long as the store says plus a random jitter, so that many waiters do not return at once, then
    /// asks again, because others may have been faster. Gives up without waiting as soon as the next wait would exceed
    /// `patience` in total. `sleep` is the timer of your runtime.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    /// use tallygate::{Check, Key, Limit, Limiter, MemoryStore};
    ///
    /// let limiter = Limiter::new(MemoryStore::new());
    /// let limit: Limit = "100/s burst 1".parse()?;
    /// let check = Check::new(Key::new("stripe", "our-account")?, &limit);
    /// for _ in 0..3 {
    ///     limiter.until_ready(&[check], Duration::from_secs(1), tokio::time::sleep).await?;
    ///     // call the service
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn until_ready<F: Future<Output = ()>>(
        &self,
        checks: &[Check<'_>],
        patience: Duration,
        mut sleep: impl FnMut(Duration) -> F,
    ) -> Result<Decision, NotReady> {
        let mut left = patience;
        loop {
            let decision = self.check_all(checks).await?;
            if decision.allowed() {
                return Ok(decision);
            }
            let Some(wait) = decision.binding().retry_after() else { return Err(NotReady::Never) };
            left = left.checked_sub(wait).ok_or(NotReady::TooLate { wait })?;
            let extra = jitter(wait, RandomState::new().hash_one(0_u8)).min(left);
            left -= extra;
            sleep(wait + extra).await;
        }
    }
}

/// A random duration of up to a quarter of the wait, or up to one millisecond if that is longer.
fn jitter(wait: Duration, random: u64) -> Duration {
    let most = (wait / 4).max(Duration::from_millis(1));
    let micros = u64::try_from(most.as_micros()).unwrap_or(u64::MAX);
    Duration::from_micros(random % micros.saturating_add(1))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::clock::{ManualClock, Timestamp};
    use crate::{Key, Limit, MemoryStore};

    fn limiter() -> (Limiter, ManualClock) {
        let clock = ManualClock::new(Timestamp::from_micros(1_000_000_000));
        (Limiter::new(MemoryStore::builder().clock(clock.clone()).build()), clock)
    }

    #[tokio::test]
    async fn a_call_is_ready_when_the_limit_says_and_at_most_a_quarter_later() {
        let (limiter, clock) = limiter();
        let limit: Limit = "10/s burst 1".parse().unwrap();
        let check = Check::new(Key::new("p", "s").unwrap(), &limit);
        let slept = Cell::new(Duration::ZERO);
        let sleep = |wait| {
            clock.advance(wait);
            slept.set(slept.get() + wait);
            std::future::ready(())
        };
        for turn in 0..10 {
            limiter.until_ready(&[check], Duration::from_secs(1), sleep).await.unwrap();
            let due = Duration::from_millis(100) * turn;
            assert!((due..=due.mul_f64(1.25)).contains(&slept.get()), "{turn}: {:?}", slept.get());
        }
    }

    #[tokio::test]
    async fn nobody_waits_longer_than_they_are_willing_to() {
        let (limiter, clock) = limiter();
        let limit: Limit = "10/s burst 1".parse().unwrap();
        let check = Check::new(Key::new("p", "s").unwrap(), &limit);
        let (patience, slept) = (Duration::from_secs(2), Cell::new(Duration::ZERO));
        limiter.check_now(check).unwrap();
        let sleep = |wait| {
            clock.advance(wait);
            slept.set(slept.get() + wait);
            // Somebody else is faster, every time.
            assert!(limiter.check_now(check).unwrap().allowed());
            std::future::ready(())
        };
        let late = limiter.until_ready(&[check], patience, sleep).await;
        assert!(matches!(late, Err(NotReady::TooLate { .. })), "{late:?}");
        assert!(slept.get() <= patience && slept.get() > patience - Duration::from_millis(100), "{slept:?}");
    }

    #[test]
    fn jitter_is_up_to_a_quarter_of_the_wait_and_at_least_a_millisecond() {
        for (wait, most) in [(1_000_000, 250_000), (4004, 1001), (3996, 1000), (0, 1000)] {
            let jitter = |random| jitter(Duration::from_micros(wait), random).as_micros();
            assert_eq!([0, 1, most, most + 1].map(jitter), [0, 1, u128::from(most), 0], "{wait}");
        }
        // Every number is possible after a wait that is longer than any.
        assert_eq!(jitter(Duration::MAX, u64::MAX - 1), Duration::from_micros(u64::MAX - 1));
    }

    #[tokio::test]
    async fn a_wait_that_is_too_long_or_never_ends_is_not_begun() {
        let (limiter, _) = limiter();
        let sleep = |_| -> std::future::Ready<()> { unreachable!("there is nothing to wait for") };
        let limit: Limit = "1/h".parse().unwrap();
        let check = Check::new(Key::new("p", "s").unwrap(), &limit);
        limiter.until_ready(&[check], Duration::ZERO, sleep).await.unwrap();
        let late = limiter.until_ready(&[check], Duration::from_secs(60), sleep).await;
        assert_eq!(late, Err(NotReady::TooLate { wait: Duration::from_secs(3600) }));
        let zero: Limit = "0/h".parse().unwrap();
        let never = Check::new(Key::new("p", "z").unwrap(), &zero);
        assert_eq!(limiter.until_ready(&[never], Duration::MAX, sleep).await, Err(NotReady::Never));
    }
}
