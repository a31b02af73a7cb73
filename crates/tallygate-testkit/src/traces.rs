//! Twins: two stores give the same answers to any trace of calls, on any clock.

mod call;
mod chapter;
mod time;

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;

use tallygate::algorithm::EncodedState;
use tallygate::clock::ManualClock;
use tallygate::hold::{Hold, Holds, Resolution, Resolved, Work};
use tallygate::request::Request;
use tallygate::{Algorithm, Check, Decision, MemoryStore, Store, StoreError};

use crate::random::Random;
use call::{Answer, Ask};
use chapter::Chapter;
pub(crate) use chapter::zero;
pub(crate) use time::{Known, Time, micros};

/// Random calls to two limiters. A trace is sequential; run many at once with different prefixes and clocks.
///
/// It consists of chapters of some hundred steps, each with its own keys, limits and time. In a chapter the clock moves
/// by anything from nothing to three windows, and to the exact edges of waits and windows. Calls are checks of one and
/// of several limits, peeks, refunds, resets, invalid calls and repeats; limits change their numbers while their keys are in
/// use.
#[derive(Debug, Clone)]
pub struct Trace {
    algorithm: Algorithm,
    seed: u64,
    steps: usize,
    prefix: String,
    backward: bool,
}

/// The first difference between two stores.
#[derive(Debug)]
pub struct Mismatch {
    trace: Trace,
    step: usize,
    chapter: usize,
    limits: Vec<String>,
    story: VecDeque<String>,
    answers: [String; 2],
}

/// A store whose stored states can be inspected.
pub trait Inspected: Holds {
    /// The state of a check; `None` if it cannot be inspected.
    fn inspect(&self, check: &Check<'_>) -> impl Future<Output = Option<Stored>> + Send;

    /// The open holds of its state, with their deadlines; `None` if they cannot be inspected.
    fn inspect_holds(&self, check: &Check<'_>) -> impl Future<Output = Option<Vec<(u64, Vec<u8>)>>> + Send {
        let _ = check;
        std::future::ready(None)
    }

    /// What is remembered of a call with an id, of which this is the first check; `None` if it cannot be inspected.
    fn inspect_answer(
        &self,
        request: &Request,
        first: &Check<'_>,
    ) -> impl Future<Output = Option<Option<Vec<u8>>>> + Send {
        let _ = (request, first);
        std::future::ready(None)
    }
}

/// A state as it is stored, if there is one.
pub type Stored = Option<EncodedState>;

impl Inspected for MemoryStore {
    async fn inspect(&self, check: &Check<'_>) -> Option<Stored> {
        Some(self.encoded_state(check))
    }

    async fn inspect_holds(&self, check: &Check<'_>) -> Option<Vec<(u64, Vec<u8>)>> {
        Some(self.encoded_holds(check))
    }

    async fn inspect_answer(&self, request: &Request, _: &Check<'_>) -> Option<Option<Vec<u8>>> {
        Some(self.encoded_answer(request))
    }
}

/// A store whose states are not inspected.
#[derive(Debug)]
pub struct Opaque<'s, S>(pub &'s S);

impl<S: Store> Store for Opaque<'_, S> {
    async fn call(&self, call: &tallygate::call::Call<'_>) -> Result<Decision, StoreError> {
        self.0.call(call).await
    }
}

impl<S: Holds> Holds for Opaque<'_, S> {
    async fn resolve(&self, resolution: &Resolution<'_>) -> Result<Resolved, StoreError> {
        self.0.resolve(resolution).await
    }

    fn cancel_soon(&self, hold: Hold) {
        self.0.cancel_soon(hold);
    }

    fn finish(&self, work: Work) {
        self.0.finish(work);
    }
}

impl<S: Holds> Inspected for Opaque<'_, S> {
    async fn inspect(&self, _: &Check<'_>) -> Option<Stored> {
        None
    }
}

/// The states of a call are compared after this many steps, and all states at the end of a chapter.
const COMPARED: usize = 8;

/// The number of steps before a mismatch that are reported.
const REPORTED: usize = 15;

impl Trace {
    /// `steps` calls, most of them under a limit of `algorithm`.
    pub fn new(algorithm: Algorithm, seed: u64, steps: usize) -> Self {
        Self { algorithm, seed, steps, prefix: format!("{algorithm}-{seed:x}"), backward: false }
    }

    /// Sets the prefix of all key names. Defaults to the algorithm and the seed.
    #[must_use]
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Lets the clock step back and flap as well. Only for two stores that never drop a state: a dropped one is missed
    /// when time returns to before its expiry.
    #[must_use]
    pub fn backward(mut self) -> Self {
        self.backward = true;
        self
    }

    /// Puts the same calls to both stores, each on its own clock, and compares what they answer and store. Returns how
    /// many calls were denied.
    pub async fn run<A: Inspected, B: Inspected>(
        &self,
        (one, clock_of_one): (&A, &ManualClock),
        (two, clock_of_two): (&B, &ManualClock),
    ) -> Result<usize, Box<Mismatch>> {
        let mut random = Random::new(self.seed);
        let (mut step, mut number, mut denied) = (0, 0, 0);
        while step < self.steps {
            let mut chapter = Chapter::new(&mut random, &self.prefix, number, self.algorithm, self.backward);
            let mut story = VecDeque::with_capacity(REPORTED + 1);
            let mut left = random.between(50, 400);
            while left > 0 && step < self.steps && !chapter.is_over() {
                let call = chapter.next(&mut random);
                clock_of_one.set(chapter.now());
                clock_of_two.set(chapter.now());
                let answers: [Answer; 2] = [call.ask(one).await, call.ask(two).await];
                chapter.learn(&call, &answers[0]);
                denied += usize::from(answers[0].denied());
                story.push_back(format!("at {} {call} -> {}", chapter.now(), answers[0]));
                if story.len() > REPORTED {
                    story.pop_front();
                }
                let last = left == 1 || step + 1 == self.steps;
                let compared = match step.is_multiple_of(COMPARED) {
                    _ if last => chapter.all(),
                    true => call.asks.clone(),
                    false => Vec::new(),
                };
                let states = match differing(one, two, &compared).await {
                    None => differing_answers(one, two, chapter.named().filter(|_| last).chain([&call])).await,
                    states => states,
                };
                let (alike, answers) = match states {
                    None => (answers[0].is_like(&answers[1], call.verb), answers.map(|answer| answer.to_string())),
                    Some(states) => (false, states),
                };
                if !alike {
                    let (trace, limits) = (self.clone(), chapter.limits());
                    return Err(Box::new(Mismatch { trace, step, chapter: number, limits, story, answers }));
                }
                (step, left) = (step + 1, left - 1);
            }
            number += 1;
        }
        Ok(denied)
    }
}

/// The first state that the stores keep differently, as stored by each.
async fn differing<A: Inspected, B: Inspected>(one: &A, two: &B, asks: &[Ask]) -> Option<[String; 2]> {
    // A sorted set without members is not a key.
    let means_nothing = |state: &EncodedState| *state == EncodedState::SortedSet(Vec::new());
    let holders = (one, two);
    for ask in asks {
        let check = ask.check();
        let (Some(one), Some(two)) = (one.inspect(&check).await, two.inspect(&check).await) else { return None };
        let [one, two] = [one, two].map(|state| state.filter(|state| !means_nothing(state)));
        if one != two {
            return Some([one, two].map(|state| format!("{ask}: {state:02x?}")));
        }
        let holds = (holders.0.inspect_holds(&check).await, holders.1.inspect_holds(&check).await);
        if let (Some(one), Some(two)) = holds
            && one != two
        {
            return Some([one, two].map(|holds| format!("{ask}: held {holds:02x?}")));
        }
    }
    None
}

/// The first call with an id of which the stores remember different answers.
async fn differing_answers<A: Inspected, B: Inspected>(
    one: &A,
    two: &B,
    calls: impl Iterator<Item = &call::Call>,
) -> Option<[String; 2]> {
    for (request, first) in calls.filter_map(call::Call::remembered) {
        let check = first.check();
        let answers = [one.inspect_answer(&request, &check).await, two.inspect_answer(&request, &check).await];
        if let [Some(one), Some(two)] = answers
            && one != two
        {
            return Some([one, two].map(|answer| format!("{first}: remembered {answer:02x?}")));
        }
    }
    None
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "step {} (chapter {}) of {:?} is answered differently", self.step, self.chapter, self.trace)?;
        for limit in &self.limits {
            writeln!(f, "  {limit}")?;
        }
        for line in &self.story {
            writeln!(f, "  {line}")?;
        }
        let [one, two] = &self.answers;
        write!(f, "one: {one}\ntwo: {two}")
    }
}

impl std::error::Error for Mismatch {}
