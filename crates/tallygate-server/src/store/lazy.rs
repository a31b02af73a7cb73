//! A store that can be used before it is connected.

use std::sync::{Arc, OnceLock};

use tallygate::call::Call;
use tallygate::counter::{CounterError, CounterName, CounterOp, CounterValue, Counters};
use tallygate::hold::{Hold, Holds, Resolution, Resolved, Work};
use tallygate::{Decision, Store, StoreError};
use tokio::sync::watch;

use super::Condition;

/// Empty until the first connection. From then on the store reconnects by itself.
#[derive(Debug)]
pub(super) struct Lazy<S> {
    pub(super) store: Arc<OnceLock<S>>,
    pub(super) condition: Arc<watch::Sender<Condition>>,
}

impl<S> Lazy<S> {
    pub(super) fn store(&self) -> Result<&S, StoreError> {
        let connecting = || StoreError::unavailable("not connected yet".to_owned());
        self.store.get().ok_or_else(|| self.condition.borrow().clone().err().unwrap_or_else(connecting))
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

impl<S: Holds> Holds for Lazy<S> {
    async fn resolve(&self, resolution: &Resolution<'_>) -> Result<Resolved, StoreError> {
        self.store()?.resolve(resolution).await
    }

    fn cancel_soon(&self, hold: Hold) {
        if let Some(store) = self.store.get() {
            store.cancel_soon(hold);
        }
    }

    fn finish(&self, work: Work) {
        if let Some(store) = self.store.get() {
            store.finish(work);
        }
    }
}

impl<S: Counters> Counters for Lazy<S> {
    async fn count(&self, name: &CounterName, op: CounterOp) -> Result<CounterValue, CounterError> {
        self.store()?.count(name, op).await
    }
}
