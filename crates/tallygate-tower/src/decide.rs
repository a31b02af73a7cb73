//! From a request to its verdict, and the refund of what does not count.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use http::{HeaderMap, Method};
use tallygate::call::Verb;
use tallygate::policy::{Action, Ask, Evaluation, Policy, Stores, Verdict};
use tallygate::{Cost, Status, Store};

use crate::request_view::RequestView;
use crate::rule::Rule;
use crate::settings::{Plan, Settings};

/// The settings of a layer, and its stores.
pub(crate) struct Limits<S> {
    pub(crate) settings: Settings,
    pub(crate) stores: Stores<Arc<S>>,
}

pub(crate) type Deciding = Pin<Box<dyn Future<Output = Verdict> + Send>>;
pub(crate) type Refunding = Pin<Box<dyn Future<Output = Verdict> + Send>>;

/// A value now, or a future of it.
pub(crate) enum Eventually<T, F> {
    Now(T),
    Later(F),
}

impl<S: Store + 'static> Limits<S> {
    /// The fast path: one rule, a store that answers at once, and nothing to report but what is left.
    /// Charges a request if its rule allows it. `None` has charged nothing: the request is then evaluated.
    ///
    /// Inlined, without a verdict: verdicts are copied several times, and a status is small.
    #[inline(always)]
    pub(crate) fn try_fast(&self, request: RequestView<'_>) -> Option<Status> {
        let Settings { plan: Plan::Rules { rules, .. }, fast: true, .. } = &self.settings else { return None };
        let [(rule, policy)] = &rules[..] else { return None };
        // It may be a preflight.
        if *request.method == Method::OPTIONS {
            return None;
        }
        if self.settings.by_address {
            self.settings.addresses.diagnose(request);
        }
        let (subject, known) = rule.caller.subject(request, &self.settings.addresses);
        if !known && rule.anonymous.is_some() {
            return None;
        }
        policy.check_now(&**self.stores.shared(), &subject, Cost::ONE)
    }

    /// Decides a request, at once if the store can; `None` if nothing limits it.
    #[inline]
    pub(crate) fn decide(self: &Arc<Self>, request: RequestView<'_>) -> Option<Eventually<Verdict, Deciding>> {
        let mut evaluation = self.settings.evaluate(request)?;
        if let Some(verdict) = evaluation.decide_now(&self.stores) {
            return Some(Eventually::Now(self.settings.report(verdict)));
        }
        Some(Eventually::Later(self.decide_later(evaluation)))
    }

    #[inline(never)]
    fn decide_later(self: &Arc<Self>, evaluation: Evaluation) -> Deciding {
        let limits = Arc::clone(self);
        Box::pin(async move { limits.settings.report(evaluation.decide(&limits.stores, None).await) })
    }

    /// Refunds what `verdict` charged, and updates what is left in it.
    pub(crate) fn refund(self: &Arc<Self>, mut verdict: Verdict) -> Eventually<Verdict, Refunding> {
        if verdict.refund_now(&self.stores) {
            return Eventually::Now(verdict);
        }
        let limits = Arc::clone(self);
        Eventually::Later(Box::pin(async move { verdict.refund(&limits.stores).await }))
    }
}

impl Settings {
    fn is_one_rule(&self) -> bool {
        matches!(&self.plan, Plan::Rules { rules, .. } if rules.len() == 1)
    }

    fn is_skipped(&self, request: RequestView<'_>) -> bool {
        let preflight = *request.method == Method::OPTIONS && is_preflight(request.headers);
        preflight && !self.preflight || self.skip.as_ref().is_some_and(|skip| skip(request.parts()))
    }

    /// The rules or policies that apply to a request.
    #[inline]
    pub(crate) fn evaluate(&self, request: RequestView<'_>) -> Option<Evaluation> {
        if self.is_skipped(request) {
            return None;
        }
        // The fast path has done so already.
        if self.by_address && !(self.fast && self.is_one_rule()) {
            self.addresses.diagnose(request);
        }
        let cost = self.cost.as_ref().map_or(Cost::ONE, |cost| cost(request.parts()));
        match &self.plan {
            Plan::Rules { rules, .. } => {
                if rules.is_empty() {
                    self.addresses.diagnostics.no_rules();
                }
                let found = |(rule, policy): &(Rule, Arc<Policy>)| rule.found(policy, request, &self.addresses);
                let mut matches = rules.iter().filter_map(found).peekable();
                matches.peek()?;
                Some(Evaluation::new(matches, Action::new(Verb::Check, cost)))
            }
            Plan::Policies { source, domain, describe } => {
                let (ask, set) = (Ask::check(describe(request.parts()), cost), source());
                match set.domain(domain) {
                    Some(domain) => Some(domain.evaluate(std::slice::from_ref(&ask))),
                    None => {
                        self.addresses.diagnostics.no_domain(domain, &set);
                        Some(Evaluation::unlimited())
                    }
                }
            }
        }
    }

    /// Passes a verdict to the log and to `observe`.
    #[inline]
    pub(crate) fn report(&self, verdict: Verdict) -> Verdict {
        self.addresses.diagnostics.decided(&verdict);
        if let Some(observe) = &self.observe {
            observe(&verdict);
        }
        verdict
    }
}

fn is_preflight(headers: &HeaderMap) -> bool {
    headers.contains_key("origin") && headers.contains_key("access-control-request-method")
}
