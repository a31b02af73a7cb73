//! The front door: validates a question, asks the store and returns its decision. Read this first.

mod bound;
mod lease;
mod once;
mod reserved;
mod wait;

use std::sync::Arc;

use crate::call::{Call, InvalidCheck, UpTo, Verb};
use crate::check::{Check, Receipt};
use crate::decision::{Decision, Status};
use crate::key::{Key, KeyError};
use crate::limit::{IntoLimit, LimitError};
use crate::store::{MemoryStore, Store, StoreError};

pub use bound::BoundLimit;
pub use lease::{Lease, Leased, Leases};
pub use once::Once;
pub use reserved::{HoldGuard, Reserved, RunError};
pub use wait::NotReady;

/// Decides whether calls may proceed. The state is kept in a [`Store`]. Cheap to clone.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use tallygate::{Check, Cost, Key, Limit, Limiter};
///
/// let limiter = Limiter::default(); // on the embedded store
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

/// The error of a call that got no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CheckError {
    /// The question is invalid. The store was not asked, and `on_error` must not turn this into an answer.
    #[error(transparent)]
    Invalid(#[from] InvalidCheck),
    /// The store could not answer.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The id of the call belongs to another call. Nothing was charged, and `on_error` must not turn this into an answer.
    #[error("the request id was used for another call: choose a new one for each call, and repeat a call as it was")]
    Conflict,
}

impl CheckError {
    /// Whether the call may have been charged: asking again could then charge twice.
    pub fn may_have_charged(&self) -> bool {
        match self {
            Self::Invalid(_) | Self::Conflict => false,
            Self::Store(error) => error.may_have_charged(),
        }
    }
}

impl<S: Store> Limiter<S> {
    /// Creates a limiter over `store`.
    pub fn new(store: S) -> Self {
        Self::over(Arc::new(store))
    }

    /// Creates a limiter over a shared store.
    pub fn over(store: Arc<S>) -> Self {
        Self { store }
    }

    /// Returns the store.
    pub fn store(&self) -> &Arc<S> {
        &self.store
    }

    /// One limit with a name over this store: a [`Limit`](crate::Limit) or its text. The name is part of the keys, so each
    /// limit needs its own.
    ///
    /// # Errors
    /// If the text is not a limit, or the name is empty or too long.
    pub fn limit(&self, name: impl Into<String>, limit: impl IntoLimit) -> Result<BoundLimit<S>, InvalidLimit> {
        let (name, limit) = (name.into(), limit.into_limit()?);
        Key::new(&name, "any")?;
        Ok(BoundLimit::new(self.clone(), name, limit))
    }

    /// Charges the check if it fits.
    pub async fn check(&self, check: Check<'_>) -> Result<Decision, CheckError> {
        self.call(Verb::Check, &[check]).await
    }

    /// Charges all checks if all of them fit, and none otherwise, as of one instant. In a cluster, checks of different
    /// subjects are charged separately; the decision is then marked as [`split`](Decision::split).
    pub async fn check_all(&self, checks: &[Check<'_>]) -> Result<Decision, CheckError> {
        self.call(Verb::Check, checks).await
    }

    /// Charges what is left: as many units as all limits have, the same number to each, within `up_to`. The costs of the checks
    /// are ignored. [`Decision::granted`] says how many. For callers that can do with less than they want.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use tallygate::{Check, Cost, Key, Limit, Limiter};
    /// use tallygate::call::UpTo;
    ///
    /// # let limiter = Limiter::default();
    /// # let (user, team): (Limit, Limit) = ("1000/min".parse()?, "600/min".parse()?);
    /// let checks = [Check::new(Key::new("tokens", "alice")?, &user), Check::new(Key::new("team_tokens", "a")?, &team)];
    /// let up_to = UpTo::new(Cost::new(900)?).at_least(Cost::new(50)?)?;
    /// assert_eq!(limiter.check_up_to(&checks, up_to).await?.granted(), Some(600));
    /// assert!(!limiter.check_up_to(&checks, up_to).await?.allowed());
    /// # Ok(()) }
    /// ```
    pub async fn check_up_to(&self, checks: &[Check<'_>], up_to: UpTo) -> Result<Decision, CheckError> {
        Ok(Call::check_up_to(checks, up_to)?.ask(&*self.store).await?)
    }

    /// Answers as [`check`](Self::check) would, without charging. `remaining` is what is left now.
    pub async fn peek(&self, check: Check<'_>) -> Result<Decision, CheckError> {
        self.call(Verb::Peek, &[check]).await
    }

    /// Answers as [`check_all`](Self::check_all) would, without charging.
    pub async fn peek_all(&self, checks: &[Check<'_>]) -> Result<Decision, CheckError> {
        self.call(Verb::Peek, checks).await
    }

    /// Gives back what was charged, all of it in one call. Returns how many units were given back, for each receipt.
    ///
    /// Take the receipts from the decision that charged: see [`Decision::receipts`]. A receipt can be used more than once, and
    /// would then give back what other calls were charged: refund a decision once. A decision that charged nothing has
    /// none, and then the store is not asked. Units that no longer count (an
    /// expired window or log entry) or that a token bucket has regained in the meantime are not given back. A refund
    /// never creates a state and never raises one above its capacity. Each unit given back can be used once more.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use tallygate::{Check, Key, Limit, Limiter};
    /// # let limiter = Limiter::default();
    /// # let (limit, global): (Limit, Limit) = ("3/min".parse()?, "100/min".parse()?);
    /// let checks = [Check::new(Key::new("mail", "alice")?, &limit), Check::new(Key::new("mails", "all")?, &global)];
    /// let decision = limiter.check_all(&checks).await?;
    /// // The mail could not be delivered.
    /// assert_eq!(limiter.refund(&decision.receipts(&checks)).await?, [1, 1]);
    /// # Ok(()) }
    /// ```
    pub async fn refund(&self, receipts: &[Receipt<'_>]) -> Result<Vec<u64>, CheckError> {
        if receipts.is_empty() {
            return Ok(Vec::new());
        }
        let checks: Vec<Check<'_>> = receipts.iter().map(Receipt::check).collect();
        Ok(self.call(Verb::Refund, &checks).await?.statuses().iter().map(Status::units).collect())
    }

    /// Drops the state of a check, as if it had never been used. Returns whether there was one.
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
    /// Like [`check`](Self::check), but synchronous: the embedded store never waits.
    pub fn check_now(&self, check: Check<'_>) -> Result<Decision, InvalidCheck> {
        // Same answer as through a `Call`, without building one.
        if check.is_checkable() && check.is_plain() {
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

/// The error of [`Limiter::limit`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidLimit {
    /// The limit is invalid.
    #[error(transparent)]
    Limit(#[from] LimitError),
    /// The name cannot be part of a key.
    #[error(transparent)]
    Name(#[from] KeyError),
}

/// A limiter over a new embedded store.
impl Default for Limiter<MemoryStore> {
    fn default() -> Self {
        Self::new(MemoryStore::new())
    }
}

impl<S> Clone for Limiter<S> {
    fn clone(&self) -> Self {
        Self { store: Arc::clone(&self.store) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Excess;
    use crate::{Cost, Limit};

    #[test]
    fn an_unusual_check_is_answered_at_once_too() {
        let (limiter, limit) = (Limiter::default(), "3/h".parse::<Limit>().unwrap());
        let check = |units| Check::new(Key::new("p", "s").unwrap(), &limit).cost(Cost::new(units).unwrap());
        assert!(limiter.check_now(check(2)).unwrap().allowed());
        let drained = limiter.check_now(check(2).with_excess(Excess::Drain)).unwrap();
        assert_eq!((drained.allowed(), drained.binding().units(), drained.binding().remaining()), (false, 1, 0));
        assert!(matches!(limiter.check_now(check(4)), Err(InvalidCheck::CostAboveCapacity { .. })));
    }

    #[test]
    fn only_an_error_of_the_store_may_have_charged() {
        let invalid = CheckError::from(InvalidCheck::Count { count: 0 });
        let stores = [StoreError::unavailable("r"), StoreError::ambiguous("r")].map(CheckError::from);
        let errors = [&invalid, &stores[0], &stores[1]];
        assert_eq!(errors.map(CheckError::may_have_charged), [false, false, true]);
    }
}
