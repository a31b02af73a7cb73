//! The front door: questions are checked, a store decides, the answer is folded. Read this first.

mod wait;

use std::collections::HashSet;
use std::sync::Arc;

use crate::check::Check;
use crate::clock::Timestamp;
use crate::decision::{Decision, Source, Status, Statuses};
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

/// What is wrong with a question.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidCheck {
    /// More is asked than the limit can ever hold, so no wait would help.
    #[error(
        "a cost of {cost} can never pass `{policy}`, which holds at most {capacity}: lower the cost or raise the limit"
    )]
    CostAboveCapacity {
        /// The policy.
        policy: String,
        /// What was asked.
        cost: u64,
        /// What can be had at one instant.
        capacity: u64,
    },
    /// Two checks of one call are about the same state.
    #[error(
        "two checks of one call use policy `{policy}` for the same subject: give each limit a policy name of its own"
    )]
    SameKey {
        /// The policy.
        policy: String,
    },
    /// There is nothing to decide, or too much.
    #[error("a call has 1 to {} checks; this one has {count}", MAX_CHECKS)]
    Count {
        /// How many there are.
        count: usize,
    },
}

/// The most checks one call may have.
pub const MAX_CHECKS: usize = 32;

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
        self.check_all(&[check]).await
    }

    /// Charges all checks if all of them fit, and none otherwise, as of one instant. (Checks of different subjects in a
    /// cluster are charged one after the other; the decision then says that it was [`split`](Decision::split).)
    pub async fn check_all(&self, checks: &[Check<'_>]) -> Result<Decision, CheckError> {
        validate(checks)?;
        Ok(take(&*self.store, checks).await?)
    }

    /// What [`check_all`](Self::check_all) would answer, but nothing is charged: `remaining` is what there is now.
    pub async fn peek(&self, checks: &[Check<'_>]) -> Result<Decision, CheckError> {
        validate(checks)?;
        Ok(look(&*self.store, checks).await?)
    }

    /// Gives back the cost of a check that was charged, and answers how many units counted.
    ///
    /// `charged_at` is the [`decided_at`](Decision::decided_at) of the decision that charged it: a window or a log gives
    /// back nothing that has stopped counting since. Without it, the units are taken to be charged just now. A token
    /// bucket, which keeps no history, gives back whatever is missing. A refund never creates a state and never lifts
    /// one above its capacity; each unit given back can be used once more.
    pub async fn refund(&self, check: Check<'_>, charged_at: Option<Timestamp>) -> Result<u64, CheckError> {
        if check.limit.amount() == 0 {
            return Ok(0);
        }
        Ok(self.store.refund(&check, charged_at).await?)
    }

    /// Forgets the state of a check, as if it had never been used; answers whether there was one.
    pub async fn reset(&self, check: Check<'_>) -> Result<bool, CheckError> {
        Ok(self.store.reset(&check).await?)
    }
}

impl Limiter<MemoryStore> {
    /// [`check`](Self::check) without a future: the embedded store never waits.
    pub fn check_now(&self, check: Check<'_>) -> Result<Decision, InvalidCheck> {
        validate_one(&check)?;
        if check.limit.amount() == 0 {
            let statuses = Statuses::from(Status::never(check.limit));
            return Ok(Decision::from_statuses(statuses, Source::ZeroLimit, self.store.now()));
        }
        Ok(self.store.check_now(&check))
    }
}

impl<S> Clone for Limiter<S> {
    fn clone(&self) -> Self {
        Self { store: Arc::clone(&self.store) }
    }
}

/// Charges checks that make sense.
pub(crate) async fn take<S: Store>(store: &S, checks: &[Check<'_>]) -> Result<Decision, StoreError> {
    if has_zero(checks) { Ok(deny_zero(store, checks).await) } else { store.check(checks).await }
}

/// Looks at checks that make sense.
pub(crate) async fn look<S: Store>(store: &S, checks: &[Check<'_>]) -> Result<Decision, StoreError> {
    if has_zero(checks) { Ok(deny_zero(store, checks).await) } else { store.peek(checks).await }
}

fn has_zero(checks: &[Check<'_>]) -> bool {
    checks.iter().any(|check| check.limit.amount() == 0)
}

/// A limit of zero needs no store to deny. If there are other limits beside it, the store is asked what is left of them,
/// and an error does not change the answer.
async fn deny_zero<S: Store>(store: &S, checks: &[Check<'_>]) -> Decision {
    let others: Vec<Check<'_>> = checks.iter().filter(|check| check.limit.amount() > 0).copied().collect();
    let peeked = if others.is_empty() { None } else { store.peek(&others).await.ok() };
    let decided_at = peeked.as_ref().map_or(Timestamp::from_micros(0), Decision::decided_at);
    let mut peeked = peeked.iter().flat_map(Decision::statuses);
    let statuses = checks.iter().map(|check| match check.limit.amount() {
        0 => Status::never(check.limit),
        _ => peeked.next().copied().unwrap_or_else(|| Status::never(check.limit)),
    });
    Decision::from_statuses(statuses.collect(), Source::ZeroLimit, decided_at)
}

/// Whether a limiter would ask a store about these checks, for those who want to know before there is a store.
pub fn validate(checks: &[Check<'_>]) -> Result<(), InvalidCheck> {
    if checks.is_empty() || checks.len() > MAX_CHECKS {
        return Err(InvalidCheck::Count { count: checks.len() });
    }
    checks.iter().try_for_each(validate_one)?;
    if checks.len() > 1 {
        let mut seen = HashSet::new();
        for check in checks {
            if !seen.insert(check.key) {
                return Err(InvalidCheck::SameKey { policy: check.key.policy().to_owned() });
            }
        }
    }
    Ok(())
}

#[inline]
fn validate_one(check: &Check<'_>) -> Result<(), InvalidCheck> {
    let (cost, capacity) = (check.cost.get(), check.limit.capacity());
    if cost > capacity && capacity > 0 {
        return Err(too_costly(check));
    }
    Ok(())
}

#[cold]
fn too_costly(check: &Check<'_>) -> InvalidCheck {
    let policy = check.key.policy().to_owned();
    InvalidCheck::CostAboveCapacity { policy, cost: check.cost.get(), capacity: check.limit.capacity() }
}
