//! A trace finds a store that answers differently.

use tallygate::call::Call;
use tallygate::clock::{ManualClock, Timestamp};
use tallygate::hold::{Hold, Holds, Resolution, Resolved, Work};
use tallygate::{Algorithm, Check, Decision, MemoryStore, Store, StoreError};
use tallygate_testkit::FaultyStore;
use tallygate_testkit::traces::{Inspected, Stored, Trace};

/// A store that does not charge one call in a thousand.
struct Careless(FaultyStore);

impl Store for Careless {
    async fn call(&self, call: &Call<'_>) -> Result<Decision, StoreError> {
        self.0.call(call).await
    }
}

impl Holds for Careless {
    async fn resolve(&self, resolution: &Resolution<'_>) -> Result<Resolved, StoreError> {
        self.0.store.resolve(resolution).await
    }

    fn cancel_soon(&self, hold: Hold) {
        self.0.store.cancel_soon(hold);
    }

    fn finish(&self, work: Work) {
        self.0.store.finish(work);
    }
}

impl Inspected for Careless {
    async fn inspect(&self, check: &Check<'_>) -> Option<Stored> {
        self.0.store.inspect(check).await
    }
}

/// The trace must be able to fail.
#[tokio::test]
async fn a_store_that_differs_is_found() {
    for (seed, &algorithm) in (700..).zip(Algorithm::OVER_TIME) {
        let clock = ManualClock::new(Timestamp::from_micros(1_700_000_000_000_000));
        let store = || MemoryStore::builder().clock(clock.clone()).without_sweep().build();
        let careless = Careless(FaultyStore::new(store()).forgetting_one_in(1000));
        let trace = Trace::new(algorithm, seed, 100_000).backward();
        let mismatch = trace.run((&careless, &clock), (&store(), &clock)).await.unwrap_err().to_string();
        assert!(mismatch.contains(algorithm.name()) && mismatch.contains("one: "), "{mismatch}");
    }
}
