//! How many instances share the store, counted through the store, for the shares of `on_error: local`.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use tallygate::policy::Instances;
use tallygate_redis::{AnyStore, RedisStore};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::store::{StoreSpec, jitter};

/// Between two counts.
const EVERY: Duration = Duration::from_secs(3);
/// For how long an instance counts after it was last seen, and for how long a larger count is kept: a store that was
/// restarted, or a partition, makes the others seem gone.
const TTL: Duration = Duration::from_secs(30);
/// For one count, and for saying goodbye.
const PATIENCE: Duration = Duration::from_secs(1);

/// Counts until it is dropped. The embedded store has one instance.
pub(crate) fn start(spec: &StoreSpec, instances: Instances) -> Counting {
    let id = format!("{:016x}", RandomState::new().hash_one(std::process::id()));
    let mut counting = Counting { id, spec: None, tasks: JoinSet::new() };
    if spec.place() != AnyStore::MEMORY {
        counting.tasks.spawn(run(spec.clone(), counting.id.clone(), instances));
        counting.spec = Some(spec.clone());
    }
    counting
}

pub(crate) struct Counting {
    id: String,
    spec: Option<StoreSpec>,
    tasks: JoinSet<()>,
}

impl Counting {
    /// This instance no longer counts.
    pub(crate) async fn end(mut self) {
        self.tasks.shutdown().await;
        let Some(spec) = self.spec else { return };
        let goodbye = async {
            if let Ok(store) = connect(&spec).await {
                let _ = store.count_instances(&self.id, Duration::ZERO).await;
            }
        };
        // If it cannot, it is forgotten in time.
        let _ = timeout(PATIENCE, goodbye).await;
    }
}

/// A connection of its own, so that a count neither delays a decision nor is shed with it.
async fn connect(spec: &StoreSpec) -> Result<RedisStore, tallygate_redis::ConnectError> {
    RedisStore::builder(&spec.store).prefix(&spec.prefix).deadline(PATIENCE).connect().await
}

async fn run(spec: StoreSpec, id: String, instances: Instances) {
    let mut recent = Recent::default();
    let mut store = None;
    loop {
        if store.is_none() {
            store = connect(&spec).await.ok();
        }
        // During an outage the last count stays. The probe of the store logs the outage.
        if let Some(Ok(count)) = match &store {
            Some(store) => Some(store.count_instances(&id, TTL).await),
            None => None,
        } {
            let count = recent.counted(count, Instant::now());
            if count != instances.get() {
                tracing::info!(instances = count, "counted the instances that share the store");
            }
            instances.set(count);
        }
        sleep(jitter(EVERY / 2, EVERY)).await;
    }
}

/// The largest count of the last [`TTL`].
#[derive(Debug, Default)]
struct Recent {
    largest: u32,
    seen_at: Option<Instant>,
}

impl Recent {
    fn counted(&mut self, count: u32, now: Instant) -> u32 {
        let old = self.seen_at.is_none_or(|at| now.saturating_duration_since(at) >= TTL);
        if count >= self.largest || old {
            (self.largest, self.seen_at) = (count, Some(now));
        }
        self.largest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A store that was restarted empty counts one instance, and an outage just then would give each the whole limit.
    #[test]
    fn a_count_falls_only_after_it_was_lower_for_a_while() {
        let (mut recent, start) = (Recent::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(recent.counted(3, at(0)), 3);
        assert_eq!(recent.counted(1, at(3)), 3);
        assert_eq!(recent.counted(3, at(20)), 3);
        assert_eq!(recent.counted(2, at(49)), 3);
        assert_eq!(recent.counted(2, at(50)), 2);
        assert_eq!(recent.counted(5, at(51)), 5);
    }
}
