//! What is answered when the store cannot: the only code that turns an error into an answer.

use std::time::Instant;

use super::evaluation::Step;
use super::local::Local;
use super::verdict::Charged;
use super::{CallerLimit, OnError, Stores, Verdict};
use crate::call::{Call, Verb, fund};
use crate::check::Check;
use crate::decision::{Source, Status};
use crate::few::Few;
use crate::limit::Limit;
use crate::request::Request;
use crate::store::{Store, StoreError};

impl Verdict {
    /// The store cannot answer: applies the `on_error` of each policy, given the error of each member. If it was this
    /// process that had no time to ask, the store is not at fault, and callers could choose to be allowed by asking often
    /// enough: such a call is shed, or decided locally.
    #[cold]
    pub(super) fn fall_back(&mut self, step: &Step, errors: &[&StoreError], local: &Local) {
        self.store_error = errors.first().map(|&error| Box::new(error.clone())).or(self.store_error.take());
        let mut locals = Vec::new();
        for (&member, error) in step.members.iter().zip(errors) {
            let cost = self.cost(step.verb, member);
            let ruling = &mut self.rulings[member];
            let Some(limit) = ruling.limit().cloned() else { continue };
            let (status, source) = match ruling.policy.on_error() {
                // A refund that failed gave nothing back.
                _ if !step.verb.decides() => (Status::untouched(&limit), Source::OnErrorAllow),
                // Nobody would give back what a share has lent.
                OnError::Local if limit.is_concurrency() && !error.is_late() => {
                    (Status::untouched(&limit), Source::OnErrorAllow)
                }
                OnError::Local if limit.is_concurrency() => (Status::never(&limit), Source::Shed),
                OnError::Local => {
                    locals.push(member);
                    continue;
                }
                OnError::Allow | OnError::Deny if error.is_late() => (Status::never(&limit), Source::Shed),
                OnError::Allow => (Status::untouched(&limit), Source::OnErrorAllow),
                OnError::Deny => (Status::never(&limit), Source::OnErrorDeny),
            };
            ruling.answered(status, source, None, cost);
        }
        if locals.is_empty() {
            return;
        }
        // What is denied already, whether by a limit or by all quotas, takes nothing from a share.
        self.spread(step);
        let denied = self.denied();
        let shares_of = |&member: &usize| {
            let ruling = &self.rulings[member];
            ruling.checks_now().map(|check| local.share_of(&ruling.policy, check.limit)).collect::<Vec<_>>()
        };
        let shares: Vec<Limit> = locals.iter().flat_map(shares_of).collect();
        let step = Step { verb: step.verb, members: Few::Many(locals), denied };
        let checks = self.checks(&step);
        let mut checks: Vec<Check<'_>> = checks.iter().zip(&shares).map(|(check, share)| check.under(share)).collect();
        for range in fund::each(&checks.clone(), Check::pays_rest) {
            let capacity = fund::capacity(&checks[range.clone()]);
            checks[range].iter_mut().for_each(|check| *check = check.within(capacity));
        }
        let at_most = self.at_most.filter(|_| step.verb == Verb::Check);
        // A share is charged at once: nothing of it is held.
        let verb = if step.verb == Verb::Reserve { Verb::Check } else { step.verb };
        let answer = Call::of_distinct(verb, &checks).denied(denied).at_most(at_most).ask_now(&*local.store);
        let Some(Ok(decision)) = answer else { return };
        self.grant(&decision);
        let (mut statuses, mut shares) = (decision.statuses(), shares.into_iter());
        for &member in step.members.iter() {
            let cost = self.cost(step.verb, member);
            let ruling = &mut self.rulings[member];
            let (own, rest) = statuses.split_at(ruling.width());
            statuses = rest;
            let limits: Vec<Limit> = shares.by_ref().take(own.len()).collect();
            // More than the share, but not more than the limit, fits once the store is back.
            let fits = ruling.capacity().is_some_and(|capacity| cost.get() <= capacity);
            let waits = |status: &Status| match fits && status.retry_after().is_none() {
                true => status.with_retry_after(1_000_000),
                false => *status,
            };
            let own: Vec<Status> = own.iter().map(waits).collect();
            ruling.answered(Status::of_payers(&own), Source::OnErrorLocal, decision.decided_at(), cost);
            if ruling.source == Source::OnErrorLocal {
                ruling.paid_by(&own, &limits);
                ruling.limit = limits.into_iter().next().map_or(CallerLimit::Unlimited, CallerLimit::Override);
            }
        }
    }

    /// The store could decide only a part. If `on_error` denied the rest, or granted less than the store, what was charged too much is
    /// given back. The first poll begins it, and the store finishes what has begun: nobody waits for it beyond the deadline.
    #[cold]
    pub(super) async fn give_back_excess<S: Store>(
        &mut self,
        step: &Step,
        stores: &Stores<S>,
        deadline: Option<Instant>,
        request: Option<Box<Request>>,
    ) {
        let kept = match self.denied() {
            true => 0,
            false => self.granted().unwrap_or(u64::MAX),
        };
        let members = step.members.iter().filter(|&&member| self.rulings[member].source == Source::Store);
        let excess = |&member: &usize| self.charged_of(member, self.rulings[member].charged().saturating_sub(kept));
        let excess: Vec<Charged> = members.flat_map(excess).collect();
        if excess.is_empty() {
            return;
        }
        let receipts = self.receipts(&excess);
        let given =
            Call::of_distinct(Verb::Refund, &receipts).by(deadline).forgetting(request).ask(&stores.shared).await;
        self.refunded(&excess, given, Some(&stores.local));
    }
}
