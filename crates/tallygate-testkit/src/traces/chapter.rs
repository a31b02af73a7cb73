//! Some hundred steps of a trace over the same few keys: where the clock goes, and which call is next.

use std::collections::HashMap;

use tallygate::call::{UpTo, Verb};
use tallygate::clock::Timestamp;
use tallygate::policy::{Excess, Mode};
use tallygate::{Algorithm, Cost, Limit};

use super::call::{Answer, Ask, Call};
use super::time::{Known, Time, micros};
use crate::random::Random;

const SUBJECTS: usize = 3;

pub(super) struct Chapter {
    policies: Vec<(String, Limit)>,
    time: Time,
    known: HashMap<(String, String), Known>,
}

impl Chapter {
    pub(super) fn new(random: &mut Random, prefix: &str, number: usize, algorithm: Algorithm, backward: bool) -> Self {
        // Several limits of one subject, so that a call of all of them stays in one slot of a cluster.
        let algorithms = [algorithm, algorithm, random.pick(Algorithm::ALL), random.pick(Algorithm::ALL)];
        let named = algorithms.into_iter().enumerate();
        let policies = named.map(|(at, algorithm)| (format!("{prefix}-{number}-{at}"), random.limit(algorithm)));
        let policies = policies.collect();
        Self { policies, time: Time::new(random, backward), known: HashMap::new() }
    }

    pub(super) fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.time.now())
    }

    /// Whether the clock has run out of time.
    pub(super) fn is_over(&self) -> bool {
        self.time.is_over()
    }

    pub(super) fn limits(&self) -> Vec<String> {
        self.policies.iter().map(|(policy, limit)| format!("{policy}: {limit}, {:?}", limit.numbers())).collect()
    }

    /// Every state of the chapter.
    pub(super) fn all(&self) -> Vec<Ask> {
        let (mode, excess, cost) = (Mode::Enforce, Excess::Refuse, Cost::ONE);
        let subjects = (0..SUBJECTS).map(|subject| format!("s{subject}"));
        let asks = subjects.flat_map(|subject| {
            self.policies.iter().map(move |(policy, limit)| {
                let (policy, limit, subject) = (policy.clone(), limit.clone(), subject.clone());
                Ask { policy, subject, limit, cost, mode, excess, cut: false, charged_at: None }
            })
        });
        asks.collect()
    }

    pub(super) fn next(&mut self, random: &mut Random) -> Call {
        if random.chance(3) {
            let at = random.pick(&[0, 0, 1, 2, 3]);
            self.policies[at].1 = random.other_numbers(&self.policies[at].1);
        }
        let policy = random.pick(&[0, 0, 0, 0, 1, 2, 3]);
        let subject = format!("s{}", random.between(0, SUBJECTS as u64 - 1));
        let ask = self.ask(random, policy, &subject);
        let known = self.known(&ask);
        self.time.step(random, &ask.limit, known);
        match random.between(0, 99) {
            0..=45 => call(Verb::Check, vec![ask]),
            46..=49 => up_to(random, vec![ask]),
            50..=69 => {
                // In any order: it must not matter which of the checks is denied.
                let first = random.between(0, 3);
                let count = random.between(2, 4);
                let at = (first..first + count).map(|at| usize::try_from(at % 4).expect("below four"));
                let mut asks: Vec<Ask> = at.map(|at| self.ask(random, at, &subject)).collect();
                if random.chance(5) {
                    asks[0].limit = zero(&asks[0].limit);
                }
                // In half of them all policies enforce, as in the calls of a limiter.
                if random.chance(50) {
                    for ask in &mut asks {
                        ask.mode = random.pick(Mode::ALL);
                        ask.excess = random.pick(Excess::ALL);
                    }
                }
                match random.between(0, 9) {
                    0..=1 => call(Verb::Peek, asks),
                    2..=4 => up_to(random, asks),
                    _ => call(Verb::Check, asks),
                }
            }
            70..=76 => call(Verb::Peek, vec![ask]),
            77..=79 => call(Verb::Check, vec![Ask { excess: Excess::Drain, ..ask }]),
            80..=91 => self.refund(random, ask),
            92..=94 => call(Verb::Reset, vec![ask]),
            95..=96 => call(Verb::Check, vec![Ask { limit: zero(&ask.limit), ..ask }]),
            97..=98 => {
                let above = Cost::new(ask.limit.capacity() + 1).unwrap_or(ask.cost);
                let (cut, excess) = (random.chance(70), random.pick(Excess::ALL));
                call(Verb::Check, vec![Ask { cost: above, cut, excess, ..ask }])
            }
            _ => call(Verb::Check, vec![ask.clone(), ask]),
        }
    }

    /// Remembers the answer to a call, to aim the next ones.
    pub(super) fn learn(&mut self, call: &Call, answer: &Answer) {
        let Answer::Decided { statuses, .. } = answer else { return };
        if !matches!(call.verb, Verb::Check | Verb::Peek) {
            return;
        }
        for (ask, status) in call.asks.iter().zip(statuses).filter(|(ask, _)| ask.limit.amount() > 0) {
            let known = self.known.entry((ask.policy.clone(), ask.subject.clone())).or_default();
            let [retry_after, reset_after] =
                [status.retry_after().unwrap_or_default(), status.reset_after()].map(micros);
            known.learn(self.time.now(), status.remaining(), retry_after, reset_after, status.units() > 0);
        }
    }

    fn ask(&self, random: &mut Random, policy: usize, subject: &str) -> Ask {
        let (policy, limit) = self.policies[policy].clone();
        let known = self.known.get(&(policy.clone(), subject.to_owned())).copied().unwrap_or_default();
        let cost = random.cost(&limit, known.remaining.unwrap_or(limit.capacity()));
        let (mode, excess) = (Mode::Enforce, Excess::Refuse);
        Ask { policy, subject: subject.to_owned(), limit, cost, mode, excess, cut: false, charged_at: None }
    }

    fn known(&self, ask: &Ask) -> Known {
        self.known.get(&(ask.policy.clone(), ask.subject.clone())).copied().unwrap_or_default()
    }

    fn refund(&self, random: &mut Random, ask: Ask) -> Call {
        let charged_at = self.known(&ask).charged_at(random, self.time.now(), &ask.limit);
        let units = random.spread(1, (2 * ask.limit.capacity()).min(Limit::MAX_AMOUNT));
        let cost = if random.chance(50) { ask.cost } else { Cost::new(units).expect("in range") };
        call(Verb::Refund, vec![Ask { cost, charged_at: charged_at.map(Timestamp::from_micros), ..ask }])
    }
}

fn call(verb: Verb, asks: Vec<Ask>) -> Call {
    Call { verb, asks, up_to: None }
}

/// A check that takes what is left: the least is the cost of one of its checks, or less.
fn up_to(random: &mut Random, asks: Vec<Ask>) -> Call {
    let costs: Vec<Cost> = asks.iter().map(|ask| ask.cost).collect();
    let most = random.pick(&costs);
    let least = Cost::new(random.spread(1, most.get())).expect("at most a cost");
    let most = if random.chance(20) { Cost::MAX } else { most };
    let up_to = UpTo::new(most).at_least(least).expect("no more than the most");
    Call { up_to: Some(up_to), ..call(Verb::Check, asks) }
}

fn zero(limit: &Limit) -> Limit {
    Limit::builder(0, limit.window()).algorithm(limit.algorithm()).build().expect("zero works with any window")
}
