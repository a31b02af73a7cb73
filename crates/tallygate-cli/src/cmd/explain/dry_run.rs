//! A store on which every call goes as it would, and leaves no trace.

use tallygate::{Check, CounterError, CounterName, CounterOp, CounterValue, Decision, Store, StoreError, Timestamp};

/// Answers what the store behind it would, and changes nothing there. So a call is decided by the very code that decides
/// it in earnest.
#[derive(Debug)]
pub(super) struct DryRun<'s, S>(pub &'s S);

impl<S: Store> Store for DryRun<'_, S> {
    async fn check(&self, checks: &[Check<'_>]) -> Result<Decision, StoreError> {
        self.0.peek(checks).await
    }

    async fn peek(&self, checks: &[Check<'_>]) -> Result<Decision, StoreError> {
        self.0.peek(checks).await
    }

    /// What was not taken is not given back.
    async fn refund(&self, _: &Check<'_>, _: Option<Timestamp>) -> Result<u64, StoreError> {
        Ok(0)
    }

    async fn reset(&self, _: &Check<'_>) -> Result<bool, StoreError> {
        Ok(false)
    }

    /// Deciding a call counts nothing: only reading goes through.
    async fn count(&self, name: &CounterName, _: CounterOp) -> Result<CounterValue, CounterError> {
        self.0.count(name, CounterOp::Get).await
    }
}
