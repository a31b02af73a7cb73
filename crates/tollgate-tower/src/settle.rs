//! From a request to its verdict, and from its response to what stays counted.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use http::{HeaderMap, Method};
use tollgate::{Ask, Charge, Cost, InvalidCheck, Match, Store, Verdict};

use crate::layer::{Plan, Settings};
use crate::seen::Seen;

/// Shared from the start, as a verdict is large and everybody gets to see it.
pub(crate) type Decided = Result<Arc<Verdict>, InvalidCheck>;
pub(crate) type Deciding = Pin<Box<dyn Future<Output = Decided> + Send>>;
pub(crate) type Settling = Pin<Box<dyn Future<Output = Verdict> + Send>>;

/// A value now, or a future of it.
pub(crate) enum Eventually<T, F> {
    Now(T),
    Later(F),
}

/// What is asked of the store for one request.
#[derive(Debug)]
pub(crate) enum Question {
    /// What most layers have.
    Rule {
        found: Match,
        cost: Cost,
    },
    Rules {
        matches: Vec<Match>,
        cost: Cost,
    },
    Policies {
        ask: Box<Ask>,
        set: Arc<tollgate::PolicySet>,
    },
}

impl<S> Settings<S> {
    /// Whether a closure wants to see the request.
    pub(crate) fn is_told(&self) -> bool {
        let told = match &self.plan {
            Plan::Rules { told, .. } => *told,
            Plan::Policies { .. } => true,
        };
        told || self.skip.is_some() || self.cost.is_some()
    }

    /// What to ask about a request; `None` if nothing limits it.
    pub(crate) fn question(&self, seen: Seen<'_>) -> Option<Question> {
        let preflight = *seen.method == Method::OPTIONS && is_preflight(seen.headers);
        if preflight && !self.preflight || self.skip.as_ref().is_some_and(|skip| skip(seen.parts())) {
            return None;
        }
        let cost = self.cost.as_ref().map_or(Cost::ONE, |cost| cost(seen.parts()));
        match &self.plan {
            Plan::Rules { rules, .. } => {
                let applying = rules.iter().enumerate().filter(|(_, rule)| rule.applies(seen));
                let mut matches = applying.map(|(policy, rule)| {
                    let (subject, known) = rule.caller.subject(seen, &self.addresses);
                    Match { policy, descriptor: 0, subject, limit: rule.limit_of(seen, known).map(Some) }
                });
                let found = matches.next()?;
                Some(match matches.next() {
                    None => Question::Rule { found, cost },
                    Some(second) => {
                        Question::Rules { matches: [found, second].into_iter().chain(matches).collect(), cost }
                    }
                })
            }
            Plan::Policies { source, describe, .. } => {
                let ask = Box::new(Ask::new(describe(seen.parts()), cost));
                Some(Question::Policies { ask, set: source() })
            }
        }
    }
}

fn is_preflight(headers: &HeaderMap) -> bool {
    headers.contains_key("origin") && headers.contains_key("access-control-request-method")
}

impl<S: Store + 'static> Settings<S> {
    /// Decides, at once if the store can.
    pub(crate) fn decide(self: &Arc<Self>, question: Question) -> Eventually<Decided, Deciding> {
        if self.store.answers_at_once() {
            let decided = match (question, &self.plan) {
                // Without the future of all that could be asked around it.
                (Question::Rule { found, cost }, Plan::Rules { compiled, .. }) => {
                    at_once(compiled.decide_one(&*self.store, &self.local, found, Charge::Take(cost))).map(Arc::new)
                }
                (question, _) => at_once(self.decided(question)).map(Arc::new),
            };
            return Eventually::Now(decided);
        }
        let settings = Arc::clone(self);
        Eventually::Later(Box::pin(async move { settings.decided(question).await.map(Arc::new) }))
    }

    /// Gives back what `verdict` charged, and says what is left then.
    pub(crate) fn give_back(self: &Arc<Self>, verdict: &Arc<Verdict>) -> Eventually<Verdict, Settling> {
        if self.store.answers_at_once() {
            return Eventually::Now(at_once(verdict.give_back(&*self.store, &self.local)));
        }
        let (settings, verdict) = (Arc::clone(self), Arc::clone(verdict));
        Eventually::Later(Box::pin(async move { verdict.give_back(&*settings.store, &settings.local).await }))
    }

    async fn decided(&self, question: Question) -> Result<Verdict, InvalidCheck> {
        match (question, &self.plan) {
            (Question::Rule { found, cost }, Plan::Rules { compiled, .. }) => {
                compiled.decide_one(&*self.store, &self.local, found, Charge::Take(cost)).await
            }
            (Question::Rules { matches, cost }, Plan::Rules { compiled, .. }) => {
                compiled.decide(&*self.store, &self.local, matches, Charge::Take(cost)).await
            }
            (Question::Policies { ask, set }, Plan::Policies { domain, .. }) => {
                set.decide(&*self.store, &self.local, domain, std::slice::from_ref(&*ask)).await
            }
            _ => unreachable!("a question is asked under the plan it was made for"),
        }
    }
}

/// The value of a future of a store that answers at once.
#[inline(always)]
fn at_once<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => unreachable!("a store that answers at once does not wait"),
    }
}
