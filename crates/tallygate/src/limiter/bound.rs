//! One limit with a name, ready to be asked about subjects.

use std::future::Future;
use std::time::Duration;

use super::{CheckError, Limiter, NotReady};
use crate::call::{InvalidCheck, UpTo};
use crate::check::{Check, Cost};
use crate::decision::Decision;
use crate::key::Key;
use crate::limit::Limit;
use crate::store::{MemoryStore, Store};

/// One limit with a name, over a store: all that is left to say is the subject. Created by [`Limiter::limit`]. Cheap to
/// clone.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use tallygate::Limiter;
///
/// let mails = Limiter::default().limit("mails", "3/day")?;
/// assert!(mails.check("alice").await?.allowed());
///
/// // A mail to two recipients that could not be delivered.
/// let decision = mails.check_cost("alice", 2).await?;
/// assert_eq!(mails.refund("alice", &decision).await?, 2);
/// assert_eq!(mails.peek("alice").await?.binding().remaining(), 2);
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct BoundLimit<S = MemoryStore> {
    limiter: Limiter<S>,
    name: String,
    limit: Limit,
}

impl<S: Store> BoundLimit<S> {
    pub(super) fn new(limiter: Limiter<S>, name: String, limit: Limit) -> Self {
        Self { limiter, name, limit }
    }

    pub(super) fn limiter(&self) -> &Limiter<S> {
        &self.limiter
    }

    /// The name: the policy of its keys.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The limit.
    pub fn limit(&self) -> &Limit {
        &self.limit
    }

    /// The check of `subject` under this limit, for [`Limiter::check_all`].
    #[inline]
    pub fn of<'a>(&'a self, subject: &'a (impl AsRef<[u8]> + ?Sized)) -> Result<Check<'a>, InvalidCheck> {
        Ok(Check::new(Key::new(&self.name, subject)?, &self.limit))
    }

    /// Charges `subject` one unit if it fits.
    pub async fn check(&self, subject: &(impl AsRef<[u8]> + ?Sized)) -> Result<Decision, CheckError> {
        self.limiter.check(self.of(subject)?).await
    }

    /// Charges `subject` several units if all of them fit. A cost above the capacity of the limit could never pass: it is an
    /// error, [`InvalidCheck::CostAboveCapacity`].
    pub async fn check_cost(&self, subject: &(impl AsRef<[u8]> + ?Sized), units: u64) -> Result<Decision, CheckError> {
        let cost = Cost::new(units).map_err(InvalidCheck::from)?;
        self.limiter.check(self.of(subject)?.cost(cost)).await
    }

    /// Charges `subject` as many units as are left, within `up_to`: see [`Limiter::check_up_to`].
    pub async fn check_up_to(
        &self,
        subject: &(impl AsRef<[u8]> + ?Sized),
        up_to: UpTo,
    ) -> Result<Decision, CheckError> {
        self.limiter.check_up_to(&[self.of(subject)?], up_to).await
    }

    /// Answers as [`check`](Self::check) would, without charging.
    pub async fn peek(&self, subject: &(impl AsRef<[u8]> + ?Sized)) -> Result<Decision, CheckError> {
        self.limiter.peek(self.of(subject)?).await
    }

    /// Answers as [`check_cost`](Self::check_cost) would, without charging.
    pub async fn peek_cost(&self, subject: &(impl AsRef<[u8]> + ?Sized), units: u64) -> Result<Decision, CheckError> {
        let cost = Cost::new(units).map_err(InvalidCheck::from)?;
        self.limiter.peek(self.of(subject)?.cost(cost)).await
    }

    /// Gives back what `decision` charged `subject`. Returns how many units were given back: see [`Limiter::refund`]. A decision
    /// does not know its subject: pass the one that was charged, and refund a decision once.
    pub async fn refund(&self, subject: &(impl AsRef<[u8]> + ?Sized), decision: &Decision) -> Result<u64, CheckError> {
        let checks = [self.of(subject)?];
        Ok(self.limiter.refund(&decision.receipts(&checks)).await?.into_iter().sum())
    }

    /// Waits until one unit fits, then charges it: see [`Limiter::until_ready`].
    pub async fn until_ready<F: Future<Output = ()>>(
        &self,
        subject: &(impl AsRef<[u8]> + ?Sized),
        patience: Duration,
        sleep: impl FnMut(Duration) -> F,
    ) -> Result<Decision, NotReady> {
        let checks = [self.of(subject).map_err(CheckError::from)?];
        self.limiter.until_ready(&checks, patience, sleep).await
    }

    /// Drops the state of `subject`, as if it had never been used. Returns whether there was one.
    pub async fn reset(&self, subject: &(impl AsRef<[u8]> + ?Sized)) -> Result<bool, CheckError> {
        self.limiter.reset(self.of(subject)?).await
    }
}

impl BoundLimit<MemoryStore> {
    /// Like [`check`](Self::check), but synchronous: the embedded store never waits.
    #[inline]
    pub fn check_now(&self, subject: &(impl AsRef<[u8]> + ?Sized)) -> Result<Decision, InvalidCheck> {
        self.limiter.check_now(self.of(subject)?)
    }

    /// Like [`check_cost`](Self::check_cost), but synchronous.
    #[inline]
    pub fn check_cost_now(&self, subject: &(impl AsRef<[u8]> + ?Sized), units: u64) -> Result<Decision, InvalidCheck> {
        self.limiter.check_now(self.of(subject)?.cost(Cost::new(units)?))
    }
}

impl<S> Clone for BoundLimit<S> {
    fn clone(&self) -> Self {
        Self { limiter: self.limiter.clone(), name: self.name.clone(), limit: self.limit.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::KeyError;
    use crate::limiter::InvalidLimit;

    #[test]
    fn names_limits_subjects_and_costs_are_validated() {
        let limiter = Limiter::default();
        assert!(matches!(limiter.limit("", "1/s"), Err(InvalidLimit::Name(KeyError::EmptyPolicy))));
        assert!(matches!(limiter.limit("p", "1 a second"), Err(InvalidLimit::Limit(_))));
        let limit = limiter.limit("p", "1/s").unwrap();
        assert_eq!(limit.check_now(""), Err(InvalidCheck::Key(KeyError::EmptySubject)));
        assert!(matches!(limit.check_cost_now("s", 0), Err(InvalidCheck::Cost(_))));
        assert!(matches!(limit.check_cost_now("s", 2), Err(InvalidCheck::CostAboveCapacity { .. })));
    }

    #[tokio::test]
    async fn a_denied_decision_has_nothing_to_refund() {
        let limit = Limiter::default().limit("p", "1/h").unwrap();
        let (first, second) = (limit.check("s").await.unwrap(), limit.check("s").await.unwrap());
        assert_eq!((first.allowed(), second.allowed()), (true, false));
        assert_eq!(limit.refund("s", &second).await, Ok(0));
        assert_eq!(limit.refund("s", &first).await, Ok(1));
        assert_eq!(limit.peek("s").await.unwrap().binding().remaining(), 1);
        assert_eq!(limit.reset("s").await, Ok(true));
        assert_eq!(limit.reset("s").await, Ok(false));
    }
}
