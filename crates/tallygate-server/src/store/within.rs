//! One caller's view of the store: its deadline, the breaker, and the counting.

use std::fmt;
use std::future::Future;

use tallygate::{
    Check, CounterError, CounterName, CounterOp, CounterValue, Decision, MemoryStore, Store, StoreError, Timestamp,
};
use tallygate_redis::RedisStore;
use tokio::time::{Instant, timeout_at};

use super::breaker::{MOST_FAILURES, Sign};
use super::stats::Op;
use super::{Engine, Shared};

/// The store, for calls that must be answered by a certain time. What is not is given up and never sent again; it may
/// have been charged.
#[derive(Clone, Copy)]
pub struct Within<'a> {
    pub(super) shared: &'a Shared,
    pub(super) deadline: Option<Instant>,
}

/// The errors of both kinds of calls.
trait Failure: From<StoreError> {
    /// `None` if the store answered, and this is the answer.
    fn of_store(&self) -> Option<&StoreError>;
}

impl Failure for StoreError {
    fn of_store(&self) -> Option<&StoreError> {
        Some(self)
    }
}

impl Failure for CounterError {
    fn of_store(&self) -> Option<&StoreError> {
        match self {
            Self::Store(error) => Some(error),
            _ => None,
        }
    }
}

impl<'a> Within<'a> {
    fn memory(&self) -> Option<&'a MemoryStore> {
        match &self.shared.engine {
            Engine::Memory(store) => Some(store),
            Engine::Server(_) => None,
        }
    }

    /// The server, or why there is none.
    fn server(&self) -> Result<&'a RedisStore, StoreError> {
        let store = match &self.shared.engine {
            Engine::Memory(_) => None,
            Engine::Server(store) => store.get().map(|store| &**store),
        };
        store.ok_or_else(|| self.shared.ledger.reason())
    }

    fn counted<T, E: Failure>(&self, answer: Result<T, E>) -> Result<T, E> {
        if let Err(error) = &answer
            && let Some(error) = error.of_store()
        {
            self.shared.stats.count(error);
        }
        answer
    }

    async fn ask<T, E, F>(&self, op: Op, call: Result<F, StoreError>) -> Result<T, E>
    where
        E: Failure,
        F: Future<Output = Result<T, E>>,
    {
        let answer = match call {
            Ok(call) => self.pursue(op, call).await,
            Err(absent) => Err(absent.into()),
        };
        self.counted(answer)
    }

    async fn pursue<T, E: Failure>(&self, op: Op, call: impl Future<Output = Result<T, E>>) -> Result<T, E> {
        let Shared { breaker, stats, opened, .. } = self.shared;
        let Some(leave) = breaker.admit() else { return Err(broken().into()) };
        let began = Instant::now();
        let answer = match self.deadline {
            None => call.await,
            Some(deadline) if deadline <= began => return Err(too_late().into()),
            Some(deadline) => match timeout_at(deadline, call).await {
                Ok(answer) => answer,
                Err(_) => {
                    stats.duration(op).observe(began.elapsed());
                    // Says nothing about the store: a caller in a hurry must not be able to cut off the others.
                    return Err(abandoned().into());
                }
            },
        };
        stats.duration(op).observe(began.elapsed());
        let sign = match &answer {
            Ok(_) => Sign::Answered,
            Err(error) => error.of_store().map_or(Sign::Answered, Sign::of),
        };
        if breaker.record(leave, sign) {
            opened.notify_one();
        }
        answer
    }
}

#[cold]
fn broken() -> StoreError {
    let reason =
        format!("the breaker is open: {MOST_FAILURES} calls in a row failed, and no probe has been answered since");
    StoreError::Unavailable { reason }
}

#[cold]
fn too_late() -> StoreError {
    StoreError::Unavailable { reason: "the caller's deadline had run out before the store was asked".to_owned() }
}

#[cold]
fn abandoned() -> StoreError {
    StoreError::Ambiguous { reason: "the caller's deadline ran out before the store answered".to_owned() }
}

impl Store for Within<'_> {
    async fn check(&self, checks: &[Check<'_>]) -> Result<Decision, StoreError> {
        match self.memory() {
            Some(memory) => self.counted(memory.check(checks).await),
            None => self.ask(Op::Check, self.server().map(|server| server.check(checks))).await,
        }
    }

    async fn peek(&self, checks: &[Check<'_>]) -> Result<Decision, StoreError> {
        match self.memory() {
            Some(memory) => self.counted(memory.peek(checks).await),
            None => self.ask(Op::Peek, self.server().map(|server| server.peek(checks))).await,
        }
    }

    async fn refund(&self, check: &Check<'_>, charged_at: Option<Timestamp>) -> Result<u64, StoreError> {
        match self.memory() {
            Some(memory) => self.counted(memory.refund(check, charged_at).await),
            None => self.ask(Op::Refund, self.server().map(|server| server.refund(check, charged_at))).await,
        }
    }

    async fn reset(&self, check: &Check<'_>) -> Result<bool, StoreError> {
        match self.memory() {
            Some(memory) => self.counted(memory.reset(check).await),
            None => self.ask(Op::Reset, self.server().map(|server| server.reset(check))).await,
        }
    }

    async fn count(&self, name: &CounterName, op: CounterOp) -> Result<CounterValue, CounterError> {
        match self.memory() {
            Some(memory) => self.counted(memory.count(name, op).await),
            None => self.ask(Op::Count, self.server().map(|server| server.count(name, op))).await,
        }
    }
}

impl fmt::Debug for Within<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Within").field("place", &self.shared.place).field("deadline", &self.deadline).finish()
    }
}
