//! What is answered when the store cannot: the only code that turns an error into an answer.

use std::time::Duration;

use super::evaluation::Step;
use super::local::Local;
use super::{CallerLimit, Mode, OnError, Ruling, Stores, Verdict};
use crate::call::{Call, Verb};
use crate::check::Check;
use crate::decision::{Source, Status};
use crate::few::Few;
use crate::limit::Limit;
use crate::store::{Store, StoreError};

impl Verdict {
    /// The store cannot answer: applies each policy's `on_error`. If it was this process that had no time to ask, the
    /// store is not at fault, and callers could choose to be allowed by asking often enough: such a call is shed, or
    /// decided locally.
    #[cold]
    pub(super) fn fall_back(&mut self, step: &Step, error: Option<StoreError>, local: &Local) {
        let shed = error.as_ref().is_some_and(StoreError::is_late);
        self.store_error = error.map(Box::new).or(self.store_error.take());
        let mut locals = Vec::new();
        for &member in step.members.iter() {
            let ruling = &mut self.rulings[member];
            let Some(limit) = ruling.limit().cloned() else { continue };
            match ruling.policy.on_error() {
                // A refund that failed gave nothing back.
                _ if !step.verb.decides() => {
                    ruling.answered(Status::untouched(&limit), Source::OnErrorAllow, None);
                }
                OnError::Local => locals.push(member),
                OnError::Allow | OnError::Deny if shed => ruling.answered(Status::never(&limit), Source::Shed, None),
                OnError::Allow => ruling.answered(Status::untouched(&limit), Source::OnErrorAllow, None),
                OnError::Deny => ruling.answered(Status::never(&limit), Source::OnErrorDeny, None),
            }
        }
        if locals.is_empty() {
            return;
        }
        let refused =
            |ruling: &Ruling| ruling.mode() == Mode::Enforce && !ruling.status.allowed() && ruling.limit().is_some();
        let denied = step.denied || step.members.iter().any(|&member| refused(&self.rulings[member]));
        let shares: Vec<Option<Limit>> = locals.iter().map(|&member| local.share_of(&self.rulings[member])).collect();
        let step = Step { verb: step.verb, members: Few::Many(locals), denied };
        let checks = self.checks(&step);
        let shared = checks.iter().zip(&shares);
        let shared = shared.map(|(check, share)| check.under(share.as_ref().unwrap_or(check.limit)).within_capacity());
        let checks: Vec<Check<'_>> = shared.collect();
        let answer = Call::of_distinct(step.verb, &checks).denied(denied).ask_now(&*local.store);
        drop(checks);
        let Some(Ok(decision)) = answer else { return };
        for ((&member, status), share) in step.members.iter().zip(decision.statuses()).zip(shares) {
            let ruling = &mut self.rulings[member];
            // More than the share, but not more than the limit, fits once the store is back.
            let fits = ruling.limit().is_some_and(|limit| ruling.action.cost.get() <= limit.capacity());
            let waits = fits && !status.allowed() && status.retry_after().is_none();
            let status = if waits { status.with_retry_after(Duration::from_secs(1)) } else { *status };
            ruling.answered(status, Source::OnErrorLocal, decision.decided_at());
            if ruling.source == Source::OnErrorLocal {
                ruling.limit = share.map_or(CallerLimit::Unlimited, CallerLimit::Override);
            }
        }
    }

    /// The store could decide only a part, `on_error` denied the rest, and so the part that was charged is given back. The
    /// first poll begins it, and the store finishes what has begun.
    #[cold]
    pub(super) async fn give_back_charged<S: Store>(&mut self, step: &Step, stores: &Stores<S>) {
        let by_store = |member: &usize| {
            let ruling = &self.rulings[*member];
            ruling.source == Source::Store && ruling.charged() > 0
        };
        let places: Vec<usize> = step.members.iter().copied().filter(by_store).collect();
        if places.is_empty() {
            return;
        }
        let receipts = self.receipts(&places);
        let given = Call::of_distinct(Verb::Refund, &receipts).ask(&stores.shared).await;
        drop(receipts);
        for (&at, status) in given.iter().flat_map(|given| places.iter().zip(given.statuses())) {
            stores.local.follow_refund(&self.rulings[at], status.units());
        }
        self.refunded(&places, given);
    }
}
