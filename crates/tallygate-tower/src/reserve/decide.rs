//! From a request to what is reserved for it.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use tallygate::Cost;
use tallygate::hold::{Hold, HoldTerms, Holds, Reservation};
use tallygate::policy::{Evaluation, Mode, Outcome, Policy, Ruling, Verdict};

use super::Reserve;
use super::open::Open;
use crate::decide::{Eventually, Limits};
use crate::request_view::RequestView;

/// A decision, and what it reserved.
pub(super) struct Granted<S: Holds + 'static> {
    pub(super) verdict: Verdict,
    /// What is held, if the call is allowed.
    pub(super) open: Option<Open<S>>,
    pub(super) units: u64,
}

pub(super) type Deciding<S> = Pin<Box<dyn Future<Output = Granted<S>> + Send>>;

/// How often less is tried after a denial: others may take what was left.
const TRIES: u32 = 3;

/// A reservation that may have to be tried again with less.
struct Attempt {
    /// Not yet asked, to be asked again.
    evaluation: Evaluation,
    reserve: Arc<Reserve>,
    reservation: Reservation,
    units: u64,
    tries: u32,
}

impl<S: Holds + 'static> Limits<S> {
    /// Reserves for a request, at once if the store can; `None` if nothing limits it.
    pub(super) fn reserve(
        self: &Arc<Self>,
        reserve: &Arc<Reserve>,
        request: RequestView<'_>,
    ) -> Option<Eventually<Granted<S>, Deciding<S>>> {
        let evaluation = self.settings.evaluate(request)?;
        let mut attempt = Attempt::new(evaluation, reserve, (reserve.estimate)(request.parts()));
        loop {
            let mut question = match attempt.question() {
                Ok(question) => question,
                Err(refused) => return Some(Eventually::Now(self.granted(&attempt, *refused))),
            };
            let Some(verdict) = question.decide_now(&self.stores) else {
                let limits = Arc::clone(self);
                return Some(Eventually::Later(Box::pin(async move { limits.reserve_later(attempt).await })));
            };
            if !attempt.shrink(&verdict) {
                return Some(Eventually::Now(self.granted(&attempt, verdict)));
            }
        }
    }

    async fn reserve_later(self: Arc<Self>, mut attempt: Attempt) -> Granted<S> {
        loop {
            let question = match attempt.question() {
                Ok(question) => question,
                Err(refused) => return self.granted(&attempt, *refused),
            };
            // If the caller leaves before there is an answer, whatever was reserved is cancelled.
            let mut pending = Pending { store: Arc::clone(self.stores.shared()), hold: question.pending_hold() };
            let verdict = question.decide(&self.stores, None).await;
            if verdict.store_error().is_none_or(|error| !error.may_have_charged()) {
                pending.hold = None;
            }
            drop(pending);
            if !attempt.shrink(&verdict) {
                return self.granted(&attempt, verdict);
            }
        }
    }

    fn granted(&self, attempt: &Attempt, verdict: Verdict) -> Granted<S> {
        let reserve = &attempt.reserve;
        let open = verdict.allowed().then(|| {
            let open = Open::new(self.stores.shared(), &verdict, |policy| reserve.is_estimated(policy), attempt.units);
            let open = open.teaching(reserve.learned.as_ref());
            open.extended(reserve.sleep.as_ref(), attempt.reservation.ttl())
        });
        Granted { verdict: self.settings.report(verdict), open, units: attempt.units }
    }
}

impl Reserve {
    fn is_estimated(&self, policy: &Policy) -> bool {
        self.rules.is_empty() || self.rules.iter().any(|rule| rule == policy.name())
    }
}

impl Attempt {
    fn new(evaluation: Evaluation, reserve: &Arc<Reserve>, estimate: u64) -> Self {
        let longest = evaluation.rulings().iter().map(|ruling| terms(ruling).longest()).min();
        let ttl = reserve.ttl.clamp(HoldTerms::SHORTEST, longest.unwrap_or(HoldTerms::LONGEST));
        let mut attempt = Self {
            evaluation,
            reserve: Arc::clone(reserve),
            reservation: Reservation::new(ttl),
            units: estimate.max(1),
            tries: 0,
        };
        if let Some(least) = reserve.least {
            // More than may be held would never pass.
            let most = attempt.estimated(attempt.evaluation.rulings()).filter_map(most_units).min();
            attempt.units = attempt.units.min(most.unwrap_or(u64::MAX).max(least));
        }
        attempt
    }

    fn estimated<'r>(&self, rulings: &'r [Ruling]) -> impl Iterator<Item = &'r Ruling> {
        rulings.iter().filter(|ruling| self.reserve.is_estimated(ruling.policy()))
    }

    /// What to ask; or the denial, if nothing can be held of a policy that applies.
    fn question(&self) -> Result<Evaluation, Box<Verdict>> {
        let cost = Cost::new(self.units).unwrap_or(Cost::ONE);
        let names = self.estimated(self.evaluation.rulings()).map(|ruling| ruling.policy().key_name().to_owned());
        let units: Vec<(String, Cost)> = names.map(|name| (name, cost)).collect();
        let reserving = self.evaluation.clone().reserve(self.reservation, &units);
        reserving.map_err(|_| Box::new(self.evaluation.clone().refuse_to_hold()))
    }

    /// Whether to try again with what is left.
    fn shrink(&mut self, verdict: &Verdict) -> bool {
        let Some(least) = self.reserve.least else { return false };
        self.tries += 1;
        let decides = |ruling: &&Ruling| ruling.mode() == Mode::Enforce && ruling.limit().is_some();
        let others_deny = verdict.rulings().iter().filter(decides).any(|ruling| {
            !ruling.status().allowed()
                && (ruling.source().is_unavailable() || !self.reserve.is_estimated(ruling.policy()))
        });
        if verdict.outcome() != Outcome::Denied || others_deny || self.tries > TRIES {
            return false;
        }
        let room = self.estimated(verdict.rulings()).filter(decides).filter_map(|ruling| {
            let room = most_units(ruling)?.saturating_sub(ruling.status().held());
            Some(room.min(ruling.status().remaining()))
        });
        let room = room.min().unwrap_or(0);
        let again = (least..self.units).contains(&room);
        if again {
            self.units = room;
            // Another hold: of the first one nothing is known any more.
            self.reservation = Reservation::new(self.reservation.ttl());
        }
        again
    }
}

fn terms(ruling: &Ruling) -> HoldTerms {
    ruling.policy().holds().copied().unwrap_or_default()
}

/// How many units may be held under the limit of a ruling.
fn most_units(ruling: &Ruling) -> Option<u64> {
    ruling.limit().map(|limit| terms(ruling).most_units(limit.capacity()))
}

/// A hold that nobody knows yet. Dropping it cancels what may have been reserved.
struct Pending<S: Holds> {
    store: Arc<S>,
    hold: Option<Hold>,
}

impl<S: Holds> Drop for Pending<S> {
    fn drop(&mut self) {
        if let Some(hold) = self.hold.take().filter(|hold| !hold.is_empty()) {
            self.store.cancel_soon(hold);
        }
    }
}
