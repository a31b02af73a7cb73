//! Units that are held while a future runs, or until a guard is dropped.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use super::{BoundLimit, CheckError, Limiter};
use crate::call::{Call, InvalidCheck};
use crate::check::{Check, Cost};
use crate::decision::Decision;
use crate::hold::{Hold, Holds, Reservation, Resolution, Resolve, Resolved, Turn, Units};
use crate::store::StoreError;

/// The answer to a reservation: the decision and, if it is allowed, the guard of the hold.
#[derive(Debug)]
pub struct Reserved<S: Holds> {
    /// The decision.
    pub decision: Decision,
    /// The hold, if the call is allowed. If this is dropped, the hold is cancelled.
    pub hold: Option<HoldGuard<S>>,
}

/// An open hold. Dropping it hands its cancellation to the store, which finishes it. If the process dies first, the hold
/// expires at its deadline, and `on_abandon` says what becomes of its units.
#[must_use = "a dropped guard cancels its hold"]
pub struct HoldGuard<S: Holds> {
    store: Arc<S>,
    /// `None` once it was resolved or taken.
    hold: Option<Hold>,
}

/// The error of [`BoundLimit::run`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The estimate was denied: the future was not run.
    #[error("denied by the limit")]
    Denied(Decision),
    /// The store could not reserve: the future was not run.
    #[error(transparent)]
    Check(#[from] CheckError),
}

impl<S: Holds> Limiter<S> {
    /// Charges all checks if all of them fit, and none otherwise, and holds what was charged for `ttl`: until then it can be
    /// settled with what was really used, cancelled or extended.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use tallygate::{Check, Cost, Key, Limit, Limiter};
    /// use std::time::Duration;
    /// use tallygate::hold::Units;
    ///
    /// # let limiter = Limiter::default();
    /// let (requests, tokens): (Limit, Limit) = ("60/min".parse()?, "1000/min".parse()?);
    /// let check = |policy, limit| Check::new(Key::new(policy, "alice").unwrap(), limit);
    /// let checks = [check("requests", &requests), check("tokens", &tokens).cost(Cost::new(900)?)];
    /// let reserved = limiter.reserve(&checks, Duration::from_secs(60)).await?;
    /// let hold = reserved.hold.expect("allowed");
    ///
    /// // The answer had 250 tokens. The request stays charged.
    /// let settled = hold.settle(Units::Each(vec![("tokens".into(), 250)])).await?;
    /// assert_eq!((settled.parts[0].settled, settled.parts[1].refunded), (1, 650));
    /// # Ok(()) }
    /// ```
    pub async fn reserve(&self, checks: &[Check<'_>], ttl: Duration) -> Result<Reserved<S>, CheckError> {
        let call = Call::reserve(checks, Reservation::new(ttl))?;
        // If the caller leaves before it has the answer, whatever was reserved is cancelled.
        let guard = HoldGuard { store: Arc::clone(&self.store), hold: call.hold() };
        let answer = call.ask(&*self.store).await;
        match answer {
            Ok(decision) if decision.allowed() => Ok(Reserved { decision, hold: Some(guard) }),
            Ok(decision) => {
                guard.into_hold();
                Ok(Reserved { decision, hold: None })
            }
            // The guard cancels what may have been reserved.
            Err(error) if error.may_have_charged() => Err(error.into()),
            Err(error) => {
                guard.into_hold();
                Err(error.into())
            }
        }
    }

    /// Charges what was used and gives back the rest. Repeating it changes nothing: the answer says what has become of the hold.
    pub async fn settle(&self, hold: &Hold, used: Units) -> Result<Resolved, StoreError> {
        self.store.resolve(&Resolution::new(hold, Resolve::Settle(used))).await
    }

    /// Charges what was used so far. The hold stays open with the rest.
    pub async fn settle_partial(&self, hold: &Hold, used: Units) -> Result<Resolved, StoreError> {
        self.store.resolve(&Resolution::new(hold, Resolve::SettlePart(used))).await
    }

    /// Gives everything back that is still held.
    pub async fn cancel(&self, hold: &Hold) -> Result<Resolved, StoreError> {
        self.store.resolve(&Resolution::new(hold, Resolve::Cancel)).await
    }

    /// Moves the deadline of a hold to `ttl` from now, unless it is later already.
    pub async fn extend(&self, hold: &Hold, ttl: Duration) -> Result<Resolved, StoreError> {
        self.store.resolve(&Resolution::new(hold, Resolve::Extend(ttl))).await
    }

    /// Extends a hold, and changes its token: from then on it is [`hold.at_turn(next)`](Hold::at_turn), and the one before changes nothing.
    /// If no answer comes, repeat it with the same `next`, of which each renewal needs another. [`Leases`](super::Leases) renew by themselves.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// use tallygate::hold::{Refused, Turn};
    ///
    /// # let (limiter, minute) = (tallygate::Limiter::default(), Duration::from_secs(60));
    /// let hold = limiter.limit("jobs", "2 concurrent")?.reserve("alice", 1, minute).await?.hold.expect("free").into_hold();
    /// let next = Turn::random();
    /// assert!(limiter.renew(&hold, next, minute).await?.done);
    /// assert!(limiter.renew(&hold, next, minute).await?.done, "its answer was lost");
    ///
    /// let renewed = hold.clone().at_turn(next);
    /// assert_eq!(limiter.cancel(&hold).await?.refused, Some(Refused::Renewed));
    /// assert!(limiter.cancel(&renewed).await?.done);
    /// # Ok(()) }
    /// ```
    pub async fn renew(&self, hold: &Hold, next: Turn, ttl: Duration) -> Result<Resolved, StoreError> {
        self.store.resolve(&Resolution::new(hold, Resolve::Renew { ttl, next })).await
    }
}

impl<S: Holds> BoundLimit<S> {
    /// Reserves units of `subject` for `ttl`: see [`Limiter::reserve`].
    pub async fn reserve(
        &self,
        subject: &(impl AsRef<[u8]> + ?Sized),
        units: u64,
        ttl: Duration,
    ) -> Result<Reserved<S>, CheckError> {
        let cost = Cost::new(units).map_err(InvalidCheck::from)?;
        self.limiter().reserve(&[self.of(subject)?.cost(cost)], ttl).await
    }

    /// Reserves `estimate` units of `subject`, runs a future, and charges what it says that it used. If it is dropped before
    /// it ends, or panics, everything is given back.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// let tokens = tallygate::Limiter::default().limit("tokens", "1000/min")?;
    /// let answer = tokens.run("alice", 900, Duration::from_secs(60), async { ("Hello!", 12) }).await?;
    /// assert_eq!((answer, tokens.peek("alice").await?.binding().remaining()), ("Hello!", 988));
    /// # Ok(()) }
    /// ```
    pub async fn run<T>(
        &self,
        subject: &(impl AsRef<[u8]> + ?Sized),
        estimate: u64,
        ttl: Duration,
        future: impl Future<Output = (T, u64)>,
    ) -> Result<T, RunError> {
        let Reserved { decision, hold } = self.reserve(subject, estimate, ttl).await?;
        let Some(hold) = hold else { return Err(RunError::Denied(decision)) };
        let (output, used) = future.await;
        // What cannot be settled stays charged as it was reserved: the result is more than that.
        let _ = hold.settle(Units::Same(used)).await;
        Ok(output)
    }
}

impl<S: Holds> HoldGuard<S> {
    pub(super) fn new(store: Arc<S>, hold: Hold) -> Self {
        Self { store, hold: Some(hold) }
    }

    /// The hold. The guard still cancels it.
    pub fn hold(&self) -> &Hold {
        self.hold.as_ref().expect("a guard has its hold until it is consumed")
    }

    /// The hold, for others to resolve. The guard no longer cancels it.
    pub fn into_hold(mut self) -> Hold {
        self.hold.take().unwrap_or_else(Hold::of_nothing)
    }

    /// Like [`Limiter::settle`]. The guard is gone then, also if the store refuses an overrun, and the hold is still open: keep a clone
    /// of [`hold`](Self::hold) if that can happen.
    pub async fn settle(self, used: Units) -> Result<Resolved, StoreError> {
        self.end(Resolve::Settle(used)).await
    }

    /// Like [`Limiter::settle_partial`].
    pub async fn settle_partial(&self, used: Units) -> Result<Resolved, StoreError> {
        self.resolve(Resolve::SettlePart(used)).await
    }

    /// Like [`Limiter::extend`].
    pub async fn extend(&self, ttl: Duration) -> Result<Resolved, StoreError> {
        self.resolve(Resolve::Extend(ttl)).await
    }

    /// Like [`Limiter::cancel`].
    pub async fn cancel(self) -> Result<Resolved, StoreError> {
        self.end(Resolve::Cancel).await
    }

    async fn resolve(&self, resolve: Resolve) -> Result<Resolved, StoreError> {
        self.store.resolve(&Resolution::new(self.hold(), resolve)).await
    }

    /// A caller that leaves here leaves the guard behind. A hold that was settled meanwhile is not cancelled by it.
    async fn end(self, resolve: Resolve) -> Result<Resolved, StoreError> {
        let answer = self.resolve(resolve).await;
        // After an error nobody knows what happened. `on_abandon` says what becomes of an open hold; cancelling it could undo a
        // settlement that is still on its way.
        self.into_hold();
        answer
    }
}

impl<S: Holds> Drop for HoldGuard<S> {
    fn drop(&mut self) {
        if let Some(hold) = self.hold.take() {
            self.store.cancel_soon(hold);
        }
    }
}

/// The hold is as secret as its token.
impl<S: Holds> fmt::Debug for HoldGuard<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HoldGuard").field("hold", &self.hold).finish_non_exhaustive()
    }
}
