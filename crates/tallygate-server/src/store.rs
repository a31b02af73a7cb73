//! The store of a server: a stack of small stores, each around the next. It always answers at once; while Redis is
//! unreachable, with an error.

mod audit;
mod backoff;
mod disk;
mod health;
mod lazy;
mod probe;
mod settings;
mod stats;
mod watched;

use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use tallygate::call::Call;
use tallygate::counter::{CounterError, CounterName, CounterOp, CounterValue, Counters};
use tallygate::hold::{Hold, HoldPage, HoldQuery, Holds, Resolution, Resolved, Work};
use tallygate::{Decision, MemoryStore, Store, StoreError};
use tallygate_disk::{Figures, SaveError, Saving};
use tallygate_redis::{AnyStore, Health, RedisStore, Sweep};
use tokio::sync::watch;
use tokio::task::JoinSet;

pub use audit::AuditFigures;
pub(crate) use backoff::jitter;
pub use disk::StartError;
pub use health::Condition;
use lazy::Lazy;
pub use settings::StoreSpec;
pub use stats::StoreStats;
use stats::{Observed, Timed};
pub use watched::{Refusing, StoreWatch};

/// A store that can be used before its server is reachable, and while it is not.
///
/// A task connects, retries until it succeeds, and then probes the servers regularly: [`health`](Self::health) is the
/// result. Calls to a server that is down fail at once, see [`tallygate_redis::Health`]. Dropping this ends the tasks.
#[derive(Debug)]
pub struct ServedStore {
    stack: Observed<Lazy<Timed<AnyStore>>>,
    parts: Arc<Parts>,
    audits: bool,
    /// Saves the embedded store, if it has a directory.
    saving: Mutex<Option<Saving>>,
    _tasks: JoinSet<()>,
}

/// What callers and tasks share.
#[derive(Debug)]
struct Parts {
    place: String,
    /// How long a decision may take; the embedded store needs no limit.
    deadline: Option<Duration>,
    store: Arc<OnceLock<Timed<AnyStore>>>,
    condition: Arc<watch::Sender<Condition>>,
    /// Of the servers, once connected.
    health: watch::Sender<Option<Health>>,
    stats: Arc<StoreStats>,
    /// Of the last audit that finished.
    figures: watch::Sender<Option<AuditFigures>>,
    watched: watch::Sender<StoreWatch>,
}

impl ServedStore {
    /// Starts the store of `spec` on the current runtime. An invalid URL or prefix is an error, and so is a data directory that cannot
    /// be used. An unreachable server, or one that refuses the login, is not: it is retried.
    pub fn start(spec: StoreSpec) -> Result<Self, StartError> {
        let place = spec.place();
        let sweep = Sweep::of(&spec.prefix)?;
        if place == AnyStore::MEMORY {
            return match &spec.data_dir {
                Some(directory) => disk::start(directory),
                None => Ok(MemoryStore::new().into()),
            };
        }
        if spec.data_dir.is_some() {
            return Err(StartError::NotEmbedded { place });
        }
        let server =
            RedisStore::builder(&spec.store).prefix(&spec.prefix).deadline(spec.deadline).coalesce(spec.coalesce);
        server.validate()?;
        let reason = format!("not connected to {place} yet");
        let mut served = Self::new(place, Some(spec.deadline), Err(StoreError::unavailable(reason)));
        served._tasks.spawn(probe::run(Arc::clone(&served.parts), server));
        let (url, prefix) = (spec.store.clone(), spec.prefix.clone());
        served._tasks.spawn(watched::run(Arc::clone(&served.parts), url, prefix, spec.deadline));
        served.audits = !spec.audit_every.is_zero();
        if served.audits {
            served._tasks.spawn(audit::run(Arc::clone(&served.parts), spec.store, sweep, spec.audit_every));
        }
        Ok(served)
    }

    fn new(place: String, deadline: Option<Duration>, condition: Condition) -> Self {
        let parts = Arc::new(Parts {
            place,
            deadline,
            store: Arc::default(),
            condition: Arc::new(watch::Sender::new(condition)),
            health: watch::Sender::default(),
            stats: Arc::default(),
            figures: watch::Sender::default(),
            watched: watch::Sender::default(),
        });
        let store = Lazy { store: Arc::clone(&parts.store), condition: Arc::clone(&parts.condition) };
        let stack = Observed { store, stats: Arc::clone(&parts.stats) };
        Self { stack, parts, audits: true, saving: Mutex::default(), _tasks: JoinSet::new() }
    }

    /// Whether any part of the store answers. An error until the first answer.
    pub fn condition(&self) -> Condition {
        self.parts.condition.borrow().clone()
    }

    /// Receives every change between up and down, and of the kind of error.
    pub fn subscribe(&self) -> watch::Receiver<Condition> {
        self.parts.condition.subscribe()
    }

    /// What is known of the servers of the store. `None` before the first connection, and for the embedded store.
    pub fn health(&self) -> Option<Health> {
        self.parts.health.borrow().clone()
    }

    /// The share of the keys that are served, from 0 to 1.
    pub fn served(&self) -> f64 {
        match self.health() {
            Some(health) => health.served(),
            None if self.condition().is_ok() => 1.0,
            None => 0.0,
        }
    }

    /// How many calls were abandoned after they were sent.
    pub fn abandoned_calls(&self) -> u64 {
        match self.parts.store.get().map(|timed| &timed.store) {
            Some(AnyStore::Redis(store)) => store.abandoned_calls(),
            _ => 0,
        }
    }

    /// How long a decision may take, however many calls to the store it needs.
    pub fn deadline(&self) -> Option<Duration> {
        self.parts.deadline
    }

    /// A page of the open holds.
    pub async fn open_holds(&self, query: &HoldQuery) -> Result<HoldPage, StoreError> {
        self.stack.open_holds(query).await
    }

    /// Durations and errors of calls.
    pub fn stats(&self) -> &StoreStats {
        &self.parts.stats
    }

    /// Whether the store is audited. The embedded store always is.
    pub fn audits(&self) -> bool {
        self.audits
    }

    /// What the last audit found; `None` before the first. The embedded store is counted now.
    pub fn audit(&self) -> Option<AuditFigures> {
        match self.parts.store.get().map(|timed| &timed.store) {
            Some(AnyStore::Memory(store)) => Some(AuditFigures::of_memory(store)),
            _ => *self.parts.figures.borrow(),
        }
    }

    /// How well the embedded store is saved; `None` without a data directory.
    pub fn saved(&self) -> Option<Figures> {
        disk::locked(&self.saving).as_ref().map(Saving::figures)
    }

    /// Saves the embedded store for the last time, if it has a data directory. Call it when no more calls are decided.
    pub async fn end_saving(&self) -> Result<(), SaveError> {
        let Some(saving) = disk::locked(&self.saving).take() else { return Ok(()) };
        let ended = tokio::task::spawn_blocking(move || saving.end()).await;
        ended.unwrap_or_else(|panicked| std::panic::resume_unwind(panicked.into_panic()))
    }

    /// Receives what the watch of the store finds, and above all which masters refuse to be charged.
    pub fn watched(&self) -> watch::Receiver<StoreWatch> {
        self.parts.watched.subscribe()
    }

    /// The embedded store, if this is one.
    pub(crate) fn embedded(&self) -> Option<&MemoryStore> {
        match self.parts.store.get().map(|timed| &timed.store) {
            Some(AnyStore::Memory(store)) => Some(store),
            _ => None,
        }
    }

    /// `memory`, or the URL of the store without its password.
    pub fn place(&self) -> &str {
        &self.parts.place
    }
}

impl Parts {
    /// Sets the connected store.
    fn connected(&self, store: AnyStore) -> &AnyStore {
        &self.store.get_or_init(|| Timed { store, stats: Arc::clone(&self.stats) }).store
    }
}

impl From<MemoryStore> for ServedStore {
    /// Needs no runtime: there are no tasks.
    fn from(store: MemoryStore) -> Self {
        let served = Self::new(AnyStore::MEMORY.to_owned(), None, Ok(()));
        served.parts.connected(store.into());
        served
    }
}

impl Store for ServedStore {
    async fn call(&self, call: &Call<'_>) -> Result<Decision, StoreError> {
        match self.stack.call_now(call) {
            Some(answer) => answer,
            None => self.stack.call(call).await,
        }
    }

    fn call_now(&self, call: &Call<'_>) -> Option<Result<Decision, StoreError>> {
        self.stack.call_now(call)
    }
}

impl Holds for ServedStore {
    async fn resolve(&self, resolution: &Resolution<'_>) -> Result<Resolved, StoreError> {
        self.stack.resolve(resolution).await
    }

    fn cancel_soon(&self, hold: Hold) {
        self.stack.cancel_soon(hold);
    }

    fn finish(&self, work: Work) {
        self.stack.finish(work);
    }
}

impl Counters for ServedStore {
    async fn count(&self, name: &CounterName, op: CounterOp) -> Result<CounterValue, CounterError> {
        self.stack.count(name, op).await
    }
}
