//! Where the clock of a trace goes: to instants at which answers change.

use std::time::Duration;

use tallygate::clock::Timestamp;
use tallygate::{Algorithm, Limit};

use crate::random::Random;

/// Clocks start from 2001 on; none goes beyond 2112, up to which instants are guaranteed to be exact.
const EARLIEST: u64 = 1_000_000_000_000_000;
const LATEST: u64 = 4_480_000_000_000_000;

pub(crate) struct Time {
    now: u64,
    over: bool,
    backward: bool,
    /// Where a flapping clock will jump back to.
    flaps_to: Option<u64>,
}

/// What is known of a key from its last answers.
#[derive(Default, Clone, Copy)]
pub(crate) struct Known {
    pub(crate) remaining: Option<u64>,
    pub(crate) retry_at: u64,
    pub(crate) reset_at: u64,
    pub(crate) charged_at: u64,
}

impl Known {
    /// Waits are in microseconds.
    pub(crate) fn learn(&mut self, now: u64, remaining: u64, retry_after: u64, reset_after: u64, charged: bool) {
        self.remaining = Some(remaining);
        (self.retry_at, self.reset_at) = (now + retry_after, now + reset_after);
        if charged {
            self.charged_at = now;
        }
    }

    /// When the units of a refund were charged, as its caller says.
    pub(crate) fn charged_at(&self, random: &mut Random, now: u64, limit: &Limit) -> Option<u64> {
        match random.between(0, 3) {
            0 => None,
            1 => Some(now - random.spread(1, 3 * micros(limit.window())).min(now)),
            _ => Some(self.charged_at),
        }
    }
}

impl Time {
    /// With room to step back, and beyond the longest refill.
    pub(crate) fn new(random: &mut Random, backward: bool) -> Self {
        let now = EARLIEST + random.between(0, 800_000_000_000_000);
        Self { now, over: false, backward, flaps_to: None }
    }

    pub(crate) fn now(&self) -> u64 {
        self.now
    }

    /// Whether the clock has run out of time.
    pub(crate) fn is_over(&self) -> bool {
        self.over
    }

    pub(crate) fn step(&mut self, random: &mut Random, limit: &Limit, known: Known) {
        if let Some(back_to) = self.flaps_to.take() {
            self.now = back_to;
            return;
        }
        let window = micros(limit.window());
        // One microsecond before, at, or after an interesting instant.
        let edge = |random: &mut Random, at: u64| at + random.between(0, 2) - 1;
        let next = |span: u64| self.now - self.now % span + span;
        let to = match random.between(0, 99) {
            0..=24 => self.now,
            25..=49 => self.now + random.spread(1, 3 * window),
            50..=69 if known.retry_at > self.now => edge(random, known.retry_at),
            70..=77 if known.reset_at > self.now => edge(random, known.reset_at),
            78..=81 if limit.algorithm() == Algorithm::SlidingWindow => edge(random, next(limit.numbers().slot())),
            78..=85 => {
                let calendar = limit.calendar().map(|calendar| calendar.window_at(Timestamp::from_micros(self.now)).1);
                edge(random, calendar.map_or(next(window), Timestamp::as_micros))
            }
            86..=89 => edge(random, next(micros(limit.tick()))),
            90..=95 if self.backward => self.step_back(random, limit),
            _ => self.now + random.between(0, 10),
        };
        let to = if self.backward { to } else { to.max(self.now) };
        self.over = to > LATEST;
        self.now = to.min(LATEST);
    }

    /// To this instant, or one microsecond before or after it.
    pub(crate) fn go_to(&mut self, random: &mut Random, at: u64) {
        self.now = (at + random.between(0, 2) - 1).clamp(self.now, LATEST);
    }

    /// Back by up to three full refills; often to return at once.
    fn step_back(&mut self, random: &mut Random, limit: &Limit) -> u64 {
        let full = micros(limit.full_after());
        let by = match random.between(0, 3) {
            0 => full + random.between(0, 2) - 1,
            _ => random.spread(1, 3 * full),
        };
        let to = self.now.saturating_sub(by).max(EARLIEST / 2);
        self.flaps_to = random.chance(50).then_some(self.now);
        to
    }
}

pub(crate) fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).expect("a century at most")
}
