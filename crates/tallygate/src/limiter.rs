//! The front door: questions are checked, a store decides, the answer is folded. Read this first.

mod wait;

use std::sync::Arc;

use crate::call::{Call, InvalidCheck, Verb};
use crate::check::{Check, Receipt};
use crate::decision::Decision;
use crate::store::{MemoryStore, Store, StoreError};

pub use wait::NotReady;

/// Decides whether calls may proceed, over a [`Store`] that keeps the states. Cheap to clone.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use tallygate::{Check, Cost, Key, Limit, Limiter, MemoryStore};
///
/// let limiter = Limiter::new(MemoryStore::new());
/// let limit: Limit = "3/min".parse()?;
/// let check = Check::new(Key::new("login", "alice")?, &limit);
///
/// assert_eq!(limiter.check(check).await?.binding().remaining(), 2);
/// assert!(limiter.check(check.cost(Cost::new(2)?)).await?.allowed());
///
/// let denied = limiter.check(check).await?;
/// assert!(!denied.allowed());
/// println!("try again in {:?}", denied.binding().retry_after());
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Limiter<S = MemoryStore> {
    store: Arc<S>,
}

/// Why a call got no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CheckError {
    /// The question itself is wrong. No store was asked, and no failure policy may turn this into an answer.
    #[error(transparent)]
    Invalid(#[from] InvalidCheck),
    /// The store could not answer.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl<S: Store> Limiter<S> {
    /// A limiter over `store`.
    pub fn new(store: S) -> Self {
        Self::over(Arc::new(store))
    }

    /// A limiter over a store that others use too.
    pub fn over(store: Arc<S>) -> Self {
        Self { store }
    }

    /// The store behind it.
    pub fn store(&self) -> &Arc<S> {
        &self.store
    }

    /// Charges one check if it fits.
    pub async fn check(&self, check: Check<'_>) -> Result<Decision, CheckError> {
        self.call(Verb::Check, &[check]).await
    }

    /// Charges all checks if all of them fit, and none otherwise, as of one instant. (Checks of different subjects in a
    /// cluster are charged apart; the decision then says that it was [`split`](Decision::split).)
    pub async fn check_all(&self, checks: &[Check<'_>]) -> Result<Decision, CheckError> {
        self.call(Verb::Check, checks).await
    }

    /// What [`check_all`](Self::check_all) would answer, but nothing is charged: `remaining` is what there is now.
    pub async fn peek(&self, checks: &[Check<'_>]) -> Result<Decision, CheckError> {
        self.call(Verb::Peek, checks).await
    }

    /// Gives back what was charged, and answers how many units counted.
    ///
    /// The receipt is that of the decision that charged it: see [`Decision::receipts`]. A window or a log gives back nothing
    /// that has stopped counting since, and a token bucket nothing that was regained since. A refund never creates a state
    /// and never lifts one above its capacity; each unit given back can be used once more.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use tallygate::{Check, Key, Limit, Limiter, MemoryStore};
    /// # let limiter = Limiter::new(MemoryStore::new());
    /// # let limit: Limit = "3/min".parse()?;
    /// let checks = [Check::new(Key::new("mail", "alice")?, &limit)];
    /// let decision = limiter.check_all(&checks).await?;
    /// // It could not be delivered.
    /// for receipt in decision.receipts(&checks) {
    ///     assert_eq!(limiter.refund(receipt).await?, 1);
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn refund(&self, receipt: Receipt<'_>) -> Result<u64, CheckError> {
        Ok(self.call(Verb::Refund, &[receipt.check()]).await?.binding().units())
    }

    /// Forgets the state of a check, as if it had never been used; answers whether there was one.
    pub async fn reset(&self, check: Check<'_>) -> Result<bool, CheckError> {
        Ok(self.call(Verb::Reset, &[check]).await?.binding().units() > 0)
    }

    async fn call(&self, verb: Verb, checks: &[Check<'_>]) -> Result<Decision, CheckError> {
        match Call::of_one(verb, checks) {
            Some(call) => Ok(self.store.call(&call).await?),
            None => Ok(Call::new(verb, checks)?.ask(&*self.store).await?),
        }
    }
}

impl Limiter<MemoryStore> {
    /// [`check`](Self::check) without a future: the embedded store never waits.
    pub fn check_now(&self, check: Check<'_>) -> Result<Decision, InvalidCheck> {
        // What `Call` and the store would find out of a plain check, without laying out a call.
        if check.is_within_capacity() && check.is_plain() {
            return Ok(self.store.charge_one(&check));
        }
        self.check_unusual(&[check])
    }

    #[cold]
    fn check_unusual(&self, checks: &[Check<'_>]) -> Result<Decision, InvalidCheck> {
        let answer = Call::new(Verb::Check, checks)?.ask_now(&*self.store);
        Ok(answer.expect("the embedded store never waits").expect("the embedded store never fails"))
    }
}

impl<S> Clone for Limiter<S> {
    fn clone(&self) -> Self {
        Self { store: Arc::clone(&self.store) }
    }
}
