//! Durations and errors of calls to the store.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tallygate::call::{Call, Verb};
use tallygate::counter::{CounterError, CounterName, CounterOp, CounterValue, Counters};
use tallygate::hold::{Hold, HoldPage, HoldQuery, Holds, Resolution, Resolved, Work};
use tallygate::store::StoreErrorKind;
use tallygate::{Decision, Store, StoreError};
use tallygate_redis::AnyStore;
use tokio::time::Instant;

use super::lazy::Lazy;
use crate::histogram::Histogram;

/// The positions of the durations that no verb of a call has.
const RESOLVE: usize = Verb::ALL.len();
const COUNT: usize = RESOLVE + 1;

/// Durations and errors of calls to the store.
#[derive(Debug, Default)]
pub struct StoreStats {
    /// By [`StoreErrorKind::ALL`].
    errors: [AtomicU64; StoreErrorKind::ALL.len()],
    /// By [`Verb::ALL`], then for the ends of holds, and last for counters.
    durations: [Histogram; COUNT + 1],
}

impl StoreStats {
    /// Calls that the store could not answer, by kind. Every kind is listed.
    pub fn errors(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let counts = self.errors.iter().map(|count| count.load(Ordering::Relaxed));
        StoreErrorKind::ALL.iter().map(|kind| kind.name()).zip(counts)
    }

    /// Durations of calls that reached a server, failed ones included, by verb. Decisions of the embedded store are not
    /// timed: they take a fraction of the smallest bucket, and reading the clock would cost as much. Its counters are timed.
    pub fn durations(&self) -> impl Iterator<Item = (&'static str, &Histogram)> {
        Verb::ALL.iter().map(|verb| verb.name()).chain(["resolve", "count"]).zip(&self.durations)
    }

    fn count<T, E: Failure>(&self, answer: Result<T, E>) -> Result<T, E> {
        if let Some(error) = answer.as_ref().err().and_then(Failure::of_store) {
            let kind = StoreErrorKind::ALL.iter().position(|kind| *kind == error.kind()).unwrap_or(0);
            self.errors[kind].fetch_add(1, Ordering::Relaxed);
        }
        answer
    }
}

/// The errors of calls and of counters.
trait Failure {
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

/// A store whose failures are counted.
#[derive(Debug)]
pub(super) struct Observed<S> {
    pub(super) store: S,
    pub(super) stats: Arc<StoreStats>,
}

impl<S: Store> Store for Observed<S> {
    async fn call(&self, call: &Call<'_>) -> Result<Decision, StoreError> {
        self.stats.count(self.store.call(call).await)
    }

    fn call_now(&self, call: &Call<'_>) -> Option<Result<Decision, StoreError>> {
        self.store.call_now(call).map(|answer| self.stats.count(answer))
    }
}

impl<S: Holds> Holds for Observed<S> {
    async fn resolve(&self, resolution: &Resolution<'_>) -> Result<Resolved, StoreError> {
        self.stats.count(self.store.resolve(resolution).await)
    }

    fn cancel_soon(&self, hold: Hold) {
        self.store.cancel_soon(hold);
    }

    fn finish(&self, work: Work) {
        self.store.finish(work);
    }
}

impl<S: Counters> Counters for Observed<S> {
    async fn count(&self, name: &CounterName, op: CounterOp) -> Result<CounterValue, CounterError> {
        self.stats.count(self.store.count(name, op).await)
    }
}

impl Observed<Lazy<Timed<AnyStore>>> {
    /// Over connections of its own, so neither its time nor the state of the store is a decision's.
    pub(super) async fn open_holds(&self, query: &HoldQuery) -> Result<HoldPage, StoreError> {
        let listed = async { self.store.store()?.store.open_holds(query).await };
        self.stats.count(listed.await)
    }
}

/// A store whose calls are timed, including abandoned ones.
#[derive(Debug)]
pub(super) struct Timed<S> {
    pub(super) store: S,
    pub(super) stats: Arc<StoreStats>,
}

/// Observes the time until it is dropped.
struct Timer<'h> {
    histogram: &'h Histogram,
    began: Instant,
}

impl Drop for Timer<'_> {
    fn drop(&mut self) {
        self.histogram.observe(self.began.elapsed());
    }
}

impl<S> Timed<S> {
    fn start(&self, at: usize) -> Timer<'_> {
        Timer { histogram: &self.stats.durations[at], began: Instant::now() }
    }
}

impl<S: Store> Store for Timed<S> {
    async fn call(&self, call: &Call<'_>) -> Result<Decision, StoreError> {
        let at = Verb::ALL.iter().position(|verb| *verb == call.verb()).unwrap_or(0);
        let _timer = self.start(at);
        self.store.call(call).await
    }

    fn call_now(&self, call: &Call<'_>) -> Option<Result<Decision, StoreError>> {
        self.store.call_now(call)
    }
}

impl<S: Holds> Holds for Timed<S> {
    async fn resolve(&self, resolution: &Resolution<'_>) -> Result<Resolved, StoreError> {
        let _timer = self.start(RESOLVE);
        self.store.resolve(resolution).await
    }

    fn cancel_soon(&self, hold: Hold) {
        self.store.cancel_soon(hold);
    }

    fn finish(&self, work: Work) {
        self.store.finish(work);
    }
}

impl<S: Counters> Counters for Timed<S> {
    async fn count(&self, name: &CounterName, op: CounterOp) -> Result<CounterValue, CounterError> {
        let _timer = self.start(COUNT);
        self.store.count(name, op).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_counted_under_its_name() {
        let stats = StoreStats::default();
        let reason = String::new;
        let errors = [
            StoreError::unavailable(reason()),
            StoreError::ambiguous(reason()),
            StoreError::overloaded(reason()),
            StoreError::refused(reason(), reason()),
            StoreError::newer_format(reason()),
            StoreError::corrupt(reason()),
        ];
        for (times, error) in errors.iter().enumerate() {
            (0..=times).for_each(|_| drop(stats.count(Err::<(), _>(error.clone()))));
        }
        let expected = [
            ("unavailable", 1),
            ("ambiguous", 2),
            ("overloaded", 3),
            ("refused", 4),
            ("newer_format", 5),
            ("corrupt", 6),
        ];
        assert_eq!(stats.errors().collect::<Vec<_>>(), expected);
    }
}
