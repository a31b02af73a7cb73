//! The task that knows whether the store is there: it connects, and from then on asks a small question now and then.

use std::sync::Arc;
use std::time::Duration;

use tallygate::{Call, Check, Key, Limit, Store, StoreError, Verb};
use tallygate_redis::{ConnectError, RedisStore, RedisStoreBuilder};
use tokio::time::{sleep, timeout};

use super::Parts;
use super::backoff::waits;
use super::breaker::Signal;
use super::health::HealthLog;

/// Between two questions while all is well.
const PROBE_INTERVAL: Duration = Duration::from_millis(500);
/// Between two questions while it is not.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);
/// Failures in a row, of probes and callers together, that make a store down: one slow answer does not.
const DOWN_AFTER: u32 = 2;

pub(super) async fn run(parts: Arc<Parts>, server: RedisStoreBuilder) {
    let mut log = HealthLog::new(&parts.condition, &parts.place);
    let store = parts.connected(connect(&mut log, &server).await.into());
    let limit: Limit = "1/s fixed_window".parse().expect("a limit as the documentation has it");
    // Never charged: looking is all a probe does, so it leaves no key behind.
    let key = Key::new("probe", "probe").expect("short enough for a key");
    let checks = [Check::new(key, &limit)];
    let question = Call::new(Verb::Peek, &checks).expect("one check of one unit");
    loop {
        let calm = match store.call(&question).await {
            Ok(_) => {
                parts.breaker.probe_answered();
                log.up();
                true
            }
            Err(error) => failed(&parts, &mut log, error),
        };
        // Until the next turn, or until the failure of a caller opens the breaker.
        let _ = timeout(if calm { PROBE_INTERVAL } else { RETRY_INTERVAL }, parts.opened.notified()).await;
    }
}

/// True if the next probe may take its time.
fn failed(parts: &Parts, log: &mut HealthLog<'_>, error: StoreError) -> bool {
    match Signal::of(&error) {
        // More callers than places: the store is not to blame, and what was said of it last is still true.
        Signal::Nothing => return parts.condition.borrow().is_ok(),
        // It answers, and the callers too are answered at once, with what has to be changed.
        Signal::Answered => {
            parts.breaker.probe_answered();
            log.down(error);
        }
        Signal::Failed => {
            parts.breaker.probe_failed();
            if parts.condition.borrow().is_err() || parts.breaker.failures() >= DOWN_AFTER {
                parts.breaker.open();
                log.down(error);
            }
        }
    }
    false
}

/// Tries until it is there.
async fn connect(log: &mut HealthLog<'_>, server: &RedisStoreBuilder) -> RedisStore {
    let mut waits = waits();
    loop {
        match server.clone().connect().await {
            Ok(store) => return store,
            Err(error) => log.down(absence(error)),
        }
        sleep(waits.next().unwrap_or_default()).await;
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
