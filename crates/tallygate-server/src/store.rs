//! The store a server works with: a stack of small stores, each around the next. It is always there to be asked: while the servers
//! behind it are not, it says so at once.

mod audit;
mod backoff;
mod breaker;
mod deadline;
mod health;
mod lazy;
mod probe;
mod settings;
mod stats;

use std::sync::{Arc, OnceLock};

use tallygate::{
    Call, CounterError, CounterName, CounterOp, CounterValue, Counters, Decision, MemoryStore, Store, StoreError,
};
use tallygate_redis::{AnyStore, ConnectError, RedisStore, Sweep};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

pub use audit::AuditFigures;
pub(crate) use backoff::jitter;
use breaker::{Breaker, Guarded};
use deadline::Timely;
pub use health::Condition;
use lazy::Lazy;
pub use settings::StoreSpec;
pub use stats::StoreStats;
use stats::{Observed, Timed};

/// A store that starts before its server does and outlives it.
///
/// Behind it a task connects, for as long as it takes, and then asks a small question now and then: [`condition`](Self::condition) is
/// what came of the last ones. After a few failures in a row nobody waits for the server any more until it has answered
/// that task. Dropping this ends the tasks.
#[derive(Debug)]
pub struct ServedStore {
    stack: Observed<Timely<Guarded<Lazy<Timed<AnyStore>>>>>,
    parts: Arc<Parts>,
    _tasks: JoinSet<()>,
}

/// What callers and tasks share.
#[derive(Debug)]
struct Parts {
    place: String,
    store: Arc<OnceLock<Timed<AnyStore>>>,
    breaker: Arc<Breaker>,
    opened: Arc<Notify>,
    condition: Arc<watch::Sender<Condition>>,
    stats: Arc<StoreStats>,
    /// Of the last audit that came to its end.
    figures: watch::Sender<Option<AuditFigures>>,
}

impl ServedStore {
    /// Starts with the store of `spec`, on the runtime this is called from. A URL or prefix that cannot be right is an
    /// error; a server that is not there, or does not let us in, is one that may be there later.
    pub fn start(spec: StoreSpec) -> Result<Self, ConnectError> {
        let place = spec.place();
        let sweep = Sweep { at_most: spec.audit_keys, ..Sweep::of(&spec.prefix)? };
        if place == AnyStore::MEMORY {
            return Ok(MemoryStore::new().into());
        }
        let server = RedisStore::builder(&spec.store).prefix(&spec.prefix).deadline(spec.deadline);
        server.validate()?;
        let reason = format!("there is no connection to {place} yet");
        let mut served = Self::new(place, Err(StoreError::Unavailable { reason }));
        served._tasks.spawn(probe::run(Arc::clone(&served.parts), server));
        if !spec.audit_every.is_zero() {
            served._tasks.spawn(audit::run(Arc::clone(&served.parts), spec.store, sweep, spec.audit_every));
        }
        Ok(served)
    }

    fn new(place: String, condition: Condition) -> Self {
        let parts = Arc::new(Parts {
            place,
            store: Arc::default(),
            breaker: Arc::default(),
            opened: Arc::default(),
            condition: Arc::new(watch::Sender::new(condition)),
            stats: Arc::default(),
            figures: watch::Sender::default(),
        });
        let lazy = Lazy { store: Arc::clone(&parts.store), condition: Arc::clone(&parts.condition) };
        let (breaker, opened) = (Arc::clone(&parts.breaker), Arc::clone(&parts.opened));
        let store = Timely(Guarded { store: lazy, breaker, opened });
        let stack = Observed { store, stats: Arc::clone(&parts.stats) };
        Self { stack, parts, _tasks: JoinSet::new() }
    }

    /// Whether the store answered when it was last asked. An error until the first answer.
    pub fn condition(&self) -> Condition {
        self.parts.condition.borrow().clone()
    }

    /// Sees every change between up and down, and every change of the kind of reason.
    pub fn subscribe(&self) -> watch::Receiver<Condition> {
        self.parts.condition.subscribe()
    }

    /// Whether callers are told at once that the store is down, instead of finding out.
    pub fn breaker_open(&self) -> bool {
        self.parts.breaker.is_open()
    }

    /// How long calls took, and how they failed.
    pub fn stats(&self) -> &StoreStats {
        &self.parts.stats
    }

    /// What the last audit found; `None` before the first has ended. The embedded store is counted as this is called.
    pub fn audit(&self) -> Option<AuditFigures> {
        match self.parts.store.get().map(|timed| &timed.store) {
            Some(AnyStore::Memory(store)) => Some(AuditFigures::of_memory(store)),
            _ => *self.parts.figures.borrow(),
        }
    }

    /// Where states live: `memory`, or a URL without its password.
    pub fn place(&self) -> &str {
        &self.parts.place
    }
}

impl Parts {
    /// The store is there.
    fn connected(&self, store: AnyStore) -> &AnyStore {
        &self.store.get_or_init(|| Timed { store, stats: Arc::clone(&self.stats) }).store
    }
}

impl From<MemoryStore> for ServedStore {
    /// Needs no runtime: nothing runs beside it.
    fn from(store: MemoryStore) -> Self {
        let served = Self::new(AnyStore::MEMORY.to_owned(), Ok(()));
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

impl Counters for ServedStore {
    async fn count(&self, name: &CounterName, op: CounterOp) -> Result<CounterValue, CounterError> {
        self.stack.count(name, op).await
    }
}
