//! For tests: policies, a store that answers or not, and decisions made with them.

use std::sync::Arc;
use std::time::Duration;

use tallygate::call::Verb;
use tallygate::policy::{Descriptor, Domain, OnError, Policy, PolicySet, Rule, Stores};
use tallygate::{Cost, MemoryStore};
use tallygate_testkit::FaultyStore;

use crate::answer::{Answer, AnswerError};
use crate::decision_event::{Api, Asked, DecisionEvent};
use crate::question::{About, Question};
use crate::telemetry::observe;

/// The policies of [`domain`], and their stores.
pub(in crate::telemetry) struct Scene {
    question: Question,
    set: PolicySet,
    stores: Stores<FaultyStore>,
    down: Stores<FaultyStore>,
}

impl Scene {
    pub(in crate::telemetry) fn new(domain: &str, on_error: OnError) -> Arc<Self> {
        let set = PolicySet::new(vec![self::domain(domain, on_error)]).unwrap();
        let question = question(domain, "alice");
        let store = || FaultyStore::new(MemoryStore::new()).because(DOWN);
        let stores = Stores::new(store());
        let down = stores.with_shared(store());
        down.shared().switch().off();
        Arc::new(Self { question, set, stores, down })
    }

    /// A call of `user`, as observers see it.
    pub(in crate::telemetry) async fn call(&self, user: &str) -> Result<Answer<'_>, AnswerError> {
        self.call_on(&self.stores, user).await
    }

    /// The same while the store is down.
    pub(in crate::telemetry) async fn call_in_vain(&self, user: &str) -> Result<Answer<'_>, AnswerError> {
        self.call_on(&self.down, user).await
    }

    async fn call_on(&self, stores: &Stores<FaultyStore>, user: &str) -> Result<Answer<'_>, AnswerError> {
        let domain = self.question.domain().unwrap();
        let asked = question(domain, user);
        let About::Policies { asks, .. } = &asked.about else { unreachable!() };
        let verdict = self.set.domain(domain).unwrap().evaluate(asks).decide(stores, None).await;
        let result = Ok(Answer::Verdict(verdict));
        observe(&self.event(&result));
        result
    }

    pub(in crate::telemetry) fn event<'a>(&'a self, result: &'a Result<Answer<'a>, AnswerError>) -> DecisionEvent<'a> {
        let asked = Asked { question: &self.question, result, took: Duration::from_micros(1_500) };
        DecisionEvent::answered(Api::Http, asked)
    }
}

/// A domain with one policy, `per-user`: one call a minute for each `user`.
pub(in crate::telemetry) fn domain(name: &str, on_error: OnError) -> Domain {
    let policy = Policy::new("per-user", name, "1/min").unwrap().with_on_error(on_error);
    Domain::new(name, [(policy, Rule::new().partition("user"))]).unwrap()
}

fn question(domain: &str, user: &str) -> Question {
    Question::by_policy(Verb::Check, domain.to_owned(), [Descriptor::new().with("user", user)], Cost::ONE, None)
}

/// What the store says while it is down: as hostile as a reply may be.
pub(in crate::telemetry) const DOWN: &str = "gone\n\u{1b}[2J";
