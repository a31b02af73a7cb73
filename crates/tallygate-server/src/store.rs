//! The store a server works with. It is always there to be asked: while the servers behind it are not, it says so at once.

mod audit;
mod backoff;
mod breaker;
mod condition;
mod probe;
mod spec;
mod stats;
mod within;

use std::fmt;
use std::sync::{Arc, OnceLock};

use tallygate::{
    Check, CounterError, CounterName, CounterOp, CounterValue, Decision, MemoryStore, Store, StoreError, Timestamp,
};
use tallygate_redis::{ConnectError, RedisStore};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

pub use audit::AuditFigures;
use audit::Figures;
use breaker::Breaker;
pub use condition::Condition;
use condition::Ledger;
pub use spec::StoreSpec;
pub use stats::StoreStats;
pub use within::Within;

/// A store that starts before its server does and outlives it.
///
/// Behind it a task connects, for as long as it takes, and then asks a small question now and then: [`up`](Self::up) is
/// what came of the last ones. After a few failures in a row nobody waits for the server any more until it has answered
/// that task. Dropping this ends the tasks.
pub struct ServedStore {
    shared: Arc<Shared>,
    _tasks: JoinSet<()>,
}

/// What callers and tasks share.
struct Shared {
    engine: Engine,
    place: String,
    breaker: Breaker,
    /// Told when a caller's failure opens the breaker, so that the probe need not wait for its next turn.
    opened: Notify,
    ledger: Ledger,
    stats: StoreStats,
    figures: Figures,
}

enum Engine {
    Memory(MemoryStore),
    /// Empty until the server was there for the first time. From then on it finds its server again by itself.
    Server(OnceLock<Box<RedisStore>>),
}

impl ServedStore {
    /// Starts with the store of `spec`, on the runtime this is called from. A URL or prefix that cannot be right is an
    /// error; a server that is not there, or does not let us in, is one that may be there later.
    pub fn start(spec: StoreSpec) -> Result<Self, ConnectError> {
        let sweep = spec.sweep()?;
        if spec.is_memory() {
            return Ok(MemoryStore::new().into());
        }
        let server = spec.server();
        server.validate()?;
        let shared = Arc::new(Shared::new(Engine::Server(OnceLock::new()), spec.place()));
        let mut tasks = JoinSet::new();
        tasks.spawn(probe::run(Arc::clone(&shared), server));
        if let Some(every) = spec.audit_interval() {
            tasks.spawn(audit::run(Arc::clone(&shared), spec.text().to_owned(), sweep, every));
        }
        Ok(Self { shared, _tasks: tasks })
    }

    /// The same store, each call of which must be answered by `deadline`.
    pub fn within(&self, deadline: Instant) -> Within<'_> {
        Within { shared: &self.shared, deadline: Some(deadline) }
    }

    /// With no deadline but that of the settings.
    fn unhurried(&self) -> Within<'_> {
        Within { shared: &self.shared, deadline: None }
    }

    /// Whether the store answered when it was last asked. False until the first answer.
    pub fn up(&self) -> bool {
        self.shared.ledger.is_up()
    }

    /// The same, with the reason.
    pub fn condition(&self) -> Condition {
        self.shared.ledger.condition()
    }

    /// Sees every change between up and down, and every change of the kind of reason.
    pub fn subscribe(&self) -> watch::Receiver<Condition> {
        self.shared.ledger.subscribe()
    }

    /// Whether callers are told at once that the store is down, instead of finding out.
    pub fn breaker_open(&self) -> bool {
        self.shared.breaker.is_open()
    }

    /// How long calls took, and how they failed.
    pub fn stats(&self) -> &StoreStats {
        &self.shared.stats
    }

    /// What the last audit found; `None` before the first has ended. The embedded store is counted as this is called.
    pub fn audit(&self) -> Option<AuditFigures> {
        match &self.shared.engine {
            Engine::Memory(store) => Some(AuditFigures::of_memory(store)),
            Engine::Server(_) => self.shared.figures.last(),
        }
    }

    /// Where states live: `memory`, or a URL without its password.
    pub fn place(&self) -> &str {
        &self.shared.place
    }
}

impl Shared {
    fn new(engine: Engine, place: String) -> Self {
        let condition = match &engine {
            Engine::Memory(_) => Condition::Up,
            Engine::Server(_) => {
                let reason = format!("there is no connection to {place} yet");
                Condition::Down { because: StoreError::Unavailable { reason } }
            }
        };
        Self {
            engine,
            place,
            breaker: Breaker::default(),
            opened: Notify::new(),
            ledger: Ledger::new(condition),
            stats: StoreStats::default(),
            figures: Figures::default(),
        }
    }
}

impl From<MemoryStore> for ServedStore {
    /// Needs no runtime: nothing runs beside it.
    fn from(store: MemoryStore) -> Self {
        let shared = Shared::new(Engine::Memory(store), tallygate_redis::AnyStore::MEMORY.to_owned());
        Self { shared: Arc::new(shared), _tasks: JoinSet::new() }
    }
}

impl Store for ServedStore {
    async fn check(&self, checks: &[Check<'_>]) -> Result<Decision, StoreError> {
        self.unhurried().check(checks).await
    }

    async fn peek(&self, checks: &[Check<'_>]) -> Result<Decision, StoreError> {
        self.unhurried().peek(checks).await
    }

    async fn refund(&self, check: &Check<'_>, charged_at: Option<Timestamp>) -> Result<u64, StoreError> {
        self.unhurried().refund(check, charged_at).await
    }

    async fn reset(&self, check: &Check<'_>) -> Result<bool, StoreError> {
        self.unhurried().reset(check).await
    }

    async fn count(&self, name: &CounterName, op: CounterOp) -> Result<CounterValue, CounterError> {
        self.unhurried().count(name, op).await
    }
}

impl fmt::Debug for ServedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServedStore")
            .field("place", &self.shared.place)
            .field("condition", &self.condition())
            .finish_non_exhaustive()
    }
}
