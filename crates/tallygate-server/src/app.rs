//! What the edges share: the policies in force, the store, and the only path from a question to an answer.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use http::{HeaderMap, HeaderValue};
use tallygate::call::{Call, Verb};
use tallygate::hold::{Hold, HoldTerms, Holds, Reservation, Resolution, Resolve, Resolved};
use tallygate::policy::{Evaluation, Instances, PolicySet, Stores, Verdict};
use tallygate::request::RequestId;
use tallygate::store::{Allotments, DenyCache};
use tallygate::{CheckError, Cost, StoreError};
use tallygate_http::{Dialect, SOURCE_HEADER, Trust, verdict_headers, verdict_source};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::answer::{Answer, AnswerError};
use crate::decision_event::{Api, Asked, CallOutcome, DecisionEvent};
use crate::edge::access::Access;
use crate::edge::full::FullStore;
use crate::edge::turns::Turns;
use crate::live::LiveLimits;
use crate::loaded::Loaded;
use crate::metrics::{CallCounters, ReloadCounters};
use crate::question::{About, Question};
use crate::settings::Settings;
use crate::store::{ServedStore, StoreWatch};
use crate::telemetry;

/// What the headers of a response report.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReportedHeaders {
    pub(crate) dialect: Dialect,
    /// Whether they say where the answer came from.
    pub(crate) source: bool,
}

impl ReportedHeaders {
    /// Sets those of a verdict.
    pub(crate) fn apply(self, verdict: &Verdict, to: &mut HeaderMap) {
        verdict_headers(verdict, self.dialect, to);
        self.apply_source(verdict_source(verdict), to);
    }

    /// Sets the one that says where the answer came from.
    pub(crate) fn apply_source(self, source: &'static str, to: &mut HeaderMap) {
        if self.source {
            to.insert(SOURCE_HEADER, HeaderValue::from_static(source));
        }
    }
}

/// What the edges share.
#[derive(Debug)]
pub(crate) struct App {
    /// The policies in force, replaced as a whole.
    pub(crate) policies: ArcSwap<Loaded>,
    /// A policy says whether units of its keys are taken in advance, and whether its denials are cached; by default neither.
    pub(crate) stores: Stores<Allotments<DenyCache<ServedStore>>>,
    pub(crate) calls: CallCounters,
    pub(crate) reloads: ReloadCounters,
    pub(crate) headers: ReportedHeaders,
    /// For how long the answer to a call with an id is remembered.
    request_id_ttl: Duration,
    /// The proxies that forward-auth trusts.
    pub(crate) trust: Trust,
    /// Who may do what.
    pub(crate) access: Access,
    pub(crate) turns: Turns,
    pub(crate) full: FullStore,
    pub(crate) live: LiveLimits,
    /// Whether the server is about to stop.
    pub(crate) draining: watch::Sender<bool>,
}

impl App {
    pub(crate) fn new(store: ServedStore, policies: PolicySet, settings: &Settings) -> Arc<Self> {
        Arc::new(Self {
            policies: ArcSwap::from_pointee(Loaded::new(policies, None)),
            stores: Stores::new(Allotments::new(DenyCache::new(store).at_most(Duration::ZERO)))
                .with_instances(Instances::new(settings.instances)),
            calls: CallCounters::default(),
            reloads: ReloadCounters::default(),
            headers: ReportedHeaders { dialect: settings.dialect, source: settings.source_header },
            request_id_ttl: settings.request_id_ttl.clamp(RequestId::SHORTEST, RequestId::LONGEST),
            trust: settings.trust.clone(),
            access: Access::new(settings),
            turns: Turns::default(),
            full: FullStore::default(),
            live: LiveLimits::new(&settings.store),
            draining: watch::Sender::new(false),
        })
    }

    pub(crate) fn store(&self) -> &ServedStore {
        self.stores.shared().store().store()
    }

    /// Answers a question, and notifies every observer. `deadline` is the caller's, if known.
    pub(crate) async fn answer<'q>(
        &self,
        api: Api,
        question: &'q Question,
        deadline: Option<Instant>,
    ) -> Result<Answer<'q>, AnswerError> {
        let began = Instant::now();
        // Loaded once: in a second set, the domain that was found in the first could be missing, and with it its limits.
        let loaded = self.policies.load_full();
        let result = self.decide(&loaded, api, question, deadline).await;
        let asked = Asked { question, result: &result, took: began.elapsed() };
        self.observe(&loaded, &DecisionEvent::answered(api, asked));
        result
    }

    /// Resolves a hold, and counts what became of it.
    pub(crate) async fn resolve(
        &self,
        loaded: &Loaded,
        api: Api,
        hold: &Hold,
        resolve: &Resolve,
    ) -> Result<Resolved, StoreError> {
        let deadline = self.store().deadline().map(|patience| (Instant::now() + patience).into_std());
        let resolution = Resolution::new(hold, resolve.clone()).by(deadline);
        let resolved = self.stores.shared().resolve(&resolution).await;
        let outcome = match &resolved {
            Ok(resolved) if resolved.done => CallOutcome::Allowed,
            Ok(_) => CallOutcome::Denied,
            Err(_) => CallOutcome::Unavailable,
        };
        self.calls.observe(&DecisionEvent { api, outcome, asked: None });
        if let Ok(resolved) = &resolved {
            loaded.observe_end(hold, resolve, resolved);
        }
        resolved
    }

    /// Notifies every observer of a call that could not be read.
    pub(crate) fn reject(&self, api: Api) {
        self.observe(&self.policies.load(), &DecisionEvent { api, outcome: CallOutcome::Invalid, asked: None });
    }

    fn observe(&self, loaded: &Loaded, event: &DecisionEvent<'_>) {
        self.calls.observe(event);
        loaded.observe(event);
        telemetry::observe(event);
        self.full.observe(event);
    }

    async fn decide<'q>(
        &self,
        loaded: &Loaded,
        api: Api,
        question: &'q Question,
        callers: Option<Instant>,
    ) -> Result<Answer<'q>, AnswerError> {
        // One deadline for all calls to the store that the decision needs.
        let deadline = || {
            let own = self.store().deadline().map(|patience| Instant::now() + patience);
            let earliest = own.map_or(callers, |own| Some(callers.map_or(own, |callers| callers.min(own))));
            earliest.map(Instant::into_std)
        };
        match &question.about {
            About::AdHoc(asked) => {
                let checks = [asked.check()];
                let call = match (question.up_to, question.verb) {
                    (Some(up_to), _) => Call::check_up_to(&checks, up_to),
                    (None, Verb::Reserve) => Call::reserve(&checks, Reservation::new(question.ttl())),
                    (None, verb) => Call::new(verb, &checks),
                };
                let call = call.map_err(CheckError::from)?.by(deadline()).with_request_id(self.remembered(question));
                let decision = call.ask(self.stores.shared()).await.map_err(CheckError::from)?;
                if decision.conflicts() {
                    return Err(CheckError::Conflict.into());
                }
                let hold = call.hold_of(&decision);
                Ok(Answer::Decision(asked, decision, hold))
            }
            About::Policies { domain, asks } => {
                let evaluation = match loaded.set.domain(domain) {
                    Some(domain) => {
                        let units = question.units_of(domain)?;
                        let turn = self.turns.take(domain.policies().len(), asks.len(), callers).await;
                        let _turn = turn.map_err(CheckError::from)?;
                        reserving(loaded, question, domain.evaluate(asks), units)?
                    }
                    None if api.allows_unknown_domains() => Evaluation::unlimited(),
                    None => return Err(AnswerError::unknown_domain(&loaded.set, domain)),
                };
                let evaluation = match question.up_to {
                    Some(up_to) => evaluation.up_to(up_to),
                    None => evaluation,
                };
                let evaluation = match self.remembered(question) {
                    Some(id) => evaluation.request_id(id),
                    None => evaluation,
                };
                let verdict = evaluation.decide(&self.stores, deadline()).await;
                if verdict.conflicts() { Err(CheckError::Conflict.into()) } else { Ok(Answer::Verdict(verdict)) }
            }
        }
    }

    /// The id of a question, remembered for as long as this server does.
    fn remembered(&self, question: &Question) -> Option<RequestId> {
        question.request_id.and_then(|id| id.kept_for(self.request_id_ttl).ok())
    }

    /// An error if the server is about to stop.
    pub(crate) fn staying(&self) -> Result<(), String> {
        if *self.draining.borrow() { Err("the server is about to stop".to_owned()) } else { Ok(()) }
    }

    /// An error, with the reason, if calls should not be sent here.
    pub(crate) fn ready(&self) -> Result<(), String> {
        self.staying()?;
        self.store().condition().map_err(|because| because.to_string())?;
        // A store that answers, and can charge nobody, is as good as none.
        match &*self.store().watched().borrow() {
            StoreWatch { chargeable: 0, refusing, .. } if !refusing.is_empty() => Err(refusing[0].error.to_string()),
            _ => Ok(()),
        }
    }
}

/// The evaluation of a question, which may be one that reserves.
fn reserving(
    loaded: &Loaded,
    question: &Question,
    evaluation: Evaluation,
    mut units: Vec<(String, Cost)>,
) -> Result<Evaluation, AnswerError> {
    match question.verb {
        Verb::Reserve => {
            let granted =
                evaluation.rulings().iter().map(|ruling| ruling.policy().holds().unwrap_or(&HoldTerms::DEFAULT));
            let longest = granted.map(HoldTerms::longest).min().filter(|_| question.takes_shorter());
            let ttl = longest.map_or(question.ttl(), |longest| question.ttl().min(longest));
            if let Some(reserving) = &question.reserving {
                let learning =
                    evaluation.rulings().iter().filter(|ruling| reserving.estimated.has(ruling.descriptor()));
                let estimates: Vec<_> = learning.filter_map(|ruling| loaded.estimate(ruling)).collect();
                // The first of a policy counts: what is named is not estimated.
                units.extend(estimates);
            }
            Ok(evaluation.reserve(Reservation::new(ttl), &units).map_err(CheckError::from)?)
        }
        _ => Ok(evaluation),
    }
}

#[cfg(test)]
mod tests;
