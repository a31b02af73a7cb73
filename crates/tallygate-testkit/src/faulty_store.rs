//! A store that fails on demand.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use tallygate::call::{Call, Verb};
use tallygate::hold::{Hold, Holds, Resolution, Resolved, Work};
use tallygate::{Decision, MemoryStore, Store, StoreError};

/// A wrapper around a store that can be switched off, or sometimes does not charge.
#[derive(Debug)]
pub struct FaultyStore<S = MemoryStore> {
    /// The wrapped store.
    pub store: S,
    switch: Switch,
    reason: String,
    /// One call in this many is not charged.
    forgets: Option<u64>,
    calls: AtomicU64,
}

/// Switches a [`FaultyStore`] off and on.
#[derive(Debug, Clone, Default)]
pub struct Switch(Arc<AtomicU8>);

const ON: u8 = 0;
const OFF: u8 = 1;
const OVERLOADED: u8 = 2;

impl Switch {
    /// From now on the store returns errors.
    pub fn off(&self) {
        self.0.store(OFF, Ordering::Relaxed);
    }

    /// From now on the store answers.
    pub fn on(&self) {
        self.0.store(ON, Ordering::Relaxed);
    }

    /// From now on calls are shed before they reach the store.
    pub fn overload(&self) {
        self.0.store(OVERLOADED, Ordering::Relaxed);
    }
}

impl<S> FaultyStore<S> {
    /// Creates a wrapper that works until it is switched off.
    pub fn new(store: S) -> Self {
        let reason = "switched off".to_owned();
        Self { store, switch: Switch::default(), reason, forgets: None, calls: AtomicU64::new(0) }
    }

    /// The error of a store that is switched off.
    #[must_use]
    pub fn because(mut self, reason: &str) -> Self {
        reason.clone_into(&mut self.reason);
        self
    }

    /// Answers one check in `calls` without charging it.
    #[must_use]
    pub fn forgetting_one_in(mut self, calls: u64) -> Self {
        self.forgets = Some(calls);
        self
    }

    /// The switch of this store.
    pub fn switch(&self) -> Switch {
        self.switch.clone()
    }
}

impl<S> FaultyStore<S> {
    fn fail(&self) -> Result<(), StoreError> {
        match self.switch.0.load(Ordering::Relaxed) {
            ON => Ok(()),
            OVERLOADED => Err(StoreError::overloaded("the switch says so")),
            _ => Err(StoreError::unavailable(self.reason.clone())),
        }
    }
}

impl<S: Store> Store for FaultyStore<S> {
    async fn call(&self, call: &Call<'_>) -> Result<Decision, StoreError> {
        self.fail()?;
        let number = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
        let forgotten = call.verb() == Verb::Check && self.forgets.is_some_and(|every| number.is_multiple_of(every));
        match Call::new(Verb::Peek, call.checks()) {
            Ok(peek) if forgotten => self.store.call(&peek).await,
            _ => self.store.call(call).await,
        }
    }
}

impl<S: Holds> Holds for FaultyStore<S> {
    async fn resolve(&self, resolution: &Resolution<'_>) -> Result<Resolved, StoreError> {
        self.fail()?;
        self.store.resolve(resolution).await
    }

    fn cancel_soon(&self, hold: Hold) {
        if self.fail().is_ok() {
            self.store.cancel_soon(hold);
        }
    }

    fn finish(&self, work: Work) {
        self.store.finish(work);
    }
}
