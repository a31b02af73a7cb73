//! Some hundred steps of a trace over the same few keys: where the clock goes, and which call is next.

use std::collections::HashMap;
use std::time::Duration;

use tallygate::call::{UpTo, Verb};
use tallygate::clock::Timestamp;
use tallygate::hold::{Hold, HoldId, HoldTerms, OnAbandon, Overrun, Reservation, Resolve, Turn, Units};
use tallygate::limit::Changes;
use tallygate::policy::{Excess, Mode};
use tallygate::request::RequestId;
use tallygate::{Algorithm, Check, Cost, Limit};

use super::call::{Answer, Ask, Call, Ending};
use super::time::{Known, Time, micros};
use crate::random::Random;

const SUBJECTS: usize = 3;
/// How many holds, and how many calls with an id, are remembered.
const HOLDS: usize = 6;

pub(super) struct Chapter {
    policies: Vec<(String, Limit)>,
    time: Time,
    known: HashMap<(String, String), Known>,
    /// What each policy grants to holds.
    terms: Vec<HoldTerms>,
    /// The last holds, with their policies.
    holds: Vec<Held>,
    /// The last calls with an id, and until when the answer is remembered.
    named: Vec<(Call, u64)>,
    ids: u64,
}

struct Held {
    hold: Hold,
    policies: Vec<String>,
    units: u64,
    deadline: u64,
    /// The last call that tried to end it.
    attempt: u64,
}

impl Chapter {
    pub(super) fn new(random: &mut Random, prefix: &str, number: usize, algorithm: Algorithm, backward: bool) -> Self {
        // Several limits of one subject, so that a call of all of them stays in one slot of a cluster.
        let algorithms = [algorithm, algorithm, random.pick(Algorithm::ALL), random.pick(Algorithm::ALL)];
        let named = algorithms.into_iter().enumerate();
        let policies = named.map(|(at, algorithm)| (format!("{prefix}-{number}-{at}"), random.limit(algorithm)));
        let policies = policies.collect();
        let terms = algorithms.map(|_| terms(random)).to_vec();
        Self {
            policies,
            time: Time::new(random, backward),
            known: HashMap::new(),
            terms,
            holds: Vec::new(),
            named: Vec::new(),
            ids: 0,
        }
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
                Ask {
                    policy,
                    subject,
                    limit,
                    cost,
                    mode,
                    excess,
                    cut: false,
                    charged_at: None,
                    terms: None,
                    changes: None,
                    pays_rest: false,
                }
            })
        });
        asks.collect()
    }

    pub(super) fn next(&mut self, random: &mut Random) -> Call {
        if !self.named.is_empty() && random.chance(10) {
            return self.repeat(random);
        }
        let call = self.new_call(random);
        if !matches!(call.verb, Verb::Check | Verb::Reserve) || call.ending.is_some() || !random.chance(20) {
            return call;
        }
        self.ids += 1;
        let window = micros(call.asks[0].limit.window());
        let kept = Duration::from_micros(random.spread(1000, 3 * window.max(1000)).min(micros(RequestId::LONGEST)));
        // Other chapters have the same subjects, and other times.
        let id = format!("{}-{}", self.policies[0].0, self.ids);
        let id = RequestId::new(id).and_then(|id| id.kept_for(kept)).expect("in range");
        let call = Call { id: Some(id), ..call };
        self.named.push((call.clone(), self.time.now() + micros(kept)));
        if self.named.len() > HOLDS {
            self.named.remove(0);
        }
        call
    }

    /// The calls of the chapter of which an answer may be remembered.
    pub(super) fn named(&self) -> impl Iterator<Item = &Call> {
        self.named.iter().map(|(call, _)| call)
    }

    /// A call once more, as it was, under changed limits, or with other arguments; now and then when its answer is just forgotten.
    fn repeat(&mut self, random: &mut Random) -> Call {
        let (mut call, forget_at) = self.named[at(random, self.named.len())].clone();
        if random.chance(15) {
            self.time.go_to(random, forget_at);
        }
        if random.chance(50) {
            for ask in call.asks.iter_mut().filter(|ask| ask.limit.amount() > 0) {
                let named = self.policies.iter().find(|(policy, _)| *policy == ask.policy).expect("one of the chapter");
                ask.limit = named.1.clone();
            }
        }
        call.reservation = call.reservation.map(|known| Reservation::new(known.ttl()).with_id(hold_id(random)));
        match random.between(0, 9) {
            0 => call.asks[0].cost = Cost::new(random.spread(1, 10)).expect("in range"),
            1 => call.up_to = None,
            2 => call.asks.truncate(1),
            3 => call.asks.reverse(),
            _ => {}
        }
        call
    }

    fn new_call(&mut self, random: &mut Random) -> Call {
        if random.chance(3) {
            let at = random.pick(&[0, 0, 1, 2, 3]);
            self.policies[at].1 = random.other_numbers(&self.policies[at].1);
        }
        let policy = random.pick(&[0, 0, 0, 0, 1, 2, 3]);
        let subject = format!("s{}", random.between(0, SUBJECTS as u64 - 1));
        let ask = self.ask(random, policy, &subject);
        let known = self.known(&ask);
        self.time.step(random, &ask.limit, known);
        if !self.holds.is_empty() && random.chance(8) {
            let held = &self.holds[at(random, self.holds.len())];
            self.time.go_to(random, held.deadline);
        }
        // What is in flight is only reserved.
        if random.chance(if ask.limit.is_concurrency() { 40 } else { 12 }) {
            return self.reserve(random, &subject);
        }
        if !self.holds.is_empty() && random.chance(15) {
            return self.end_hold(random);
        }
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
                let funded = random.chance(50).then(|| self.fund(random, &mut asks));
                match random.between(0, 9) {
                    0..=1 => call(Verb::Peek, asks),
                    2..=4 => up_to(random, asks),
                    5 if funded.is_some() => call(Verb::Refund, asks),
                    6 if funded.is_some() && random.chance(20) => call(Verb::Reset, asks),
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
        let Answer::Decided { statuses, allowed, repeat, .. } = answer else { return };
        if repeat.replayed || repeat.conflicts {
            return;
        }
        if let Some(reservation) = call.reservation.filter(|_| *allowed) {
            let checks: Vec<Check<'_>> = call.asks.iter().map(Ask::check).collect();
            let charged = checks.iter().filter(|check| check.limit.amount() > 0);
            let checks: Vec<Check<'_>> = charged.copied().collect();
            self.holds.push(Held {
                hold: Hold::new(reservation.id(), &checks),
                policies: call.asks.iter().map(|ask| ask.policy.clone()).collect(),
                units: call.asks[0].cost.get(),
                deadline: self.time.now() + reservation.ttl_micros(),
                attempt: 0,
            });
            if self.holds.len() > HOLDS {
                self.holds.remove(0);
            }
        }
        if !matches!(call.verb, Verb::Check | Verb::Peek | Verb::Reserve) {
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
        let (terms, (policy, limit)) = (self.terms[policy], self.policies[policy].clone());
        let known = self.known.get(&(policy.clone(), subject.to_owned())).copied().unwrap_or_default();
        let cost = random.cost(&limit, known.remaining.unwrap_or(limit.capacity()));
        let (mode, excess) = (Mode::Enforce, Excess::Refuse);
        // A call need not know what its limit grants to holds, but then it is asked twice where units are held.
        let terms = random.chance(30).then_some(terms);
        let changes = random.chance(4).then(|| self.changes(random, &limit)).flatten();
        Ask {
            policy,
            subject: subject.to_owned(),
            limit,
            cost,
            mode,
            excess,
            cut: false,
            charged_at: None,
            terms,
            changes,
            pays_rest: false,
        }
    }

    /// One or two changes of a limit, around now.
    fn changes(&self, random: &mut Random, limit: &Limit) -> Option<Changes> {
        let now = self.time.now();
        let around = random.pick(&[1, 1_000, micros(limit.window())]);
        let change = |random: &mut Random| {
            let at = (now + around).saturating_sub(random.between(0, 2 * around));
            (Timestamp::from_micros(at), random.other_numbers(limit))
        };
        let count = random.pick(&[1, 1, 2]);
        let then = (0..count).map(|_| change(random)).collect();
        Changes::new(limit.clone(), then)
    }

    /// One limit or several, with one number of units or several.
    fn reserve(&mut self, random: &mut Random, subject: &str) -> Call {
        let (first, count) = (at(random, 4), random.pick(&[1, 1, 1, 2, 3]));
        let mut asks: Vec<Ask> = (first..first + count).map(|place| self.ask(random, place % 4, subject)).collect();
        let same = random.chance(50).then(|| asks[0].cost);
        for (place, ask) in asks.iter_mut().enumerate() {
            ask.terms = Some(self.terms[(first + place) % 4]);
            if let Some(cost) = same.filter(|cost| cost.get() <= ask.limit.capacity()) {
                ask.cost = cost;
            }
            if random.chance(20) {
                ask.mode = random.pick(Mode::ALL);
            }
        }
        let window = micros(asks[0].limit.window());
        let ttl = Duration::from_micros(random.spread(1, 3 * window));
        let ttl = if random.chance(95) { ttl.clamp(Duration::from_millis(1), Duration::from_secs(3600)) } else { ttl };
        let reservation = Reservation::new(ttl).with_id(hold_id(random));
        Call { reservation: Some(reservation), ..call(Verb::Reserve, asks) }
    }

    /// Now and then as the last time, and of a hold that has ended.
    fn end_hold(&mut self, random: &mut Random) -> Call {
        let place = at(random, self.holds.len());
        let held = &mut self.holds[place];
        let number = random.spread(1, 2 * held.units + 1) - 1;
        let units = match random.between(0, 5) {
            0 => Units::AsReserved,
            1..=3 => Units::Same(number),
            _ => {
                let named = held.policies.iter().filter(|_| random.chance(70)).cloned().collect::<Vec<_>>();
                Units::Each(named.into_iter().map(|policy| (policy, random.spread(1, number + 1) - 1)).collect())
            }
        };
        let resolve = match random.between(0, 9) {
            0..=3 => Resolve::Settle(units),
            4..=6 => Resolve::SettlePart(units),
            7 => Resolve::Cancel,
            // Now and then once more, or from a token of before.
            8 => {
                let next = Turn::named(&random.between(1, 3).to_string());
                let ttl = Duration::from_micros(random.spread(1, 3_600_000_000));
                let hold = held.hold.clone();
                if random.chance(80) {
                    held.hold = hold.clone().at_turn(next);
                }
                let ending = Ending { hold, resolve: Resolve::Renew { ttl, next }, attempt: held.attempt.max(1) };
                return Call { ending: Some(ending), ..call(Verb::Reserve, Vec::new()) };
            }
            _ => Resolve::Extend(Duration::from_micros(random.spread(1, 3_600_000_000))),
        };
        let attempt = if random.chance(15) { held.attempt.max(1) } else { random.between(1, 1 << 52) };
        held.attempt = attempt;
        let ending = Ending { hold: held.hold.clone(), resolve, attempt };
        Call { ending: Some(ending), ..call(Verb::Reserve, Vec::new()) }
    }

    /// Lets some of the limits pay one cost together: about what they have, less, or all that they could have, or one more.
    fn fund(&self, random: &mut Random, asks: &mut [Ask]) {
        let first = at(random, asks.len());
        let fund = &mut asks[first..];
        let left = |ask: &Ask| self.known(ask).remaining.unwrap_or(ask.limit.capacity());
        let (has, could) =
            fund.iter().map(|ask| (left(ask), ask.limit.capacity())).fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1));
        let cost = match random.between(0, 9) {
            0..=2 => fund[0].cost.get(),
            3..=6 => (has + random.between(0, 2)).saturating_sub(1),
            7..=8 => random.spread(1, could),
            _ => could + random.between(0, 1),
        };
        let cost = Cost::new(cost.clamp(1, Limit::MAX_AMOUNT)).expect("in range");
        let (mode, excess, charged_at) =
            (fund[0].mode, fund[0].excess, self.known(&fund[0]).charged_at(random, self.time.now(), &fund[0].limit));
        for (place, ask) in fund.iter_mut().enumerate() {
            (ask.cost, ask.mode, ask.excess, ask.pays_rest) = (cost, mode, excess, place > 0);
            ask.charged_at = charged_at.filter(|at| *at > 0).map(Timestamp::from_micros);
        }
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

/// A position in a list.
fn at(random: &mut Random, length: usize) -> usize {
    usize::try_from(random.between(0, length as u64 - 1)).expect("a position")
}

fn hold_id(random: &mut Random) -> HoldId {
    let mut id = [0; 16];
    for half in id.as_chunks_mut::<8>().0 {
        *half = random.between(0, u64::MAX - 1).to_le_bytes();
    }
    HoldId::from_bytes(id)
}

fn terms(random: &mut Random) -> HoldTerms {
    HoldTerms::DEFAULT
        .with_on_abandon(random.pick(&[OnAbandon::Charge, OnAbandon::Refund]))
        .with_overrun(random.pick(&[Overrun::Debt, Overrun::Debt, Overrun::Cap, Overrun::Refuse]))
        .with_most_open(random.pick(&[2, 5, 1000]))
        .with_most_held(random.pick(&[30, 100, 100]))
        .with_max_life(Duration::from_secs(random.pick(&[4000, 86_400, 86_400])))
}

fn call(verb: Verb, asks: Vec<Ask>) -> Call {
    Call { verb, asks, up_to: None, reservation: None, id: None, ending: None }
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

/// The same limit, with nothing to have.
pub(crate) fn zero(limit: &Limit) -> Limit {
    let zero = match limit.calendar() {
        Some(calendar) => Limit::in_calendar(0, calendar.clone()),
        None if limit.is_concurrency() => Limit::concurrent(0),
        None => Limit::builder(0, limit.window()).algorithm(limit.algorithm()),
    };
    zero.build().expect("zero works with any window")
}
