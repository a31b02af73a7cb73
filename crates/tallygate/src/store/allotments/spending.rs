//! The units that one call has taken out of pools, until it is known whether it is allowed.

use std::borrow::Cow;

use super::{Allotments, Spent};
use crate::call::{Call, Verb};
use crate::check::Check;
use crate::decision::{Decision, Source};
use crate::policy::Mode;
use crate::store::StoreError;
use crate::store::memory::print::Print;

/// What was taken is put back when this is dropped, unless the call was allowed.
pub(super) struct Spending<'a, S> {
    from: &'a Allotments<S>,
    /// By the place of the check in the call.
    taken: Vec<(usize, Print, Spent)>,
}

impl<S> Drop for Spending<'_, S> {
    fn drop(&mut self) {
        for (_, print, spent) in &self.taken {
            self.from.put_back(*print, spent);
        }
    }
}

impl<'a, S> Spending<'a, S> {
    pub(super) fn new(from: &'a Allotments<S>) -> Self {
        Self { from, taken: Vec::new() }
    }

    pub(super) fn add(&mut self, place: usize, print: Print, spent: Spent) {
        self.taken.push((place, print, spent));
    }

    fn at(&self, place: usize) -> Option<&Spent> {
        self.taken.iter().find(|(at, ..)| *at == place).map(|(.., spent)| spent)
    }

    /// The checks that the store has to decide.
    pub(super) fn rest<'r, 'c>(&self, call: &'r Call<'c>) -> Cow<'r, [Check<'c>]> {
        if self.taken.is_empty() {
            return Cow::Borrowed(call.checks());
        }
        let checks = call.checks().iter().enumerate();
        checks.filter(|(place, _)| self.at(*place).is_none()).map(|(_, check)| *check).collect()
    }

    /// The decision of a call whose units were all taken here.
    pub(super) fn decision(mut self) -> Decision {
        let taken = std::mem::take(&mut self.taken);
        let charged_at = taken.iter().map(|(.., spent)| spent.allotment.charged_at).min();
        let charged_at = charged_at.expect("a call has checks");
        match &taken[..] {
            [(.., spent)] => spent.decision(),
            taken => {
                let statuses = taken.iter().map(|(.., spent)| spent.status).collect();
                Decision::new(true, statuses, Source::Allotment, charged_at)
            }
        }
    }

    /// The decision of the whole call, given that of the store about the `rest`, which was asked at `asked_at`.
    pub(super) fn settle(mut self, call: &Call<'_>, rest: &[Check<'_>], answer: Decision, asked_at: u64) -> Decision {
        self.from.learn(rest.iter(), &answer, asked_at);
        let answer = self.from.with_held(&call.about(rest), answer);
        if self.taken.is_empty() {
            return answer;
        }
        // A shadow that is asked about alone decides its own call.
        let allowed = answer.allowed() || rest.iter().all(|check| check.mode() == Mode::Shadow);
        let (mut statuses, mut failures, mut asked) = (Vec::new(), Vec::<(usize, StoreError)>::new(), 0..);
        for (place, check) in call.checks().iter().enumerate() {
            statuses.push(match (self.at(place), allowed) {
                (Some(spent), true) => spent.status,
                (Some(spent), false) => spent.status.with_refund(check.cost.get()),
                (None, _) => {
                    let at = asked.next().expect("it does not end");
                    failures.extend(answer.failure(at).map(|error| (place, error.clone())));
                    answer.statuses()[at]
                }
            });
        }
        // A refund of what was charged in a window that may have ended by now must not count in the next.
        let now = self.from.now();
        let charged_before = self.taken.iter().filter(|(.., spent)| now >= spent.allotment.until);
        let charged_before = charged_before.map(|(.., spent)| spent.allotment.charged_at);
        let decided_at = charged_before.chain(answer.decided_at()).min().expect("the store was asked");
        if allowed {
            self.taken.clear();
        }
        let decision = Decision::new(allowed, statuses, answer.source(), decided_at).with_failures(failures);
        if answer.split() { decision.into_split() } else { decision }
    }
}

/// The answer of the store to a call about checks of which this process holds units: these are left, too.
pub(super) fn with_held(call: &Call<'_>, answer: Decision, held: &[u64]) -> Decision {
    let statuses = call.checks().iter().zip(answer.statuses()).zip(held).map(|((check, status), &held)| {
        let fits = call.verb() == Verb::Peek && check.cost.get() <= status.remaining() + held;
        if held > 0 { status.with_more_left(held, fits) } else { *status }
    });
    let statuses = statuses.collect();
    answer.with_statuses(call, statuses)
}
