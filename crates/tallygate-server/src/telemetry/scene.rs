//! For tests: policies, a store that answers or not, and decisions made with them.

use std::sync::Arc;
use std::time::Duration;

use tallygate::{
    Ask, Check, Cost, CounterError, CounterName, CounterOp, CounterValue, Decision, Descriptor, Domain, MemoryStore,
    OnError, Policy, PolicySet, Rule, Rules, Store, StoreError, Timestamp, Verdict,
};

use super::Decided;
use crate::metrics::{Api, CallOutcome};

/// One domain with one policy, `per-user`: one call a minute for each `user`.
pub(super) struct Scene {
    domain: String,
    set: PolicySet,
    store: MemoryStore,
    local: MemoryStore,
}

impl Scene {
    pub(super) fn new(domain: &str, on_error: OnError) -> Arc<Self> {
        let limit = "1/min".parse().unwrap();
        let policy = Policy::new("per-user", domain, Some(limit)).unwrap().with_on_error(on_error);
        let rules = Rules(vec![Rule::new().partition("user")]);
        let set = PolicySet::new(vec![Domain::new(domain, vec![policy], Box::new(rules))]).unwrap();
        Arc::new(Self { domain: domain.to_owned(), set, store: MemoryStore::new(), local: MemoryStore::new() })
    }

    /// A call of `user`, told to whoever listens.
    pub(super) async fn call(&self, user: &str) -> Verdict {
        let verdict = self.set.decide(&self.store, &self.local, &self.domain, &asks(user)).await.unwrap();
        self.tell(&verdict);
        verdict
    }

    /// The same while the store is down.
    pub(super) async fn call_in_vain(&self, user: &str) -> Verdict {
        let verdict = self.set.decide(&Down, &self.local, &self.domain, &asks(user)).await.unwrap();
        self.tell(&verdict);
        verdict
    }

    fn tell(&self, verdict: &Verdict) {
        self.decided(verdict).tell();
    }

    pub(super) fn decided<'a>(&'a self, verdict: &'a Verdict) -> Decided<'a> {
        Decided {
            api: Api::Http,
            domain: &self.domain,
            outcome: CallOutcome::from(verdict.outcome()),
            verdict: Some(verdict),
            took: Duration::from_micros(1_500),
        }
    }
}

fn asks(user: &str) -> Vec<Ask> {
    vec![Ask::new(Descriptor::new().with("user", user), Cost::ONE)]
}

/// What the store says while it is down: as hostile as a reply may be.
pub(super) const DOWN: &str = "gone\n\u{1b}[2J";

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
