//! Stops asking a store that does not answer: who asks meanwhile is told so at once.

use std::sync::atomic::{AtomicU64, Ordering};

use tallygate::StoreError;

/// Failures in a row that open it.
pub(super) const MOST_FAILURES: u32 = 5;

/// Closed while the store answers. Open after [`MOST_FAILURES`] calls in a row failed; then only a probe that was answered
/// closes it, so no caller ever waits to find out whether the store is back.
///
/// One word of state: in its upper half the number of times it was closed again, in its lower half the failures in a row.
/// What a call began under the number before says nothing about the store as it is now, and is not counted.
#[derive(Debug, Default)]
pub(super) struct Breaker(AtomicU64);

/// Leave to ask the store; handed back with what came of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Leave {
    round: u32,
}

/// What a call shows about the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sign {
    /// It answered, if only to refuse.
    Answered,
    /// It was not reached, or did not answer in time.
    Failed,
    /// The call did not get as far as the store.
    Nothing,
}

impl Sign {
    pub(super) fn of(error: &StoreError) -> Self {
        match error {
            StoreError::Unavailable { .. } | StoreError::Ambiguous { .. } => Self::Failed,
            StoreError::Overloaded { .. } => Self::Nothing,
            StoreError::Refused { .. } | StoreError::Corrupt { .. } => Self::Answered,
            // A new kind of error must not cut anyone off before someone has thought about it.
            _ => Self::Nothing,
        }
    }
}

fn split(word: u64) -> (u32, u32) {
    // Both halves fit by construction.
    ((word >> 32) as u32, word as u32)
}

fn join(round: u32, failures: u32) -> u64 {
    u64::from(round) << 32 | u64::from(failures)
}

impl Breaker {
    /// Leave to ask the store, or `None` while it is open.
    pub(super) fn admit(&self) -> Option<Leave> {
        let (round, failures) = split(self.0.load(Ordering::Relaxed));
        (failures < MOST_FAILURES).then_some(Leave { round })
    }

    pub(super) fn is_open(&self) -> bool {
        self.failures() >= MOST_FAILURES
    }

    /// Failures in a row, by callers and probes.
    pub(super) fn failures(&self) -> u32 {
        split(self.0.load(Ordering::Relaxed)).1
    }

    /// What became of a call. True for the one that opens it.
    pub(super) fn record(&self, leave: Leave, sign: Sign) -> bool {
        match sign {
            Sign::Nothing => false,
            Sign::Answered => {
                // The usual case reads one word that nobody writes.
                self.change(|round, failures| {
                    (round == leave.round && (1..MOST_FAILURES).contains(&failures)).then_some((round, 0))
                });
                false
            }
            Sign::Failed => self
                .change(|round, failures| {
                    (round == leave.round && failures < MOST_FAILURES).then_some((round, failures + 1))
                })
                .is_some_and(|(_, before)| before + 1 == MOST_FAILURES),
        }
    }

    /// A probe failed: one more failure. What was asked by nobody needs no leave.
    pub(super) fn probe_failed(&self) {
        self.change(|round, failures| (failures < MOST_FAILURES).then_some((round, failures + 1)));
    }

    /// The store is known to be down: no caller needs to find out for himself.
    pub(super) fn open(&self) {
        self.change(|round, failures| (failures < MOST_FAILURES).then_some((round, MOST_FAILURES)));
    }

    /// A probe was answered: closed, whatever it was. Calls that began while it was open or before count for nothing.
    pub(super) fn probe_answered(&self) {
        self.change(|round, failures| match failures {
            0 => None,
            MOST_FAILURES.. => Some((round.wrapping_add(1), 0)),
            _ => Some((round, 0)),
        });
    }

    /// What it was before, if it was changed.
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
        Finish(prop::sample::Index, Sign),
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
        let sign = prop_oneof![3 => Just(Sign::Failed), 1 => Just(Sign::Answered), 1 => Just(Sign::Nothing)];
        let step = prop_oneof![
            6 => Just(Step::Ask),
            8 => (any::<prop::sample::Index>(), sign).prop_map(|(which, sign)| Step::Finish(which, sign)),
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
            let mut under_way: Vec<(Leave, usize)> = Vec::new();
            for step in steps {
                match step {
                    Step::Ask => {
                        let leave = breaker.admit();
                        prop_assert_eq!(leave.is_some(), !model.open);
                        under_way.extend(leave.map(|leave| (leave, model.reopened)));
                    }
                    Step::Finish(which, sign) if !under_way.is_empty() => {
                        let (leave, began) = under_way.swap_remove(which.index(under_way.len()));
                        let opened = breaker.record(leave, sign);
                        let counts = began == model.reopened && !model.open;
                        let expected = match sign {
                            Sign::Failed if counts => model.fail(),
                            Sign::Answered if counts => {
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
                    let leaves: Vec<Leave> = (0..MOST_FAILURES).filter_map(|_| breaker.admit()).collect();
                    leaves.into_iter().filter(|leave| breaker.record(*leave, Sign::Failed)).count()
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
            assert!(!breaker.record(old, Sign::Failed));
        }
        assert!(breaker.admit().is_some());
    }
}
