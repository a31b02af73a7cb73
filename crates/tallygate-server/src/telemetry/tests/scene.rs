//! For tests: policies, a store that answers or not, and decisions made with them.

use std::sync::Arc;
use std::time::Duration;

use tallygate::{
    Check, Cost, CounterError, CounterName, CounterOp, CounterValue, Decision, Descriptor, Domain, MemoryStore,
    OnError, Policy, PolicySet, Rule, Rules, Store, StoreError, Timestamp,
};

use crate::answer::{Answer, AnswerError};
use crate::decision_event::{Api, Asked, DecisionEvent};
use crate::question::{About, Question, Verb};
use crate::telemetry::observe;

/// One domain with one policy, `per-user`: one call a minute for each `user`.
pub(in crate::telemetry) struct Scene {
    question: Question,
    set: PolicySet,
    store: MemoryStore,
    local: MemoryStore,
}

impl Scene {
    pub(in crate::telemetry) fn new(domain: &str, on_error: OnError) -> Arc<Self> {
        let limit = "1/min".parse().unwrap();
        let policy = Policy::new("per-user", domain, Some(limit)).unwrap().with_on_error(on_error);
        let rules = Rules(vec![Rule::new().partition("user")]);
        let set = PolicySet::new(vec![Domain::new(domain, vec![policy], Box::new(rules))]).unwrap();
        let question = question(domain, "alice");
        Arc::new(Self { question, set, store: MemoryStore::new(), local: MemoryStore::new() })
    }

    /// A call of `user`, as observers see it.
    pub(in crate::telemetry) async fn call(&self, user: &str) -> Result<Answer<'_>, AnswerError> {
        self.call_on(&self.store, user).await
    }

    /// The same while the store is down.
    pub(in crate::telemetry) async fn call_in_vain(&self, user: &str) -> Result<Answer<'_>, AnswerError> {
        self.call_on(&Down, user).await
    }

    async fn call_on(&self, store: &impl Store, user: &str) -> Result<Answer<'_>, AnswerError> {
        let domain = self.question.domain().unwrap();
        let asked = question(domain, user);
        let About::Policies { asks, .. } = &asked.about else { unreachable!() };
        let verdict = self.set.decide(store, &self.local, domain, asks).await.unwrap();
        let result = Ok(Answer::Verdict(verdict));
        observe(&self.event(&result));
        result
    }

    pub(in crate::telemetry) fn event<'a>(&'a self, result: &'a Result<Answer<'a>, AnswerError>) -> DecisionEvent<'a> {
        let asked = Asked { question: &self.question, result, took: Duration::from_micros(1_500) };
        DecisionEvent::answered(Api::Http, asked)
    }
}

fn question(domain: &str, user: &str) -> Question {
    Question::by_policy(Verb::Check, domain.to_owned(), [Descriptor::new().with("user", user)], Cost::ONE, None)
}

/// What the store says while it is down: as hostile as a reply may be.
pub(in crate::telemetry) const DOWN: &str = "gone\n\u{1b}[2J";

struct Down;

fn down<T>() -> Result<T, StoreError> {
    Err(StoreError::Unavailable { reason: DOWN.to_owned() })
}

impl Store for Down {
    async fn check(&self, _: &[Check<'_>]) -> Result<Decision, StoreError> {
        down()
    }

    async fn peek(&self, _: &[Check<'_>]) -> Result<Decision, StoreError> {
        down()
    }

    async fn refund(&self, _: &Check<'_>, _: Option<Timestamp>) -> Result<u64, StoreError> {
        down()
    }

    async fn reset(&self, _: &Check<'_>) -> Result<bool, StoreError> {
        down()
    }

    async fn count(&self, _: &CounterName, _: CounterOp) -> Result<CounterValue, CounterError> {
        Ok(down()?)
    }
}
