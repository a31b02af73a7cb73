//! A regular audit in the background: the number of keys, and keys without a TTL.

use std::sync::Arc;
use std::time::Duration;

use tallygate::MemoryStore;
use tallygate::clock::{Clock, Timestamp};
use tallygate_redis::{Audit, AuditReport, ConnectError, Sweep};
use tokio::time::sleep;

use super::Parts;
use super::backoff::jitter;

/// Between two steps. A step takes the server about a millisecond for 500 keys, so the audit uses at most a twentieth of it,
/// however many keys there are: a million take about a minute. Only complete audits are reported.
const REST: Duration = Duration::from_millis(20);

/// What an audit found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct AuditFigures {
    /// Keys seen.
    pub keys: u64,
    /// Keys without a TTL, except counters that have none. Tallygate writes no such key.
    pub keys_without_ttl: u64,
    /// Keys that the servers have evicted since they started. Each eviction reset a limit.
    pub evicted_keys: u64,
    /// When it ended, by this machine's clock.
    pub finished_at: Timestamp,
}

impl AuditFigures {
    pub(super) fn of_memory(store: &MemoryStore) -> Self {
        Self { keys: store.len() as u64, keys_without_ttl: 0, evicted_keys: 0, finished_at: store.now() }
    }

    fn of(report: &AuditReport, finished_at: Timestamp) -> Self {
        Self {
            keys: report.keys,
            keys_without_ttl: report.orphans,
            evicted_keys: report.servers.iter().map(|server| server.evicted_keys).sum(),
            finished_at,
        }
    }
}

pub(super) async fn run(parts: Arc<Parts>, url: String, sweep: Sweep, every: Duration) {
    let sweep = Sweep { rest: REST, ..sweep };
    let clock = Clock::system();
    let mut condition = parts.condition.subscribe();
    // So that servers that were started together do not audit at the same moment.
    let mut pause = jitter(Duration::ZERO, every / 10);
    loop {
        sleep(pause).await;
        pause = jitter(every - every / 10, every);
        if condition.wait_for(Result::is_ok).await.is_err() {
            return;
        }
        // A new connection each time: none is held open for hours, and the topology of a cluster is current.
        let audited = async { Ok::<_, ConnectError>(Audit::connect(&url).await?.run(&sweep, |_| {}).await?) };
        match audited.await {
            Ok(report) => {
                let figures = AuditFigures::of(&report, clock.now());
                let before = parts.figures.send_replace(Some(figures));
                warn_of(before, figures, &parts.place);
            }
            Err(error) => tracing::warn!(store = parts.place, reason = %error, "the audit failed"),
        }
    }
}

/// Warns of more keys without a TTL, without their names: these contain subjects. Evictions are watched elsewhere.
fn warn_of(before: Option<AuditFigures>, now: AuditFigures, place: &str) {
    let keys = now.keys_without_ttl;
    if keys > before.map_or(0, |before| before.keys_without_ttl) {
        tracing::warn!(store = place, keys, "keys without a TTL: run `tallygate audit` to list and repair them");
    }
}
