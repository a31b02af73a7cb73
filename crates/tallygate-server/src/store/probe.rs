//! The task that connects to the store, and then probes it regularly.

use std::sync::Arc;
use std::time::Duration;

use tallygate::call::{Call, Verb};
use tallygate::store::StoreErrorKind;
use tallygate::{Check, Key, Limit, Store, StoreError};
use tallygate_redis::{ConnectError, RedisStore, RedisStoreBuilder};
use tokio::time::{sleep, timeout};

use super::Parts;
use super::backoff::waits;
use super::breaker::Signal;
use super::health::HealthLog;

/// Between two probes while the store is up.
const PROBE_INTERVAL: Duration = Duration::from_millis(500);
/// Between two probes while it is down.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);
/// Failures in a row, of probes and calls together, after which the store is down. One slow answer is not enough.
const DOWN_AFTER: u32 = 2;

pub(super) async fn run(parts: Arc<Parts>, server: RedisStoreBuilder) {
    let mut log = HealthLog::new(&parts.condition, &parts.place);
    let store = parts.connected(connect(&mut log, &server).await.into());
    let limit: Limit = "1/s fixed_window".parse().expect("a limit as the documentation has it");
    // A probe only peeks, so it leaves no key behind.
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
        // Wakes on the next tick, or when the breaker opens.
        let _ = timeout(if calm { PROBE_INTERVAL } else { RETRY_INTERVAL }, parts.opened.notified()).await;
    }
}

/// True if the next probe may wait for the longer interval.
fn failed(parts: &Parts, log: &mut HealthLog<'_>, error: StoreError) -> bool {
    match Signal::of(&error) {
        // Too many calls in flight: this says nothing about the store.
        Signal::Nothing => return parts.condition.borrow().is_ok(),
        // It answers, so calls get its error at once.
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

/// Retries until it is connected.
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

/// The error of calls while there is no connection. None of them was sent, so none is ambiguous.
fn absence(error: ConnectError) -> StoreError {
    match error {
        ConnectError::Store(error) => match error.kind() {
            StoreErrorKind::Refused => error,
            _ => StoreError::unavailable(error.reason()),
        },
        other => StoreError::unavailable(other.to_string()),
    }
}
