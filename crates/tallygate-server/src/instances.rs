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
/// For how long an instance counts after it was last seen, and for how long a count must be lower before it holds: a store
/// that was restarted, or a partition, makes the others seem gone.
const TTL: Duration = Duration::from_secs(30);
/// Between two counts with an outage in between, after which the others have yet to be seen again.
const OUTAGE: Duration = Duration::from_secs(10);
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
    let mut recent = Recent { largest: instances.get(), lower: None };
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

/// The largest count, until it was lower for a [`TTL`] without an outage.
#[derive(Debug)]
struct Recent {
    largest: u32,
    lower: Option<Lower>,
}

/// Counts in a row that were lower than the largest.
#[derive(Debug, Clone, Copy)]
struct Lower {
    since: Instant,
    last: Instant,
    most: u32,
}

impl Recent {
    fn counted(&mut self, count: u32, now: Instant) -> u32 {
        let known = self.lower.take().filter(|known| now.saturating_duration_since(known.last) < OUTAGE);
        let Lower { since, most, .. } = known.unwrap_or(Lower { since: now, last: now, most: 0 });
        let lower = Lower { since, last: now, most: most.max(count) };
        if count >= self.largest {
            self.largest = count;
        } else if now.saturating_duration_since(since) >= TTL {
            self.largest = lower.most;
        } else {
            self.lower = Some(lower);
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
        let (mut recent, start) = (Recent { largest: 1, lower: None }, Instant::now());
        let mut counted = |count, seconds| recent.counted(count, start + Duration::from_secs(seconds));
        assert_eq!((counted(3, 0), counted(1, 3), counted(3, 6)), (3, 3, 3));
        for (count, at) in [(1, 9), (2, 15), (1, 21), (1, 27), (1, 33), (1, 38)] {
            assert_eq!(counted(count, at), 3, "at {at} s");
        }
        assert_eq!(counted(1, 39), 2, "the most of the last 30 s");
        assert_eq!(counted(5, 42), 5);
    }

    /// The time of an outage was taken for time in which the others were not seen: the first to count when it was over had the whole
    /// limit to itself, the second half of it, and so on.
    #[test]
    fn an_outage_made_the_others_seem_gone() {
        let (mut recent, start) = (Recent { largest: 3, lower: None }, Instant::now());
        let mut counted = |count, seconds| recent.counted(count, start + Duration::from_secs(seconds));
        assert_eq!((counted(3, 0), counted(1, 40)), (3, 3), "once");
        assert_eq!((counted(1, 80), counted(1, 83)), (3, 3), "and again");
    }

    /// An instance that has just started may be the first to be seen again after an outage.
    #[test]
    fn the_configured_count_falls_as_any_other() {
        let mut recent = Recent { largest: 4, lower: None };
        assert_eq!(recent.counted(1, Instant::now()), 4);
    }
}
