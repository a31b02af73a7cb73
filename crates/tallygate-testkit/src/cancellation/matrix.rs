//! Makes the calls, waits until nothing is in flight, and verifies the states.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use tallygate::Cost;
use tallygate::call::{Effect, Verb};

use super::scene::{Case, Scene};
use super::{States, WHEN_WOKEN};
use crate::wait::PATIENCE;

/// Nothing is in flight any more if no state has changed for this long.
const QUIET: Duration = Duration::from_millis(50);
/// Futures are polled when woken, or this often.
const OFTEN: Duration = Duration::from_micros(50);
/// The maximum number of polls of a call.
const MOST_POLLS: usize = 2000;

/// Which states are right after a call, for all its limits together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Then {
    /// Those before the call.
    Before,
    /// Those after the complete call.
    After,
    /// Either of the two: everything was done, or nothing.
    Either,
}

impl Then {
    /// After this many polls. A call that gives back, once begun, is completed even if it is dropped.
    pub fn polled(verb: Verb, polls: usize, answered: bool) -> Self {
        match verb.effect() {
            _ if answered => Self::After,
            _ if polls == 0 => Self::Before,
            Effect::GivesBack => Self::After,
            Effect::Charges | Effect::Reads => Self::Either,
        }
    }
}

/// The calls that were made, and how far they got.
#[derive(Debug)]
pub struct Matrix<T> {
    states: T,
    calls: Vec<(Case, Then, String)>,
    cancels: bool,
}

/// Totals of the calls of a matrix.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Summary {
    /// All calls.
    pub calls: usize,
    /// Those that may or may not have been charged: they were dropped in flight.
    pub dropped: usize,
    /// Those of them that were completed.
    pub done: usize,
}

impl<T: States> Matrix<T> {
    /// Creates a matrix without calls.
    pub fn new(states: T) -> Self {
        Self { states, calls: Vec::new(), cancels: false }
    }

    /// Of callers that cancel a reservation whose answer they could not deliver: what it held comes back, and what it drained stays.
    #[must_use]
    pub fn that_cancels_reservations(self) -> Self {
        Self { cancels: true, ..self }
    }

    /// Makes one call, with callers that no other call uses. `run` returns which states are right then.
    pub fn call(&mut self, scene: &Arc<Scene>, verb: Verb, how: &str, run: impl FnOnce(&Case) -> Then) {
        let case = self.prepare(scene, verb);
        let then = run(&case);
        self.calls.push((case, then, how.to_owned()));
    }

    /// Prepares calls, runs `begin`, and then makes them.
    pub fn together(
        &mut self,
        calls: &[(&Arc<Scene>, Verb)],
        how: &str,
        begin: impl FnOnce(),
        run: impl Fn(&Case) -> Then,
    ) {
        let first = self.calls.len();
        for (scene, verb) in calls {
            let case = self.prepare(scene, *verb);
            self.calls.push((case, Then::Before, how.to_owned()));
        }
        begin();
        for (case, then, _) in &mut self.calls[first..] {
            *then = run(case);
        }
    }

    /// Makes a call for each scene and verb, once for each number of polls until it is answered. `run` polls the given
    /// number of times, at most this far apart, and returns which states are right then, and whether it was answered.
    pub fn every_poll(
        &mut self,
        scenes: &[Arc<Scene>],
        verbs: &[Verb],
        run: impl Fn(&Case, usize, Duration) -> (Then, bool),
    ) {
        for every in [WHEN_WOKEN, OFTEN] {
            let verbs_of = |scene| verbs.iter().map(move |verb| (scene, *verb));
            let mut under_way: Vec<(&Arc<Scene>, Verb)> = scenes.iter().flat_map(verbs_of).collect();
            for polls in 0..MOST_POLLS {
                under_way.retain(|(scene, verb)| {
                    let case = self.prepare(scene, *verb);
                    let (then, answered) = run(&case, polls, every);
                    self.calls.push((case, then, format!("polled {polls} times")));
                    !answered
                });
                if under_way.is_empty() {
                    break;
                }
            }
            assert!(under_way.is_empty(), "never ready: {under_way:?}");
        }
    }

    fn prepare(&self, scene: &Arc<Scene>, verb: Verb) -> Case {
        let case = Case::new(scene, verb, self.calls.len());
        for (place, used) in case.before().into_iter().enumerate() {
            if let Ok(used) = Cost::new(used) {
                self.states.charge(&case, place, used);
            }
        }
        case
    }

    /// Waits until nothing is in flight, and verifies the states of every call.
    ///
    /// # Panics
    /// When some are wrong.
    #[track_caller]
    pub fn judge(&self) -> Summary {
        self.judge_by(|used, right| right.contains(used))
    }

    /// Like [`judge`](Self::judge), while a part of the store was unreachable under policies: `on_error` answers for that
    /// part only, so each state may be as before or as after the call by itself. A call that is denied still changes nothing
    /// but what drains.
    ///
    /// # Panics
    /// When some are wrong.
    #[track_caller]
    pub fn judge_each_state(&self) -> Summary {
        self.judge_by(|used, right| {
            used.iter().enumerate().all(|(place, used)| right.iter().any(|right| right[place] == *used))
        })
    }

    #[track_caller]
    fn judge_by(&self, is_right: impl Fn(&Vec<u64>, &[Vec<u64>]) -> bool) -> Summary {
        let (used, mut wrong) = (self.settled(), Vec::new());
        let mut summary = Summary { calls: self.calls.len(), ..Summary::default() };
        for ((case, then, how), used) in self.calls.iter().zip(used) {
            let mut right = match then {
                Then::Before => vec![case.before()],
                Then::After => vec![case.after()],
                Then::Either => vec![case.before(), case.after()],
            };
            if self.cancels && *then == Then::Either && case.verb() == Verb::Reserve {
                right.push(case.cancelled());
            }
            if *then == Then::Either && case.before() != case.after() {
                summary.dropped += 1;
                summary.done += usize::from(used == case.after());
            }
            if !is_right(&used, &right) {
                wrong.push(format!("{case:?}, {how}: {used:?} are used, expected {right:?}"));
            }
        }
        let first = &wrong[..wrong.len().min(10)];
        assert!(
            wrong.is_empty(),
            "{} of {} calls left wrong states:\n{}",
            wrong.len(),
            self.calls.len(),
            first.join("\n")
        );
        summary
    }

    fn settled(&self) -> Vec<Vec<u64>> {
        let read = || self.calls.iter().map(|(case, ..)| self.states.used(case)).collect::<Vec<_>>();
        let start = Instant::now();
        let mut before = read();
        loop {
            thread::sleep(QUIET);
            let now = read();
            if now == before {
                return now;
            }
            assert!(start.elapsed() < PATIENCE, "the states keep changing");
            before = now;
        }
    }
}
