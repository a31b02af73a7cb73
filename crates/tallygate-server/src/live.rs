//! Live limits: the overrides in the store, read regularly and laid over the policies of the files.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tallygate::clock::Timestamp;
use tallygate::live::{OverrideSet, Overrides, Reading, Replaced, Replacement};
use tallygate::policy::PolicySet;
use tallygate::{MemoryStore, StoreError};
use tallygate_redis::{AnyStore, ConnectError, RedisStore};
use tokio::sync::OnceCell;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};

use crate::app::App;
use crate::loaded::{Changes, Loaded};
use crate::store::{StoreSpec, jitter};

/// Between two looks at the revision. Four of them, and a slow one, fit into [`OverrideSet::NOTICE`].
const EVERY: Duration = Duration::from_millis(150);
/// For one call to the store.
const PATIENCE: Duration = Duration::from_secs(1);
/// Between two readings in full, by which the store keeps the overrides for as long again.
const RENEW: Duration = Duration::from_secs(60 * 60);

/// The overrides as this instance knows them.
pub(crate) struct LiveLimits {
    /// The shared store; `None` for the embedded one.
    spec: Option<StoreSpec>,
    /// A connection of its own, so that reading neither delays a decision nor is shed with it.
    shared: OnceCell<RedisStore>,
    known: Mutex<Known>,
    pub(crate) failures: AtomicU64,
}

#[derive(Debug)]
struct Known {
    set: OverrideSet,
    /// The store's time when it was last read, and when that was here.
    read: Option<(Timestamp, Instant)>,
    /// When it was last read in full.
    renewed: Option<Instant>,
    /// As of when the policies in force were built, on the store's clock.
    built: Timestamp,
    failing: bool,
    started: Instant,
}

impl Known {
    /// The store's time, as far as it is known.
    fn now(&self) -> Timestamp {
        let since = |at: &Instant| u64::try_from(at.elapsed().as_micros()).unwrap_or(u64::MAX);
        let now =
            |(then, at): &(Timestamp, Instant)| Timestamp::from_micros(then.as_micros().saturating_add(since(at)));
        self.read.as_ref().map_or(Timestamp::from_micros(0), now)
    }
}

/// For the metrics.
pub(crate) struct LiveFigures {
    pub(crate) in_force: usize,
    pub(crate) revision: u64,
    /// Since the overrides were last read, or since the start if they never were.
    pub(crate) age: Duration,
}

impl fmt::Debug for LiveLimits {
    /// Without the address, which may contain a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LiveLimits").field("known", &self.known).finish_non_exhaustive()
    }
}

impl LiveLimits {
    pub(crate) fn new(spec: &StoreSpec) -> Self {
        let set = OverrideSet::default();
        let built = Timestamp::from_micros(0);
        let known = Known { set, read: None, renewed: None, built, failing: false, started: Instant::now() };
        let spec = (spec.place() != AnyStore::MEMORY).then(|| spec.clone());
        Self { spec, shared: OnceCell::new(), known: Mutex::new(known), failures: AtomicU64::new(0) }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn figures(&self) -> LiveFigures {
        let known = self.known();
        let since = known.read.map_or(known.started, |(_, at)| at);
        LiveFigures { in_force: known.set.in_force(known.now()), revision: known.set.revision(), age: since.elapsed() }
    }

    /// The revision that need not be read again; `None` if the whole set has to be.
    fn revision(&self) -> Option<u64> {
        let known = self.known();
        known.renewed.filter(|at| at.elapsed() < RENEW).map(|_| known.set.revision())
    }
}

/// Where the overrides are.
pub(crate) enum Place<'a> {
    Embedded(&'a MemoryStore),
    Shared(&'a RedisStore),
}

impl Overrides for Place<'_> {
    async fn read_overrides(&self, known: Option<u64>) -> Result<Reading, StoreError> {
        match self {
            Self::Embedded(store) => store.read_overrides(known).await,
            Self::Shared(store) => store.read_overrides(known).await,
        }
    }

    async fn replace_overrides(&self, replacement: Replacement) -> Result<Replaced, StoreError> {
        match self {
            Self::Embedded(store) => store.replace_overrides(replacement).await,
            Self::Shared(store) => store.replace_overrides(replacement).await,
        }
    }
}

impl App {
    /// Where the overrides are, if that can be reached.
    pub(crate) async fn overrides(&self) -> Result<Place<'_>, StoreError> {
        if let Some(store) = self.store().embedded() {
            return Ok(Place::Embedded(store));
        }
        let Some(spec) = &self.live.spec else { return Err(StoreError::unavailable("not connected yet")) };
        let connect = || async {
            let builder = RedisStore::builder(&spec.store).prefix(&spec.prefix).deadline(PATIENCE);
            timeout(PATIENCE, builder.connect())
                .await
                .map_err(|_| StoreError::unavailable("it does not answer"))?
                .map_err(|error| match error {
                    ConnectError::Store(error) => error,
                    other => StoreError::unavailable(other.to_string()),
                })
        };
        self.live.shared.get_or_try_init(connect).await.map(Place::Shared)
    }

    /// Puts the policies of files into force, under the overrides that are known.
    pub(crate) fn put_policies(&self, files: PolicySet) -> Changes {
        let mut known = self.live.known();
        let before = self.policies.load_full();
        let loaded = Loaded::new(files, Some(&before));
        let changes = loaded.changes_since(&before);
        self.put(&mut known, &loaded);
        changes
    }

    /// The lock is held from reading what is in force to replacing it.
    fn put(&self, known: &mut MutexGuard<'_, Known>, loaded: &Loaded) {
        known.built = known.now();
        self.policies.store(Arc::new(loaded.under(&known.set, known.built)));
    }

    /// Reads the overrides, if they have changed, and puts them into force. If they cannot be read, those that are known stay.
    pub(crate) async fn read_overrides(&self) {
        self.obey_due();
        let known = self.live.revision();
        let read = async { self.overrides().await?.read_overrides(known).await };
        match read.await {
            Ok(reading) => self.obey(&reading),
            Err(error) => self.not_read(&error.to_string()),
        }
    }

    /// Puts into force what a reading says, if it is new.
    fn obey(&self, reading: &Reading) {
        let set = reading.record.is_some().then(|| OverrideSet::of_reading(reading)).transpose();
        let set = match set {
            Ok(set) => set,
            Err(error) => return self.not_read(&error.to_string()),
        };
        let mut known = self.live.known();
        let now = Instant::now();
        known.read = Some((reading.now, now));
        if std::mem::take(&mut known.failing) {
            tracing::info!("the overrides can be read again");
        }
        let Some(set) = set else { return };
        known.renewed = Some(now);
        let (new, old) = (set.revision(), known.set.revision());
        if new == old {
            return;
        }
        if new < old {
            tracing::warn!(
                revision = new,
                before = old,
                "the store has lost overrides: those it still has are in force"
            );
        } else {
            tracing::info!(revision = new, overrides = set.overrides().len(), "the overrides have changed");
        }
        known.set = set;
        self.put(&mut known, &self.policies.load_full());
    }

    /// Builds the policies anew if an override begins or ends.
    fn obey_due(&self) {
        let mut known = self.live.known();
        if known.set.is_due(known.built, known.now()) {
            self.put(&mut known, &self.policies.load_full());
        }
    }

    /// One line for each outage.
    fn not_read(&self, why: &str) {
        self.live.failures.fetch_add(1, Relaxed);
        let mut known = self.live.known();
        if !std::mem::replace(&mut known.failing, true) {
            let revision = known.set.revision();
            tracing::warn!(revision, "the overrides cannot be read, the last known ones stay in force: {why}");
        }
    }
}

/// Reads the overrides until it is dropped.
pub(crate) async fn watch(app: Arc<App>) {
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        app.read_overrides().await;
        // Until the first connection, each try opens one.
        if app.live.spec.is_some() && !app.live.shared.initialized() {
            sleep(jitter(PATIENCE / 2, PATIENCE)).await;
        }
    }
}
