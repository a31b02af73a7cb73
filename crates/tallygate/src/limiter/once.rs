//! Calls under an id, which can be repeated.

use std::sync::Arc;
use std::time::Duration;

use super::{CheckError, HoldGuard, Limiter, Reserved};
use crate::call::{Call, UpTo, Verb};
use crate::check::Check;
use crate::decision::Decision;
use crate::hold::{Holds, Reservation};
use crate::request::RequestId;
use crate::store::{MemoryStore, Store};

/// The calls of a [`Limiter`] under an id: see [`RequestId`]. Created by [`Limiter::once`].
#[derive(Debug)]
pub struct Once<'l, S = MemoryStore> {
    limiter: &'l Limiter<S>,
    id: RequestId,
}

impl<S: Store> Limiter<S> {
    /// Charges under an id: the same call again is answered as the first time, and not charged.
    pub fn once(&self, id: RequestId) -> Once<'_, S> {
        Once { limiter: self, id }
    }
}

impl<S: Store> Once<'_, S> {
    /// Like [`Limiter::check`].
    pub async fn check(&self, check: Check<'_>) -> Result<Decision, CheckError> {
        self.check_all(&[check]).await
    }

    /// Like [`Limiter::check_all`].
    pub async fn check_all(&self, checks: &[Check<'_>]) -> Result<Decision, CheckError> {
        self.ask(&Call::new(Verb::Check, checks)?.with_request_id(Some(self.id))).await
    }

    /// Like [`Limiter::check_up_to`].
    pub async fn check_up_to(&self, checks: &[Check<'_>], up_to: UpTo) -> Result<Decision, CheckError> {
        self.ask(&Call::check_up_to(checks, up_to)?.with_request_id(Some(self.id))).await
    }

    async fn ask(&self, call: &Call<'_>) -> Result<Decision, CheckError> {
        let decision = call.ask(&*self.limiter.store).await?;
        if decision.conflicts() { Err(CheckError::Conflict) } else { Ok(decision) }
    }
}

impl<S: Holds> Once<'_, S> {
    /// Like [`Limiter::reserve`]. A repeat has the first hold, whatever has become of it. A caller that leaves before it has the
    /// answer leaves the hold to who repeats the call; if nobody does, it expires at its deadline.
    pub async fn reserve(&self, checks: &[Check<'_>], ttl: Duration) -> Result<Reserved<S>, CheckError> {
        let call = Call::reserve(checks, Reservation::new(ttl))?.with_request_id(Some(self.id));
        let decision = self.ask(&call).await?;
        let hold = call.hold_of(&decision);
        Ok(Reserved { hold: hold.map(|hold| HoldGuard::new(Arc::clone(&self.limiter.store), hold)), decision })
    }
}
