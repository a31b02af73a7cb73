//! Is each answer what the algorithm says, given that some calls may or may not have been charged?

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::time::Duration;

use tallygate::call::{Call, Verb};
use tallygate::clock::{ManualClock, Timestamp};
use tallygate::{Algorithm, Check, Cost, Key, Limit, MemoryStore, Status};

use crate::history::Seen;

/// An answer of the store for one state.
#[derive(Debug, Clone, Copy)]
pub struct Event {
    /// Which part of the history, between two losses; odd while one happens.
    pub segment: usize,
    /// The instant of the decision.
    pub at: u64,
    /// When it was sent and answered, in microseconds of the round.
    pub sent: u64,
    /// When it was answered.
    pub ended: u64,
    /// The units.
    pub cost: u64,
    /// Whether the whole call was allowed, and so charged.
    pub allowed: bool,
    /// The answer.
    pub seen: Seen,
    /// Whether it only looked.
    pub peek: bool,
}

/// The result for one state.
#[derive(Debug, Default)]
pub struct Replayed {
    /// What cannot have happened.
    pub wrong: Vec<String>,
    /// Answers that were compared completely.
    pub exact: u64,
    /// Answers after a charge whose instant is unknown.
    pub loose: u64,
    /// Answers on a state that is unknown since a loss.
    pub unknown: u64,
    /// Units that unanswered calls have charged.
    pub phantoms: u64,
    /// The last answers, for the report of a wrong one.
    trail: VecDeque<(Event, i128)>,
}

/// How many answers a report shows.
const TRAIL: usize = 4;

/// Puts the same questions to an embedded store. Where fewer units are left than it says, unanswered calls must have
/// taken them: `optional` lists those, with the instants when they were sent. More units left are wrong.
#[must_use]
pub fn replay(limit: &Limit, mut events: Vec<Event>, optional: &[(u64, u64)], step_back: u64) -> Replayed {
    events.sort_by_key(|event| (event.segment, event.at, event.peek, Reverse(event.seen.remaining), !event.allowed));
    let mut pending = VecDeque::from(events);
    let mut result = Replayed::default();
    let mut model = Model::new(limit);
    let mut segment = 0;
    while let Some(first) = pending.front().copied() {
        if first.segment != segment {
            segment = first.segment;
            model.knowledge = Knowledge::None;
        }
        let place = if model.knowledge == Knowledge::None { 0 } else { model.next(&pending, step_back) };
        let event = pending.remove(place).expect("one of the candidates");
        let close = pending.front().is_some_and(|next| next.at.abs_diff(event.at) <= step_back);
        if step_back > 0 && close && (place > 0 || model.missing(&event) > 0) {
            // Another order is possible: what follows within this time is not held against the store.
            model.doubted_until = event.at.max(first.at) + step_back;
        }
        if event.segment % 2 == 1 {
            result.unknown += 1;
            continue;
        }
        let taken = if event.allowed { event.cost } else { 0 };
        let unused = event.seen.remaining.is_some_and(|remaining| remaining + taken == limit.capacity());
        if model.knowledge == Knowledge::Loose && unused && Model::new(limit).is_unused_before(&event) {
            model = Model::new(limit);
        }
        if model.knowledge == Knowledge::None {
            // Known again from an answer that only an unused state gives.
            model = Model::new(limit);
            model.knowledge = if model.is_unused_before(&event) { Knowledge::Exact } else { Knowledge::None };
            if model.knowledge == Knowledge::None {
                result.unknown += 1;
                continue;
            }
            model = Model::new(limit);
        }
        step(&mut model, &event, optional, &mut result);
    }
    result
}

fn step(model: &mut Model<'_>, event: &Event, optional: &[(u64, u64)], result: &mut Replayed) {
    if model.knowledge == Knowledge::Loose && model.is_in_another_window(event) {
        model.knowledge = Knowledge::None;
        result.unknown += 1;
        return;
    }
    let missing = model.missing(event);
    let possible: u64 = optional.iter().take_while(|(sent, _)| *sent <= event.ended).map(|(_, units)| units).sum();
    result.trail.push_front((*event, missing));
    result.trail.truncate(TRAIL);
    if missing < 0 {
        if model.knowledge == Knowledge::Exact && event.at > model.doubted_until {
            result.wrong.push(format!("{} units too many are left; the last answers: {:?}", -missing, result.trail));
        }
        model.knowledge = Knowledge::None;
        result.unknown += 1;
        return;
    }
    if missing > 0 {
        let units = u64::try_from(missing).expect("positive");
        result.phantoms += units;
        if result.phantoms > possible {
            let charged = std::mem::replace(&mut result.phantoms, possible);
            result.wrong.push(format!(
                "unanswered calls have charged {charged} units, but only {possible} were asked for; the last answers and the units missing: {:?}",
                result.trail
            ));
            model.knowledge = Knowledge::None;
            return;
        }
        model.charge(event.at, units);
        model.loosen();
    }
    let status = model.ask(event);
    let exact = model.knowledge == Knowledge::Exact;
    if exact {
        result.exact += 1;
    } else {
        result.loose += 1;
    }
    if let Some(what) = status.and_then(|status| differs(event, &status, exact)) {
        // In the estimate a unit of the previous window weighs less than one, so a charge may show in the waits only.
        let hidden = model.limit.algorithm() == Algorithm::SlidingCounter && possible > result.phantoms;
        if event.at > model.doubted_until && !hidden {
            result.wrong.push(format!("{what}, answered {event:?}"));
        }
        model.knowledge = Knowledge::None;
    }
}

fn differs(event: &Event, status: &Status, exact: bool) -> Option<String> {
    let micros = |wait: std::time::Duration| u64::try_from(wait.as_micros()).unwrap_or(u64::MAX);
    let seen = &event.seen;
    let retry_after = status.retry_after().map(micros);
    let reset_after = micros(status.reset_after());
    if !event.peek && seen.fits != status.allowed() {
        return Some(format!("expected fits: {}", status.allowed()));
    }
    if seen.remaining.is_some_and(|seen| seen != status.remaining()) {
        return Some(format!("expected {} remaining", status.remaining()));
    }
    if exact && !event.peek && seen.retry_after.is_some_and(|seen| seen != retry_after) {
        return Some(format!("expected retry_after {retry_after:?}"));
    }
    if exact && seen.reset_after.is_some_and(|seen| seen != reset_after) {
        return Some(format!("expected reset_after {reset_after}"));
    }
    None
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Knowledge {
    Exact,
    /// Something was charged at an unknown instant.
    Loose,
    None,
}

struct Model<'l> {
    limit: &'l Limit,
    clock: ManualClock,
    store: MemoryStore,
    knowledge: Knowledge,
    /// Until this instant the order of events is uncertain, because the server's clock steps back a little.
    doubted_until: u64,
}

impl<'l> Model<'l> {
    fn new(limit: &'l Limit) -> Self {
        let clock = ManualClock::new(Timestamp::from_micros(0));
        let store = MemoryStore::builder().capacity(1).clock(clock.clone()).build();
        Self { limit, clock, store, knowledge: Knowledge::Exact, doubted_until: 0 }
    }

    fn call(&self, verb: Verb, at: u64, cost: u64) -> Option<Status> {
        self.clock.set(Timestamp::from_micros(at));
        let key = Key::new("replay", "key").expect("short");
        let checks = [Check::new(key, self.limit).cost(Cost::new(cost.max(1)).ok()?)];
        let decision = Call::new(verb, &checks).ok()?.ask_now(&self.store)?.ok()?;
        Some(decision.binding())
    }

    /// How many units fewer are left than expected.
    fn missing(&self, event: &Event) -> i128 {
        let Some(remaining) = event.seen.remaining else { return 0 };
        let before = self.call(Verb::Peek, event.at, 1).map_or(0, |status| status.remaining());
        let taken = if event.allowed { event.cost } else { 0 };
        i128::from(before) - i128::from(taken) - i128::from(remaining)
    }

    /// The first event within `step_back` of the first that fits as it is; else the first.
    fn next(&self, pending: &VecDeque<Event>, step_back: u64) -> usize {
        let first = pending[0];
        let near = pending.iter().take_while(|event| {
            event.segment == first.segment && event.at <= first.at + step_back && event.peek == first.peek
        });
        near.enumerate().find(|(_, event)| self.missing(event) == 0).map_or(0, |(place, _)| place)
    }

    fn is_unused_before(&self, event: &Event) -> bool {
        let Some(status) = self.ask(event) else { return false };
        // Without waits to the microsecond, the fraction of a unit that a bucket or an estimate has is unknown.
        let fractions = matches!(self.limit.algorithm(), Algorithm::TokenBucket | Algorithm::SlidingCounter);
        differs(event, &status, true).is_none() && (event.seen.reset_after.is_some() || !fractions)
    }

    /// A window that begins with its first call may have begun with one that nobody knows of. It then ends earlier than expected, and
    /// the next may begin with another, so that the units of both look like those of one.
    fn is_in_another_window(&self, event: &Event) -> bool {
        let Some(seen) = event.seen.reset_after else { return false };
        let left = self.call(Verb::Peek, event.at, 1).map_or(Duration::ZERO, |status| status.reset_after());
        let expected = if left.is_zero() && event.allowed { self.limit.window() } else { left };
        self.limit.algorithm() == Algorithm::FixedWindowFromFirstCall && expected != Duration::from_micros(seen)
    }

    fn ask(&self, event: &Event) -> Option<Status> {
        let verb = if event.allowed && !event.peek { Verb::Check } else { Verb::Peek };
        self.call(verb, event.at, event.cost)
    }

    fn charge(&self, at: u64, units: u64) {
        let _ = self.call(Verb::Check, at, units);
    }

    /// In a fixed window the instant of a charge plays no part.
    fn loosen(&mut self) {
        if self.limit.algorithm() != Algorithm::FixedWindow {
            self.knowledge = Knowledge::Loose;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seed 9020 of Sentinels: three calls without an answer began a window, and made up for the units of the last one.
    #[test]
    fn windows_that_begin_with_unanswered_calls_are_not_held_against_the_store() {
        let limit: Limit = "26/504ms fixed_window_from_first_call".parse().unwrap();
        let event = |at, remaining, reset_after| Event {
            segment: 0,
            at,
            sent: at,
            ended: at,
            cost: 1,
            allowed: true,
            seen: Seen { fits: true, remaining: Some(remaining), retry_after: None, reset_after: Some(reset_after) },
            peek: false,
        };
        let base = 1_700_000_000_000_000;
        let replayed = |answers: &[(u64, u64, u64)]| {
            let events = answers.iter().map(|&(at, remaining, reset_after)| event(base + at, remaining, reset_after));
            replay(&limit, events.collect(), &[(base, 1), (base + 520_000, 3)], 0)
        };
        // The windows of the store begin at 0 and at 520 ms.
        let honest = [(150_000, 24, 354_000), (200_000, 23, 304_000), (560_000, 22, 464_000), (700_000, 21, 324_000)];
        let Replayed { wrong, exact, .. } = replayed(&honest);
        assert_eq!((wrong, exact), (Vec::new(), 0));
        // Two units where only one was asked for.
        assert_eq!(replayed(&[(150_000, 23, 354_000)]).wrong.len(), 1);
    }
}
