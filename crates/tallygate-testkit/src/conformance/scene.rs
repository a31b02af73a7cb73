//! One limit on a few new keys of a rig, and the calls so far, printed when a property fails.

use std::collections::VecDeque;
use std::fmt::Display;
use std::sync::Mutex;
use std::time::Duration;

use tallygate::check::Receipt;
use tallygate::clock::Timestamp;
use tallygate::{Algorithm, Check, CheckError, Cost, Decision, Key, Limit, Status};

use super::Rig;
use crate::random::Random;
use crate::traces::micros;

/// Rounds begin in 2001 or soon after and end before 2112, up to which instants are guaranteed to be exact.
const EARLIEST: u64 = 1_000_000_000_000_000;
const LATEST: u64 = 4_480_000_000_000_000;
const REPORTED: usize = 25;

pub(super) struct Scene<'r, R> {
    pub(super) rig: &'r R,
    pub(super) random: Random,
    pub(super) limit: Limit,
    policy: String,
    tag: String,
    title: String,
    story: Mutex<VecDeque<String>>,
}

/// How a property spends its steps: each round has its own limit, and the algorithms alternate.
pub(super) struct Rounds<'r, R> {
    rig: &'r R,
    property: &'static str,
    random: Random,
    seed: u64,
    round: usize,
    rounds: usize,
}

/// Steps per round.
pub(super) const STEPS: usize = 40;

impl<'r, R: Rig> Rounds<'r, R> {
    pub(super) fn new(rig: &'r R, property: &'static str, seed: u64, steps: usize) -> Self {
        let rounds = steps.div_ceil(STEPS).max(Algorithm::OVER_TIME.len());
        Self { rig, property, random: Random::new(seed), seed, round: 0, rounds }
    }
}

impl<'r, R: Rig> Iterator for Rounds<'r, R> {
    type Item = Scene<'r, R>;

    fn next(&mut self) -> Option<Scene<'r, R>> {
        if self.round == self.rounds {
            return None;
        }
        let algorithm = Algorithm::OVER_TIME[self.round % Algorithm::OVER_TIME.len()];
        let mut random = Random::new(self.random.number());
        let limit = random.limit(algorithm);
        self.rig.clock().set(Timestamp::from_micros(EARLIEST + random.between(0, 200_000_000_000_000)));
        let tag = format!("{:x}-{}", self.seed, self.round);
        let title = format!("{} (seed {}, round {})", self.property, self.seed, self.round);
        self.round += 1;
        let story = Mutex::new(VecDeque::new());
        Some(Scene { rig: self.rig, random, limit, policy: self.property.to_owned(), tag, title, story })
    }
}

impl<R: Rig> Scene<'_, R> {
    pub(super) fn now(&self) -> u64 {
        self.rig.clock().now().as_micros()
    }

    /// Charges `units` if they fit.
    pub(super) async fn check(&self, subject: &str, units: u64) -> Status {
        let decision = self.decide(subject, units, false).await.unwrap_or_else(|error| self.fail(error));
        decision.binding()
    }

    /// Asks whether `units` would fit.
    pub(super) async fn peek(&self, subject: &str, units: u64) -> Status {
        let decision = self.decide(subject, units, true).await.unwrap_or_else(|error| self.fail(error));
        decision.binding()
    }

    pub(super) async fn decide(&self, subject: &str, units: u64, peek: bool) -> Result<Decision, CheckError> {
        let subject = self.subject(subject);
        let check = self.on(&subject, units);
        let limiter = self.rig.limiter();
        let decision = if peek { limiter.peek(check).await } else { limiter.check(check).await };
        let verb = if peek { "peek" } else { "check" };
        match &decision {
            Ok(decision) => self.tell(format_args!("{verb} {subject} {units}: {:?}", decision.binding())),
            Err(error) => self.tell(format_args!("{verb} {subject} {units}: {error}")),
        }
        decision
    }

    pub(super) async fn refund(&self, subject: &str, units: u64, charged_at: Option<u64>) -> u64 {
        let subject = self.subject(subject);
        let charged_at = charged_at.map(Timestamp::from_micros);
        let given = {
            let check = self.on(&subject, units);
            self.rig.limiter().refund(&[Receipt::new(check, check.cost, charged_at)]).await
        };
        self.tell(format_args!("refund {subject} {units} charged at {charged_at:?}: {given:?}"));
        given.unwrap_or_else(|error| self.fail(error))[0]
    }

    pub(super) async fn reset(&self, subject: &str) -> bool {
        let subject = self.subject(subject);
        let found = self.rig.limiter().reset(self.on(&subject, 1)).await;
        self.tell(format_args!("reset {subject}: {found:?}"));
        found.unwrap_or_else(|error| self.fail(error))
    }

    /// A name that no other property, round or seed uses.
    pub(super) fn subject(&self, name: &str) -> String {
        format!("{}-{name}", self.tag)
    }

    fn on<'a>(&'a self, subject: &'a str, units: u64) -> Check<'a> {
        let key = Key::new(&self.policy, subject).expect("short names");
        Check::new(key, &self.limit).cost(Cost::new(units).expect("units are from 1 to 10^9"))
    }

    pub(super) fn advance(&self, micros: u64) {
        self.rig.clock().advance(Duration::from_micros(micros));
    }

    pub(super) fn set(&self, to: u64) {
        self.rig.clock().set(Timestamp::from_micros(to));
    }

    /// Whether instants are still guaranteed to be exact `more` microseconds from now.
    pub(super) fn has_time_for(&self, more: u64) -> bool {
        self.now() + more <= LATEST
    }

    pub(super) fn window(&self) -> u64 {
        micros(self.limit.window())
    }

    pub(super) fn full(&self) -> u64 {
        micros(self.limit.full_after())
    }

    /// Moves the clock, often not at all or to an edge, and makes the same call for each of the subjects. They have the
    /// same history, so their answers must be the same.
    pub(super) async fn stir(&mut self, subjects: &[&str]) -> Status {
        let before = self.peek(subjects[0], 1).await;
        let wait = micros(before.retry_after().unwrap_or_default());
        let next = self.limit.calendar().map(|calendar| calendar.window_at(self.rig.clock().now()).1.as_micros());
        let to_edge = next.map_or(self.window() - self.now() % self.window(), |next| next - self.now());
        let move_by = match self.random.between(0, 9) {
            0..=3 => 0,
            4..=5 => self.random.spread(1, self.window()),
            6 if wait > 0 => wait + self.random.between(0, 2) - 1,
            7 => to_edge + self.random.between(0, 2) - 1,
            8 => self.random.spread(1, 3 * self.window()),
            _ => self.random.between(0, 5),
        };
        if self.has_time_for(move_by) {
            self.advance(move_by);
        }
        let cost = self.random.cost(&self.limit, before.remaining()).get();
        let status = self.check(subjects[0], cost).await;
        for other in &subjects[1..] {
            let same = self.check(other, cost).await;
            self.must(same == status, format_args!("{other} is answered differently from {}", subjects[0]));
        }
        status
    }

    fn tell(&self, what: impl Display) {
        let mut story = self.story.lock().unwrap();
        story.push_back(format!("at {} {what}", self.rig.clock().now()));
        if story.len() > REPORTED {
            story.pop_front();
        }
    }

    #[track_caller]
    pub(super) fn must(&self, holds: bool, otherwise: impl Display) {
        if !holds {
            self.fail(otherwise);
        }
    }

    #[track_caller]
    pub(super) fn fail(&self, why: impl Display) -> ! {
        let story: Vec<String> = self.story.lock().unwrap().iter().cloned().collect();
        let numbers = self.limit.numbers();
        panic!("{}: {why}\n  {} {numbers:?}\n  {}", self.title, self.limit, story.join("\n  "));
    }
}
