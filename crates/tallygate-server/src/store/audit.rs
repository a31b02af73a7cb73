//! A small audit now and then, beside the traffic: how many keys there are, and whether each of them ends.

use std::sync::Arc;
use std::time::Duration;

use tallygate::{Clock, MemoryStore, Timestamp};
use tallygate_redis::{Audit, AuditReport, ConnectError, Sweep};
use tokio::time::sleep;

use super::Parts;
use super::backoff::jitter;

/// Between two steps: their few hundred keys are a millisecond of the server's work, at most one in twenty.
const REST: Duration = Duration::from_millis(20);

/// What an audit found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct AuditFigures {
    /// Keys seen.
    pub keys: u64,
    /// Keys that would never expire, lasting counters apart. Anything but 0 was not written by Tallygate, or was tampered
    /// with.
    pub keys_without_ttl: u64,
    /// Keys the servers have thrown out since they started: each was a limit that silently started over.
    pub evicted_keys: u64,
    /// Whether all keys were seen; otherwise it stopped at the number it was given.
    pub complete: bool,
    /// When it ended, by this machine's clock.
    pub finished_at: Timestamp,
}

impl AuditFigures {
    pub(super) fn of_memory(store: &MemoryStore) -> Self {
        Self {
            keys: store.len() as u64,
            keys_without_ttl: 0,
            evicted_keys: 0,
            complete: true,
            finished_at: store.now(),
        }
    }

    fn of(report: &AuditReport, finished_at: Timestamp) -> Self {
        Self {
            keys: report.keys,
            keys_without_ttl: report.orphans,
            evicted_keys: report.servers.iter().map(|server| server.evicted_keys).sum(),
            complete: report.complete,
            finished_at,
        }
    }
}

pub(super) async fn run(parts: Arc<Parts>, url: String, sweep: Sweep, every: Duration) {
    let sweep = Sweep { rest: REST, ..sweep };
    let clock = Clock::system();
    let mut condition = parts.condition.subscribe();
    // Servers that were started together do not look at the same moment.
    let mut pause = jitter(Duration::ZERO, every / 10);
    loop {
        sleep(pause).await;
        pause = jitter(every - every / 10, every);
        if condition.wait_for(Result::is_ok).await.is_err() {
            return;
        }
        // Connected anew each time: nothing is held open for hours, and a cluster is looked at as it is now.
        let audited = async { Ok::<_, ConnectError>(Audit::connect(&url).await?.run(&sweep, |_| {}).await?) };
        match audited.await {
            Ok(report) => {
                let figures = AuditFigures::of(&report, clock.now());
                let before = parts.figures.send_replace(Some(figures));
                warn_of(before, figures, &parts.place);
            }
            Err(error) => tracing::warn!(store = parts.place, reason = %error, "the audit could not end"),
        }
    }
}

/// Says what has become worse. Never which keys: their names are made of subjects.
fn warn_of(before: Option<AuditFigures>, now: AuditFigures, place: &str) {
    let (orphans, evicted) = before.map_or((0, 0), |before| (before.keys_without_ttl, before.evicted_keys));
    if now.keys_without_ttl > orphans {
        let keys = now.keys_without_ttl;
        tracing::warn!(store = place, keys, "keys would never expire: `tallygate audit` names and repairs them");
    }
    if now.evicted_keys > evicted {
        tracing::warn!(
            store = place,
            keys = now.evicted_keys,
            "the server has evicted keys, and limits with them: give it more memory and maxmemory-policy noeviction"
        );
    }
}
