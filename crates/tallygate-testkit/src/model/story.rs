//! Random questions about one key, put to the model and to a subject.

use std::collections::VecDeque;
use std::fmt;
use std::ops::AddAssign;

use tallygate::call::{Call, Verb};
use tallygate::clock::{ManualClock, Timestamp};
use tallygate::policy::Excess;
use tallygate::{Algorithm, Check, Cost, Key, Limit, MemoryStore};

use super::{Answer, Model, Question, Subject};
use crate::random::Random;
use crate::traces::{Known, Time, micros, zero};

/// The questions of one seed. Everything about a story follows from its algorithm and its seed.
#[derive(Debug, Clone, Copy)]
pub struct Story {
    algorithm: Algorithm,
    seed: u64,
}

/// What was asked in stories.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// Checks and peeks.
    pub decisions: u64,
    /// Those that were denied.
    pub denied: u64,
    /// Refunds that gave something back.
    pub refunded: u64,
    /// Questions under other numbers than the one before.
    pub changed: u64,
    /// Questions at an earlier instant than the one before.
    pub back: u64,
}

/// The first answer of a story that is not the model's.
#[derive(Debug)]
pub struct Difference {
    /// The algorithm of the story.
    pub algorithm: Algorithm,
    /// The seed of the story, which replays it.
    pub seed: u64,
    /// The number of the question, from 0.
    pub step: u64,
    /// The last questions and the answers of the model.
    told: VecDeque<String>,
    question: String,
    expected: Answer,
    answered: Answer,
    /// The state of the model after it.
    model: String,
}

/// The number of questions before a difference that are reported.
const REPORTED: usize = 10;

impl Story {
    /// The story of a seed.
    pub fn new(algorithm: Algorithm, seed: u64) -> Self {
        Self { algorithm, seed }
    }

    /// Puts every question to a fresh model and to the subject, which must not know the key.
    pub fn compare(&self, subject: &mut impl Subject) -> Result<Seen, Box<Difference>> {
        let mut teller = Teller::new(*self);
        let (mut model, mut seen) = (Model::default(), Seen::default());
        let mut told: VecDeque<(u64, Question, Answer)> = VecDeque::with_capacity(REPORTED + 1);
        for step in 0..teller.steps {
            let Some(question) = teller.next() else { break };
            let now = teller.time.now();
            let expected = model.ask(now, &question);
            let answered = subject.ask(now, &question);
            if answered != expected {
                let line = |now: u64, question: &Question| format!("at {now} {question}");
                return Err(Box::new(Difference {
                    algorithm: self.algorithm,
                    seed: self.seed,
                    step,
                    told: told.iter().map(|(at, asked, answer)| format!("{} -> {answer}", line(*at, asked))).collect(),
                    question: line(now, &question),
                    expected,
                    answered,
                    model: format!("{model:?}"),
                }));
            }
            seen.count(now, &question, &expected, told.back());
            teller.learn(&question, &expected);
            told.push_back((now, question, expected));
            if told.len() > REPORTED {
                told.pop_front();
            }
        }
        Ok(seen)
    }

    /// Compares the pure algorithms, as the embedded store runs them, with the model.
    pub fn compare_product(&self) -> Result<Seen, Box<Difference>> {
        self.compare(&mut Product::default())
    }
}

/// Chooses the questions.
struct Teller {
    random: Random,
    time: Time,
    limit: Limit,
    known: Known,
    /// What was denied last: it is asked for again when its wait is over.
    denied: u64,
    steps: u64,
    /// Many small calls and hardly any time, so that lists grow long.
    crowded: bool,
}

impl Teller {
    fn new(story: Story) -> Self {
        let mut random = Random::new(story.seed);
        let crowded = random.chance(1);
        let limit = random.limit(story.algorithm);
        let time = Time::new(&mut random, !story.seed.is_multiple_of(2));
        let steps = if crowded { 4000 } else { random.between(20, 400) };
        Self { random, time, limit, known: Known::default(), denied: 1, steps, crowded }
    }

    fn next(&mut self) -> Option<Question> {
        let random = &mut self.random;
        if random.chance(if self.crowded { 0 } else { 3 }) {
            self.limit = random.other_numbers(&self.limit);
        }
        if !self.crowded || random.chance(1) {
            self.time.step(random, &self.limit, self.known);
        }
        if self.time.is_over() {
            return None;
        }
        let limit = self.limit.clone();
        let (verb, drains) = match random.between(0, 99) {
            0..=64 => (Verb::Check, false),
            65..=69 => (Verb::Check, true),
            70..=79 => (Verb::Peek, false),
            80..=97 if !self.crowded || random.chance(3) => (Verb::Refund, false),
            98 if !self.crowded => (Verb::Reset, false),
            99 => {
                let limit = zero(&limit);
                return Some(Question { verb: Verb::Check, limit, units: 1, drains: false, charged_at: None });
            }
            _ => (Verb::Check, false),
        };
        let remaining = self.known.remaining.unwrap_or(limit.capacity());
        let units = match random.cost(&limit, remaining).get() {
            _ if verb == Verb::Refund && random.chance(50) => {
                random.spread(1, (2 * limit.capacity()).min(Limit::MAX_AMOUNT))
            }
            _ if self.crowded && verb == Verb::Check => random.between(1, 3).min(limit.capacity()),
            _ if self.time.now() == self.known.retry_at && random.chance(50) => self.denied.min(limit.capacity()),
            units => units,
        };
        let charged_at = match verb {
            Verb::Refund => self.known.charged_at(random, self.time.now(), &limit),
            _ => None,
        };
        Some(Question { verb, limit, units, drains, charged_at })
    }

    /// Aims the next questions at what the last answer promised.
    fn learn(&mut self, question: &Question, answer: &Answer) {
        let (Some(retry_after), Verb::Check | Verb::Peek) = (answer.retry_after, question.verb) else { return };
        self.known.learn(self.time.now(), answer.remaining, retry_after, answer.reset_after, answer.units > 0);
        if !answer.allowed {
            self.denied = question.units;
        }
    }
}

/// The product: its embedded store, with one key, on a clock that is set.
#[derive(Debug)]
pub struct Product {
    store: MemoryStore,
    clock: ManualClock,
}

impl Default for Product {
    /// Nothing is swept: a state that was dropped would be missed when time returns to before its end.
    fn default() -> Self {
        let clock = ManualClock::new(Timestamp::from_micros(0));
        Self { store: MemoryStore::builder().capacity(1).clock(clock.clone()).without_sweep().build(), clock }
    }
}

impl Subject for Product {
    fn ask(&mut self, now: u64, question: &Question) -> Answer {
        self.clock.set(Timestamp::from_micros(now));
        let excess = if question.drains { Excess::Drain } else { Excess::Refuse };
        let check = Check::new(Key::new("model", "key").expect("short"), &question.limit)
            .cost(Cost::new(question.units).expect("in range"))
            .with_excess(excess)
            .with_charged_at(question.charged_at.map(Timestamp::from_micros));
        let checks = [check];
        let call = Call::new(question.verb, &checks).expect("a valid question");
        let decision = call.ask_now(&self.store).expect("it never waits").expect("it always answers");
        assert_eq!(decision.decided_at().map_or(now, |at| at.as_micros()), now, "decided as of another instant");
        let status = decision.binding();
        Answer {
            allowed: status.allowed(),
            remaining: status.remaining(),
            retry_after: status.retry_after().map(micros),
            reset_after: micros(status.reset_after()),
            units: if question.verb == Verb::Reset { 0 } else { status.units() },
        }
    }
}

impl Seen {
    fn count(&mut self, now: u64, question: &Question, answer: &Answer, before: Option<&(u64, Question, Answer)>) {
        let decides = matches!(question.verb, Verb::Check | Verb::Peek);
        self.decisions += u64::from(decides);
        self.denied += u64::from(decides && !answer.allowed);
        self.refunded += u64::from(question.verb == Verb::Refund && answer.units > 0);
        self.changed += u64::from(before.is_some_and(|(_, before, _)| before.limit != question.limit));
        self.back += u64::from(before.is_some_and(|(then, ..)| *then > now));
    }
}

impl AddAssign for Seen {
    fn add_assign(&mut self, other: Self) {
        let Self { decisions, denied, refunded, changed, back } = other;
        self.decisions += decisions;
        self.denied += denied;
        self.refunded += refunded;
        self.changed += changed;
        self.back += back;
    }
}

impl fmt::Display for Question {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} of {}", self.verb.name(), self.units, self.limit)?;
        if self.drains {
            write!(f, ", draining")?;
        }
        self.charged_at.map_or(Ok(()), |at| write!(f, ", charged at {at}"))
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { allowed, remaining, retry_after, reset_after, units } = self;
        let word = if *allowed { "allowed" } else { "denied" };
        write!(f, "{word}, remaining {remaining}, retry {retry_after:?}, reset {reset_after}, units {units}")
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} seed {} differs at question {}", self.algorithm, self.seed, self.step)?;
        for line in &self.told {
            writeln!(f, "  {line}")?;
        }
        writeln!(f, "  {}", self.question)?;
        writeln!(f, "    model:   {}\n    product: {}", self.expected, self.answered)?;
        write!(f, "    the model's state is now {}", self.model)
    }
}
