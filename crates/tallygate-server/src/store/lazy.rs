//! A store that can be asked before it is there.

use std::sync::{Arc, OnceLock};

use tallygate::{Call, CounterError, CounterName, CounterOp, CounterValue, Counters, Decision, Store, StoreError};

use super::health::Health;

/// Empty until its server was there for the first time. From then on the store finds its server again by itself.
#[derive(Debug)]
pub(super) struct Lazy<S> {
    pub(super) store: Arc<OnceLock<S>>,
    pub(super) health: Arc<Health>,
}

impl<S> Lazy<S> {
    fn store(&self) -> Result<&S, StoreError> {
        self.store.get().ok_or_else(|| self.health.reason())
    }
}

impl<S: Store> Store for Lazy<S> {
    async fn call(&self, call: &Call<'_>) -> Result<Decision, StoreError> {
        self.store()?.call(call).await
    }

    fn call_now(&self, call: &Call<'_>) -> Option<Result<Decision, StoreError>> {
        self.store.get()?.call_now(call)
    }
}

impl<S: Counters> Counters for Lazy<S> {
    async fn count(&self, name: &CounterName, op: CounterOp) -> Result<CounterValue, CounterError> {
        self.store()?.count(name, op).await
    }
}
