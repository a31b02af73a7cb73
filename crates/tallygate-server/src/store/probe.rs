//! The task that knows whether the store is there: it connects, and from then on asks a small question now and then.

use std::sync::Arc;
use std::time::Duration;

use tallygate::{Check, Key, Limit, Store, StoreError};
use tallygate_redis::{ConnectError, RedisStore, RedisStoreBuilder};
use tokio::time::{sleep, timeout};

use super::backoff::Backoff;
use super::breaker::Sign;
use super::condition::Scribe;
use super::{Engine, Shared};

/// Between two questions while all is well.
const CALM: Duration = Duration::from_millis(500);
/// Between two questions while it is not.
const ALERT: Duration = Duration::from_millis(100);
/// Failures in a row, of probes and callers together, that make a store down: one slow answer does not.
const ENOUGH: u32 = 2;

pub(super) async fn run(shared: Arc<Shared>, server: RedisStoreBuilder) {
    let Engine::Server(place) = &shared.engine else { return };
    let mut scribe = Scribe::new(&shared.ledger, &shared.place);
    let store = connect(&mut scribe, &server).await;
    let store = place.get_or_init(|| Box::new(store));
    let limit: Limit = "1/s fixed_window".parse().expect("a limit as the documentation has it");
    // Never charged: looking is all a probe does, so it leaves no key behind.
    let key = Key::new("probe", "probe").expect("short enough for a key");
    let question = [Check::new(key, &limit)];
    loop {
        let calm = match store.peek(&question).await {
            Ok(_) => {
                shared.breaker.probe_answered();
                scribe.up();
                true
            }
            Err(error) => failed(&shared, &mut scribe, error),
        };
        // Either a turn ends, or a caller's failure has opened the breaker. Which is all the same.
        let _ = timeout(if calm { CALM } else { ALERT }, shared.opened.notified()).await;
    }
}

/// True if the next probe may take its time.
fn failed(shared: &Shared, scribe: &mut Scribe<'_>, error: StoreError) -> bool {
    match Sign::of(&error) {
        // More callers than places: the store is not to blame, and what was said of it last is still true.
        Sign::Nothing => return shared.ledger.is_up(),
        // It answers, and the callers too are answered at once, with what has to be changed.
        Sign::Answered => {
            shared.breaker.probe_answered();
            scribe.down(error);
        }
        Sign::Failed => {
            shared.breaker.probe_failed();
            if !shared.ledger.is_up() || shared.breaker.failures() >= ENOUGH {
                shared.breaker.open();
                scribe.down(error);
            }
        }
    }
    false
}

/// Tries until it is there.
async fn connect(scribe: &mut Scribe<'_>, server: &RedisStoreBuilder) -> RedisStore {
    let mut backoff = Backoff::default();
    loop {
        match server.clone().connect().await {
            Ok(store) => return store,
            Err(error) => scribe.down(absence(error)),
        }
        sleep(backoff.next()).await;
    }
}

/// What callers are told while there is no connection: whatever went wrong, nothing of theirs was sent.
fn absence(error: ConnectError) -> StoreError {
    match error {
        ConnectError::Store(refused @ StoreError::Refused { .. }) => refused,
        ConnectError::Store(StoreError::Unavailable { reason } | StoreError::Ambiguous { reason }) => {
            StoreError::Unavailable { reason }
        }
        other => StoreError::Unavailable { reason: other.to_string() },
    }
}
