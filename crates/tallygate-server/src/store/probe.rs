//! The task that connects to the store, probes its servers, and tells of changes.

use std::sync::Arc;
use std::time::Duration;

use tallygate::StoreError;
use tallygate::store::StoreErrorKind;
use tallygate_redis::{ConnectError, RedisStore, RedisStoreBuilder};
use tokio::time::{Instant, sleep};

use super::Parts;
use super::backoff::waits;
use super::health::HealthLog;

/// Between two probes. They find out about servers that no call is sent to.
const PROBE_INTERVAL: Duration = Duration::from_millis(500);
/// Between two looks at what calls and probes have found out. Looking costs nothing.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);
/// How long a server must have been down to be reported. Calls to it fail at once in any case; a shorter stall is over
/// before anybody could act on it.
const REPORT_AFTER: Duration = Duration::from_millis(200);

pub(super) async fn run(parts: Arc<Parts>, server: RedisStoreBuilder) {
    let mut log = HealthLog::new(&parts);
    let store = connect(&mut log, &server).await;
    parts.connected(store.clone().into());
    let mut failing_since = None;
    let mut probed_at = Instant::now();
    let mut health = store.probe().await;
    loop {
        let failing = health.servers.iter().any(|server| server.error.is_some());
        match failing_since {
            None if failing => failing_since = Some(Instant::now()),
            Some(since) if failing && since.elapsed() >= REPORT_AFTER => log.servers(health),
            Some(_) if failing => {}
            _ => {
                failing_since = None;
                log.servers(health);
            }
        }
        sleep(LOOK_INTERVAL).await;
        health = if probed_at.elapsed() >= PROBE_INTERVAL {
            probed_at = Instant::now();
            store.probe().await
        } else {
            store.health()
        };
    }
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
