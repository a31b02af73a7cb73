//! From a request to its verdict, and from its response to what stays counted.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use http::{HeaderMap, Method};
use tallygate::{Ask, Charge, Cost, InvalidCheck, Match, PolicySet, Store, Verdict, at_once};

use crate::seen::Seen;
use crate::settings::{Plan, Settings};

pub(crate) type Decided = Result<Verdict, InvalidCheck>;
pub(crate) type Deciding = Pin<Box<dyn Future<Output = Decided> + Send>>;
pub(crate) type Settling = Pin<Box<dyn Future<Output = Verdict> + Send>>;

/// A value now, or a future of it.
pub(crate) enum Eventually<T, F> {
    Now(T),
    Later(F),
}

/// What is asked of the store for one request.
enum Question {
    Rules { matches: Vec<Match>, cost: Cost },
    Policies { ask: Box<Ask>, set: Arc<PolicySet> },
}

impl<S> Settings<S> {
    fn is_skipped(&self, seen: Seen<'_>) -> bool {
        let preflight = *seen.method == Method::OPTIONS && is_preflight(seen.headers);
        preflight && !self.preflight || self.skip.as_ref().is_some_and(|skip| skip(seen.parts()))
    }
}

fn is_preflight(headers: &HeaderMap) -> bool {
    headers.contains_key("origin") && headers.contains_key("access-control-request-method")
}

impl<S: Store + 'static> Settings<S> {
    /// Decides a request, at once if the store can; `None` if nothing limits it.
    pub(crate) fn decide(self: &Arc<Self>, seen: Seen<'_>) -> Option<Eventually<Decided, Deciding>> {
        if self.is_skipped(seen) {
            return None;
        }
        // The shortcut has looked.
        if self.by_address && !self.short {
            self.addresses.look(seen);
        }
        let cost = self.cost.as_ref().map_or(Cost::ONE, |cost| cost(seen.parts()));
        let question = self.question(seen, cost)?;
        if self.store.embedded().is_some() {
            return Some(Eventually::Now(at_once(self.decided(question))));
        }
        let settings = Arc::clone(self);
        Some(Eventually::Later(Box::pin(async move { settings.decided(question).await })))
    }

    fn question(&self, seen: Seen<'_>, cost: Cost) -> Option<Question> {
        match &self.plan {
            Plan::Rules { rules, .. } => {
                let found = rules.iter().enumerate().filter_map(|(at, rule)| rule.found(at, seen, &self.addresses));
                let matches: Vec<Match> = found.collect();
                if rules.is_empty() {
                    self.addresses.traps.no_rules();
                }
                (!matches.is_empty()).then_some(Question::Rules { matches, cost })
            }
            Plan::Policies { source, domain, describe } => {
                let (ask, set) = (Box::new(Ask::new(describe(seen.parts()), cost)), source());
                if set.domain(domain).is_none() {
                    self.addresses.traps.no_domain(domain, &set);
                }
                Some(Question::Policies { ask, set })
            }
        }
    }

    async fn decided(&self, question: Question) -> Decided {
        let verdict = match (question, &self.plan) {
            (Question::Rules { matches, cost }, Plan::Rules { compiled, .. }) => {
                compiled.decide(&*self.store, &self.local, matches, Charge::Take(cost)).await
            }
            (Question::Policies { ask, set }, Plan::Policies { domain, .. }) => {
                set.decide(&*self.store, &self.local, domain, std::slice::from_ref(&*ask)).await
            }
            _ => unreachable!("a question is asked under the plan it was made for"),
        }?;
        self.addresses.traps.store_answered(verdict.store_error());
        if let Some(observe) = &self.observe {
            observe(&verdict);
        }
        Ok(verdict)
    }

    /// Gives back what `verdict` charged, and says what is left then.
    pub(crate) fn give_back(self: &Arc<Self>, verdict: Verdict) -> Eventually<Verdict, Settling> {
        if self.store.embedded().is_some() {
            return Eventually::Now(at_once(verdict.give_back(&*self.store, &self.local)));
        }
        let settings = Arc::clone(self);
        Eventually::Later(Box::pin(async move { verdict.give_back(&*settings.store, &settings.local).await }))
    }
}
