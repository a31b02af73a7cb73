//! Twins: any trace of calls, on any clock, is answered the same by two stores.

mod call;
mod chapter;

use std::collections::VecDeque;
use std::fmt;

use tallygate::{Algorithm, Limiter, ManualClock, Store};

use crate::random::Random;
use call::Answer;
use chapter::Chapter;
pub(crate) use chapter::micros;

/// Random calls to ask of two limiters. A trace is sequential; run many at once with different prefixes and clocks.
///
/// It is told in chapters of some hundred steps, each with keys, limits and a time of its own. In a chapter the clock
/// moves by anything from nothing to three windows and to the very edges of waits and windows; calls are checks of one
/// and of several limits, peeks, refunds, resets and mistakes; limits get other numbers while their keys are in use.
#[derive(Debug, Clone)]
pub struct Trace {
    algorithm: Algorithm,
    seed: u64,
    steps: usize,
    prefix: String,
    backward: bool,
}

/// Where two stores differ.
#[derive(Debug)]
pub struct Mismatch {
    trace: Trace,
    step: usize,
    chapter: usize,
    limits: Vec<String>,
    story: VecDeque<String>,
    answers: [Answer; 2],
}

/// How many steps before a mismatch are told.
const TOLD: usize = 15;

impl Trace {
    /// `steps` calls, most of them under a limit of `algorithm`.
    pub fn new(algorithm: Algorithm, seed: u64, steps: usize) -> Self {
        Self { algorithm, seed, steps, prefix: format!("{algorithm}-{seed:x}"), backward: false }
    }

    /// Begins all names of keys with this. Unless said, the algorithm and the seed.
    #[must_use]
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Lets the clock step back and flap as well. Only for two stores that never forget: what one has forgotten shows
    /// when time returns to before its expiry.
    #[must_use]
    pub fn backward(mut self) -> Self {
        self.backward = true;
        self
    }

    /// Asks both limiters the same, each on the clock it decides by; answers how many calls were denied.
    pub async fn run<A: Store, B: Store>(
        &self,
        (one, clock_of_one): (&Limiter<A>, &ManualClock),
        (two, clock_of_two): (&Limiter<B>, &ManualClock),
    ) -> Result<usize, Box<Mismatch>> {
        let mut random = Random::new(self.seed);
        let (mut step, mut number, mut denied) = (0, 0, 0);
        while step < self.steps {
            let mut chapter = Chapter::new(&mut random, &self.prefix, number, self.algorithm, self.backward);
            let mut story = VecDeque::with_capacity(TOLD + 1);
            let mut left = random.between(50, 400);
            while left > 0 && step < self.steps && !chapter.is_over() {
                let call = chapter.next(&mut random);
                clock_of_one.set(chapter.now());
                clock_of_two.set(chapter.now());
                let answers = [call.ask(one).await, call.ask(two).await];
                story.push_back(format!("at {} {call} -> {}", chapter.now(), answers[0]));
                if story.len() > TOLD {
                    story.pop_front();
                }
                if !answers[0].is_like(&answers[1]) {
                    let (trace, limits) = (self.clone(), chapter.limits());
                    return Err(Box::new(Mismatch { trace, step, chapter: number, limits, story, answers }));
                }
                denied += usize::from(answers[0].denied());
                chapter.learn(&call, &answers[0]);
                (step, left) = (step + 1, left - 1);
            }
            number += 1;
        }
        Ok(denied)
    }
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "step {} (chapter {}) of {:?} is answered differently", self.step, self.chapter, self.trace)?;
        for limit in &self.limits {
            writeln!(f, "  {limit}")?;
        }
        for told in &self.story {
            writeln!(f, "  {told}")?;
        }
        let [one, two] = &self.answers;
        write!(f, "one: {one}\ntwo: {two}")
    }
}

impl std::error::Error for Mismatch {}
