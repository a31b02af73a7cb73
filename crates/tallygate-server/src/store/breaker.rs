//! A circuit breaker: while the store does not answer, calls fail at once.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tallygate::call::Call;
use tallygate::counter::{CounterError, CounterName, CounterOp, CounterValue, Counters};
use tallygate::store::StoreErrorKind;
use tallygate::{Decision, Store, StoreError};
use tokio::sync::Notify;

/// Failures in a row that open it.
pub(super) const MOST_FAILURES: u32 = 5;

/// Closed while the store answers. Open after [`MOST_FAILURES`] failed calls in a row; then only a successful probe closes
/// it, so no caller waits to find out whether the store is back.
///
/// One word of state: the upper half is the number of times it was closed, the lower half the failures in a row. A call
/// that began under an earlier number says nothing about the store now, and is not counted.
#[derive(Debug, Default)]
pub(super) struct Breaker(AtomicU64);

/// Permit to call the store, returned with the result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Permit {
    round: u32,
}

/// What a call says about the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Signal {
    /// It answered, if only to refuse.
    Answered,
    /// It was unreachable, or did not answer in time.
    Failed,
    /// The call did not reach the store.
    Nothing,
}

impl Signal {
    pub(super) fn of(error: &StoreError) -> Self {
        match error.kind() {
            StoreErrorKind::Unavailable | StoreErrorKind::Ambiguous => Self::Failed,
            StoreErrorKind::Overloaded => Self::Nothing,
            StoreErrorKind::Refused | StoreErrorKind::Corrupt | StoreErrorKind::NewerFormat => Self::Answered,
            // A new kind of error must not open the breaker until it is listed here.
            _ => Self::Nothing,
        }
    }
}

/// A store that is called only while its breaker is closed.
#[derive(Debug)]
pub(super) struct Guarded<S> {
    pub(super) store: S,
    pub(super) breaker: Arc<Breaker>,
    /// Notified when a failed call opens the breaker, so that the next probe comes at once.
    pub(super) opened: Arc<Notify>,
}

impl<S> Guarded<S> {
    async fn ask<T, E: Failure>(&self, call: impl Future<Output = Result<T, E>>) -> Result<T, E> {
        let Some(permit) = self.breaker.admit() else { return Err(open().into()) };
        let answer = call.await;
        let signal = match &answer {
            Ok(_) => Signal::Answered,
            Err(error) => error.of_store().map_or(Signal::Answered, Signal::of),
        };
        if self.breaker.record(permit, signal) {
            self.opened.notify_one();
        }
        answer
    }
}

impl<S: Store> Store for Guarded<S> {
    async fn call(&self, call: &Call<'_>) -> Result<Decision, StoreError> {
        self.ask(self.store.call(call)).await
    }

    /// A store that answers at once needs no breaker.
    fn call_now(&self, call: &Call<'_>) -> Option<Result<Decision, StoreError>> {
        self.store.call_now(call)
    }
}

impl<S: Counters> Counters for Guarded<S> {
    async fn count(&self, name: &CounterName, op: CounterOp) -> Result<CounterValue, CounterError> {
        self.ask(self.store.count(name, op)).await
    }
}

/// The errors of calls and of counters.
pub(super) trait Failure: From<StoreError> {
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

#[cold]
fn open() -> StoreError {
    let reason =
        format!("the circuit breaker is open: {MOST_FAILURES} calls in a row failed, and no probe has succeeded since");
    StoreError::unavailable(reason)
}

fn split(word: u64) -> (u32, u32) {
    // Both halves fit by construction.
    ((word >> 32) as u32, word as u32)
}

fn join(round: u32, failures: u32) -> u64 {
    u64::from(round) << 32 | u64::from(failures)
}

impl Breaker {
    /// Permit to call the store, or `None` while it is open.
    pub(super) fn admit(&self) -> Option<Permit> {
        let (round, failures) = split(self.0.load(Ordering::Relaxed));
        (failures < MOST_FAILURES).then_some(Permit { round })
    }

    pub(super) fn is_open(&self) -> bool {
        self.failures() >= MOST_FAILURES
    }

    /// Failures in a row, of calls and probes.
    pub(super) fn failures(&self) -> u32 {
        split(self.0.load(Ordering::Relaxed)).1
    }

    /// Records the result of a call. True for the one that opens the breaker.
    pub(super) fn record(&self, permit: Permit, signal: Signal) -> bool {
        match signal {
            Signal::Nothing => false,
            Signal::Answered => {
                // The common case only reads.
                self.change(|round, failures| {
                    (round == permit.round && (1..MOST_FAILURES).contains(&failures)).then_some((round, 0))
                });
                false
            }
            Signal::Failed => self
                .change(|round, failures| {
                    (round == permit.round && failures < MOST_FAILURES).then_some((round, failures + 1))
                })
                .is_some_and(|(_, before)| before + 1 == MOST_FAILURES),
        }
    }

    /// A probe failed: one more failure. Probes need no permit.
    pub(super) fn probe_failed(&self) {
        self.change(|round, failures| (failures < MOST_FAILURES).then_some((round, failures + 1)));
    }

    /// The store is known to be down: calls fail at once.
    pub(super) fn open(&self) {
        self.change(|round, failures| (failures < MOST_FAILURES).then_some((round, MOST_FAILURES)));
    }

    /// A probe succeeded: closes it. Calls that began earlier are not counted.
    pub(super) fn probe_answered(&self) {
        self.change(|round, failures| match failures {
            0 => None,
            MOST_FAILURES.. => Some((round.wrapping_add(1), 0)),
            _ => Some((round, 0)),
        });
    }

    /// The state before, if it changed.
    fn change(&self, next: impl Fn(u32, u32) -> Option<(u32, u32)>) -> Option<(u32, u32)> {
        let next = |word| {
            let (round, failures) = split(word);
            next(round, failures).map(|(round, failures)| join(round, failures))
        };
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).ok().map(split)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone, Copy)]
    enum Step {
        Ask,
        Finish(prop::sample::Index, Signal),
        ProbeFailed,
        ProbeAnswered,
        Open,
    }

    /// The same in plain words: whether it is open, what has failed since the last answer, and who was let in since when.
    #[derive(Default)]
    struct Model {
        open: bool,
        in_a_row: u32,
        reopened: usize,
    }

    impl Model {
        fn fail(&mut self) -> bool {
            if self.open {
                return false;
            }
            self.in_a_row += 1;
            self.open = self.in_a_row == MOST_FAILURES;
            self.open
        }
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let signal = prop_oneof![3 => Just(Signal::Failed), 1 => Just(Signal::Answered), 1 => Just(Signal::Nothing)];
        let step = prop_oneof![
            6 => Just(Step::Ask),
            8 => (any::<prop::sample::Index>(), signal).prop_map(|(which, signal)| Step::Finish(which, signal)),
            1 => Just(Step::ProbeFailed),
            1 => Just(Step::ProbeAnswered),
            1 => Just(Step::Open),
        ];
        prop::collection::vec(step, 1..200)
    }

    proptest! {
        #[test]
        fn it_does_what_its_model_does(steps in steps()) {
            let breaker = Breaker::default();
            let mut model = Model::default();
            let mut under_way: Vec<(Permit, usize)> = Vec::new();
            for step in steps {
                match step {
                    Step::Ask => {
                        let permit = breaker.admit();
                        prop_assert_eq!(permit.is_some(), !model.open);
                        under_way.extend(permit.map(|permit| (permit, model.reopened)));
                    }
                    Step::Finish(which, signal) if !under_way.is_empty() => {
                        let (permit, began) = under_way.swap_remove(which.index(under_way.len()));
                        let opened = breaker.record(permit, signal);
                        let counts = began == model.reopened && !model.open;
                        let expected = match signal {
                            Signal::Failed if counts => model.fail(),
                            Signal::Answered if counts => {
                                model.in_a_row = 0;
                                false
                            }
                            _ => false,
                        };
                        prop_assert_eq!(opened, expected);
                    }
                    Step::Finish(..) => {}
                    Step::ProbeFailed => {
                        breaker.probe_failed();
                        model.fail();
                    }
                    Step::ProbeAnswered => {
                        breaker.probe_answered();
                        model.reopened += usize::from(model.open);
                        (model.open, model.in_a_row) = (false, 0);
                    }
                    Step::Open => {
                        breaker.open();
                        model.open = true;
                    }
                }
                prop_assert_eq!(breaker.is_open(), model.open);
                if !model.open {
                    prop_assert_eq!(breaker.failures(), model.in_a_row);
                }
            }
        }
    }

    #[test]
    fn of_many_that_fail_at_once_one_opens_it() {
        for _ in 0..200 {
            let breaker = Breaker::default();
            let opened: usize = std::thread::scope(|scope| {
                let fail = || {
                    let leaves: Vec<Permit> = (0..MOST_FAILURES).filter_map(|_| breaker.admit()).collect();
                    leaves.into_iter().filter(|permit| breaker.record(*permit, Signal::Failed)).count()
                };
                let threads: Vec<_> = (0..4).map(|_| scope.spawn(fail)).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).sum()
            });
            assert_eq!((opened, breaker.is_open()), (1, true));
        }
    }

    #[test]
    fn what_began_before_an_outage_does_not_reopen_it() {
        let breaker = Breaker::default();
        let old = breaker.admit().unwrap();
        breaker.open();
        breaker.probe_answered();
        for _ in 0..100 {
            assert!(!breaker.record(old, Signal::Failed));
        }
        assert!(breaker.admit().is_some());
    }
}
