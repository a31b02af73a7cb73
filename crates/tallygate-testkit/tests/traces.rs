//! A trace finds a store that answers differently.

use std::sync::atomic::{AtomicU64, Ordering};

use tallygate::{
    Algorithm, Check, CounterError, CounterName, CounterOp, CounterValue, Decision, Limiter, ManualClock, MemoryStore,
    Store, StoreError, Timestamp,
};
use tallygate_testkit::traces::Trace;

/// A store that forgets to charge one call in a thousand.
struct Careless {
    store: MemoryStore,
    calls: AtomicU64,
}

impl Store for Careless {
    async fn check(&self, checks: &[Check<'_>]) -> Result<Decision, StoreError> {
        match self.calls.fetch_add(1, Ordering::Relaxed) % 1000 {
            999 => self.store.peek(checks).await,
            _ => self.store.check(checks).await,
        }
    }

    async fn peek(&self, checks: &[Check<'_>]) -> Result<Decision, StoreError> {
        self.store.peek(checks).await
    }

    async fn refund(&self, check: &Check<'_>, charged_at: Option<Timestamp>) -> Result<u64, StoreError> {
        self.store.refund(check, charged_at).await
    }

    async fn reset(&self, check: &Check<'_>) -> Result<bool, StoreError> {
        self.store.reset(check).await
    }

    async fn count(&self, name: &CounterName, op: CounterOp) -> Result<CounterValue, CounterError> {
        self.store.count(name, op).await
    }
}

/// The trace must be able to fail.
#[tokio::test]
async fn a_store_that_differs_is_found() {
    for (seed, algorithm) in (700..).zip(Algorithm::ALL) {
        let clock = ManualClock::new(Timestamp::from_micros(1_700_000_000_000_000));
        let store = || MemoryStore::builder().clock(clock.clone()).without_sweep().build();
        let careless = Limiter::new(Careless { store: store(), calls: AtomicU64::new(0) });
        let trace = Trace::new(algorithm, seed, 100_000).backward();
        let mismatch = trace.run((&careless, &clock), (&Limiter::new(store()), &clock)).await.unwrap_err().to_string();
        assert!(mismatch.contains(algorithm.name()) && mismatch.contains("one: "), "{mismatch}");
    }
}
