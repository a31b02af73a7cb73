//! Gives up on calls whose callers no longer wait.

use tallygate::{Call, CounterError, CounterName, CounterOp, CounterValue, Counters, Decision, Store, StoreError};
use tokio::time::{Instant, timeout_at};

/// A store whose calls end at their own deadline. What is given up says nothing about the store: a caller in a hurry must not be
/// able to cut off the others.
#[derive(Debug)]
pub(super) struct Timely<S>(pub(super) S);

impl<S: Store> Store for Timely<S> {
    async fn call(&self, call: &Call<'_>) -> Result<Decision, StoreError> {
        let Some(deadline) = call.deadline().map(Instant::from_std) else { return self.0.call(call).await };
        if deadline <= Instant::now() {
            let reason = "the caller's deadline had passed before the store was asked".to_owned();
            return Err(StoreError::Unavailable { reason });
        }
        // The store's own deadline is what tells a slow store from an impatient caller.
        let patient = call.clone().by(None);
        timeout_at(deadline, self.0.call(&patient)).await.unwrap_or_else(|_| {
            let reason = "the caller's deadline passed before the store answered".to_owned();
            Err(StoreError::Ambiguous { reason })
        })
    }

    fn call_now(&self, call: &Call<'_>) -> Option<Result<Decision, StoreError>> {
        self.0.call_now(call)
    }
}

impl<S: Counters> Counters for Timely<S> {
    async fn count(&self, name: &CounterName, op: CounterOp) -> Result<CounterValue, CounterError> {
        self.0.count(name, op).await
    }
}
