//! What every edge shares: the policies in force, the store, and the one way from a call to a verdict.

use arc_swap::ArcSwap;
use tallygate::{Ask, InvalidCheck, Limiter, MemoryStore, Outcome, StoreError, Verdict};
use tallygate_http::{Dialect, Trust};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::metrics::{Api, CallCounters, CallOutcome};
use crate::policies::Loaded;
use crate::store::{Condition, ServedStore};
use crate::telemetry::Decided;
use crate::token::Token;

/// What every edge shares.
#[derive(Debug)]
pub(crate) struct App {
    /// The policies in force. Swapped whole.
    pub(crate) policies: ArcSwap<Loaded>,
    pub(crate) limiter: Limiter<ServedStore>,
    /// Decides for policies that say `on_error: local` while the store cannot.
    pub(crate) local: MemoryStore,
    pub(crate) calls: CallCounters,
    pub(crate) dialect: Dialect,
    /// Whom forward-auth believes.
    pub(crate) trust: Trust,
    pub(crate) token: Option<Token>,
    /// Whether the server is about to stop; watched by those who want to know at once.
    pub(crate) draining: watch::Sender<bool>,
}

impl App {
    pub(crate) fn store(&self) -> &ServedStore {
        self.limiter.store()
    }

    /// Decides a call and counts what became of it. `deadline` is the caller's own, if it is known.
    pub(crate) async fn decide(
        &self,
        api: Api,
        domain: &str,
        asks: &[Ask],
        deadline: Option<Instant>,
    ) -> Result<Verdict, InvalidCheck> {
        let began = Instant::now();
        let loaded = self.policies.load_full();
        let decided = match deadline {
            Some(deadline) => loaded.set.decide(&self.store().within(deadline), &self.local, domain, asks).await,
            None => loaded.set.decide(self.store(), &self.local, domain, asks).await,
        };
        let outcome = match &decided {
            Ok(verdict) => {
                loaded.count(verdict);
                CallOutcome::from(verdict.outcome())
            }
            Err(_) => CallOutcome::Invalid,
        };
        let took = began.elapsed();
        self.calls.count(api, outcome, took);
        Decided { api, domain, outcome, verdict: decided.as_ref().ok(), took }.tell();
        decided
    }

    /// Whether the server goes on, or is about to stop.
    pub(crate) fn staying(&self) -> Result<(), NotReady> {
        if *self.draining.borrow() { Err(NotReady::Draining) } else { Ok(()) }
    }

    /// Whether calls should be sent here, or why not.
    pub(crate) fn ready(&self) -> Result<(), NotReady> {
        self.staying()?;
        match self.store().condition() {
            Condition::Up => Ok(()),
            Condition::Down { because } => Err(NotReady::StoreDown(because)),
        }
    }
}

/// Why calls should be sent elsewhere.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotReady {
    #[error("the server is about to stop")]
    Draining,
    #[error("{0}")]
    StoreDown(StoreError),
}

impl From<Outcome> for CallOutcome {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Allowed => Self::Allowed,
            Outcome::Denied => Self::Denied,
            Outcome::Unavailable => Self::Unavailable,
        }
    }
}
