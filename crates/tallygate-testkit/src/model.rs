//! A second, independent description of every algorithm, to compare the product with.
//!
//! It is written from `docs/algorithms.md` and `docs/guarantees.md`, in exact fractions, and calls none of the product's
//! arithmetic. A state says only how much can be had at an instant (`State::level`). Waits are not computed by a
//! formula: they are searched for, as the first instant at which what was asked for can be had. What the product rounds,
//! the documents say, and the model states once: the tick of a large limit, and what a token bucket keeps when its rate
//! changes.

mod calendar;
mod fraction;
mod limit;
mod run;
mod state;
mod story;

use tallygate::Limit;
use tallygate::call::Verb;

use fraction::Fraction;
use limit::Rule;
use state::State;

pub use run::{Report, Run};
pub use story::{Difference, Product, Seen, Story};

/// What is asked about the one key of a story.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    /// What to do.
    pub verb: Verb,
    /// The limit, which may change from one question to the next.
    pub limit: Limit,
    /// The units asked for, or refunded.
    pub units: u64,
    /// Whether a check that does not fit takes what is left.
    pub drains: bool,
    /// When the units to refund were charged; `None` means now.
    pub charged_at: Option<u64>,
}

/// What is compared. Times are in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    /// Whether it was allowed.
    pub allowed: bool,
    /// Units left.
    pub remaining: u64,
    /// The wait for the units asked for; `None` if no wait helps.
    pub retry_after: Option<u64>,
    /// The time until nothing counts any more.
    pub reset_after: u64,
    /// Units charged or refunded. Zero for a reset: whether a state that means nothing still exists is up to the store.
    pub units: u64,
}

/// Whatever answers questions about one key, unused at first.
pub trait Subject {
    /// Answers as of `now`, in microseconds since 1970.
    fn ask(&mut self, now: u64, question: &Question) -> Answer;
}

/// The state of one key, as the documents describe it.
#[derive(Debug, Default)]
pub struct Model {
    /// The state, and the numbers under which it was written.
    kept: Option<(Rule, State)>,
    rounds_up: bool,
}

impl Model {
    /// A model with a mistake, to test the comparison with: part of a unit counts as a whole one.
    pub fn that_rounds_up() -> Self {
        Self { kept: None, rounds_up: true }
    }

    /// Whole units that can be had.
    fn free(&self, state: Option<&State>, rule: &Rule, now: u64) -> u64 {
        let whole = if self.rounds_up { Fraction::whole_up } else { Fraction::whole };
        state.map_or(rule.capacity, |state| whole(state.level(rule, now)))
    }

    fn checked(&self, state: &mut Option<State>, rule: &Rule, now: u64, question: &Question) -> Answer {
        let free = self.free(state.as_ref(), rule, now);
        let allowed = free >= question.units;
        let units = match question.verb {
            Verb::Peek => 0,
            _ if allowed => question.units,
            _ if question.drains => free,
            _ => 0,
        };
        if units > 0 {
            state.get_or_insert_with(|| State::fresh(rule, now)).charge(rule, now, units);
        }
        let retry_after = if allowed { 0 } else { wait(state.as_ref(), rule, now, question.units) };
        Answer {
            allowed,
            remaining: free - units,
            retry_after: Some(retry_after),
            reset_after: wait(state.as_ref(), rule, now, rule.capacity),
            units,
        }
    }

    fn refunded(&self, state: &mut Option<State>, rule: &Rule, now: u64, question: &Question) -> Answer {
        let charged_at = question.charged_at.unwrap_or(now);
        let units = state.as_mut().map_or(0, |state| state.refund(rule, now, charged_at, question.units));
        Answer {
            allowed: true,
            remaining: self.free(state.as_ref(), rule, now),
            retry_after: Some(0),
            reset_after: wait(state.as_ref(), rule, now, rule.capacity),
            units,
        }
    }
}

impl Subject for Model {
    fn ask(&mut self, now: u64, question: &Question) -> Answer {
        let Some(rule) = Rule::of(&question.limit) else {
            // A limit of zero denies, and never reaches a state.
            return Answer { allowed: false, remaining: 0, retry_after: None, reset_after: 0, units: 0 };
        };
        if question.verb == Verb::Reset {
            self.kept = None;
            return Answer { allowed: true, remaining: rule.capacity, retry_after: Some(0), reset_after: 0, units: 0 };
        }
        let fits = self.kept.as_ref().is_none_or(|(old, state)| state.fits(old, &rule, now));
        let current = self.kept.take_if(|_| question.verb != Verb::Peek).or_else(|| self.kept.clone());
        let mut state = match current {
            Some((_, state)) if fits => Some(state),
            Some((old, state)) => state.adopted(&old, &rule, now),
            None => None,
        };
        let answer = match question.verb {
            Verb::Refund => self.refunded(&mut state, &rule, now, question),
            _ => self.checked(&mut state, &rule, now, question),
        };
        if question.verb != Verb::Peek {
            self.kept = state.map(|state| (rule, state));
        }
        answer
    }
}

/// The time until `units` can be had if nobody takes any: by definition, the first instant at which they can. If they
/// are the whole capacity, nothing counts any more.
fn wait(state: Option<&State>, rule: &Rule, now: u64, units: u64) -> u64 {
    let Some(state) = state else { return 0 };
    let enough = |after: u64| state.level(rule, now + after).is_at_least(units);
    if enough(0) {
        return 0;
    }
    // What is had only grows with time, so the first instant can be searched for by halves.
    let (mut short, mut long) = (0, state.own_instant(rule).saturating_sub(now) + 2 * rule.full());
    assert!(enough(long), "{units} of {rule:?} can never be had: {state:?} at {now}");
    while long - short > 1 {
        let middle = short + (long - short) / 2;
        if enough(middle) { long = middle } else { short = middle }
    }
    long
}
