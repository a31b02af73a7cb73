//! Ends calls at the caller's deadline.

use tallygate::call::Call;
use tallygate::counter::{CounterError, CounterName, CounterOp, CounterValue, Counters};
use tallygate::{Decision, Store, StoreError};
use tokio::time::{Instant, timeout_at};

/// A store whose calls end at their deadline. This does not count as a failure of the store: a caller with a short deadline
/// must not open the breaker for the others.
#[derive(Debug)]
pub(super) struct Timely<S>(pub(super) S);

impl<S: Store> Store for Timely<S> {
    async fn call(&self, call: &Call<'_>) -> Result<Decision, StoreError> {
        let Some(deadline) = call.deadline().map(Instant::from_std) else { return self.0.call(call).await };
        if deadline <= Instant::now() {
            let reason = "the caller's deadline had passed before the store was asked".to_owned();
            return Err(StoreError::unavailable(reason));
        }
        // The store has a deadline of its own, which detects a slow store.
        let patient = call.clone().by(None);
        timeout_at(deadline, self.0.call(&patient)).await.unwrap_or_else(|_| {
            let reason = "the caller's deadline passed before the store answered".to_owned();
            Err(StoreError::ambiguous(reason))
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
