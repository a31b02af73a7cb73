//! Calls that take long to evaluate wait for each other, so that they leave a thread to everybody else.

use std::thread::available_parallelism;
use std::time::Duration;

use tallygate::StoreError;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout_at};

/// Policies times descriptors, beyond which a call waits for its turn. A pattern takes about a microsecond to match.
const HEAVY: usize = 1000;
/// A call waits no longer, whatever its caller allows: most proxies give up soon after, and then do what they are configured to do.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Turns(Semaphore);

impl Default for Turns {
    /// One thread of the runtime stays free; with only one, others wait for a single evaluation.
    fn default() -> Self {
        let threads = available_parallelism().map_or(1, usize::from);
        Self(Semaphore::new(threads.saturating_sub(1).max(1)))
    }
}

impl Turns {
    /// Held while `policies` are matched against `descriptors`. An error if it is not free by the caller's deadline, or for
    /// a second.
    pub(crate) async fn take(
        &self,
        policies: usize,
        descriptors: usize,
        deadline: Option<Instant>,
    ) -> Result<Option<SemaphorePermit<'_>>, StoreError> {
        if policies * descriptors <= HEAVY {
            return Ok(None);
        }
        let latest = Instant::now() + LONGEST_WAIT;
        let deadline = deadline.map_or(latest, |deadline| deadline.min(latest));
        let late = |_| StoreError::overloaded("others were matched against the policies for too long");
        let turn = timeout_at(deadline, self.0.acquire()).await.map_err(late)?;
        // It is never closed.
        Ok(turn.ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn heavy_calls_leave_a_thread_and_light_ones_never_wait() {
        let turns = Turns(Semaphore::new(1));
        let first = turns.take(10_000, 32, None).await.unwrap();
        assert!(first.is_some());
        let second = tokio::time::timeout(std::time::Duration::from_millis(20), turns.take(10_000, 32, None)).await;
        assert!(second.is_err(), "it waits for the first");
        assert!(turns.take(1000, 1, None).await.unwrap().is_none(), "a light one needs no turn");
        drop(first);
        assert!(turns.take(10_000, 32, None).await.unwrap().is_some());
    }
}
