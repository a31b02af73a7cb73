//! A hold that is open while its request is served, and ends once.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tallygate::StoreError;
use tallygate::hold::{Hold, HoldState, Holds, Learned, Resolution, Resolve, Resolved, Units};
use tallygate::policy::{Policy, Verdict};

use super::{Sleep, Sleeping};

/// How a hold ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// So many units were used of what was estimated.
    Used(u64),
    /// As many as were reserved.
    AsReserved,
    /// The call does not count.
    Cancelled,
    /// Nobody knows: each policy does what its `on_abandon` says.
    Abandoned,
}

/// A hold that is open. Dropping it abandons it.
pub(super) struct Open<S: Holds + 'static> {
    store: Arc<S>,
    /// `None` once it has ended, and where nothing is held.
    hold: Option<Hold>,
    /// The policies that hold the estimate, by the names of their keys.
    estimated: Vec<String>,
    /// The policies that give abandoned units back.
    refunding: Vec<String>,
    reserved: u64,
    /// Units settled in parts, or about to be; the last part of them; and whether another can be settled.
    parts: u64,
    last_part: u64,
    refused: bool,
    under_way: Option<UnderWay>,
    timer: Option<Timer>,
    learned: Option<Arc<Learned>>,
}

type UnderWay = Pin<Box<dyn Future<Output = Result<Resolved, StoreError>> + Send>>;

/// Extends a hold whenever half of its time is over.
struct Timer {
    sleep: Sleep,
    sleeping: Sleeping,
    ttl: Duration,
    due: bool,
}

impl<S: Holds + 'static> Open<S> {
    pub(super) fn new(
        store: &Arc<S>,
        verdict: &Verdict,
        is_estimated: impl Fn(&Policy) -> bool,
        reserved: u64,
    ) -> Self {
        let names = |of: &dyn Fn(&Policy) -> bool| -> Vec<String> {
            let policies = verdict.rulings().iter().map(|ruling| &**ruling.policy()).filter(|policy| of(policy));
            policies.map(|policy| policy.key_name().to_owned()).collect()
        };
        let refunds = |policy: &Policy| {
            policy.holds().is_some_and(|terms| terms.on_abandon() == tallygate::hold::OnAbandon::Refund)
        };
        Self {
            store: Arc::clone(store),
            hold: verdict.hold().filter(|hold| !hold.is_empty()),
            estimated: names(&is_estimated),
            refunding: names(&refunds),
            reserved,
            parts: 0,
            last_part: 0,
            refused: false,
            under_way: None,
            timer: None,
            learned: None,
        }
    }

    /// Tells what was used.
    pub(super) fn teaching(mut self, learned: Option<&Arc<Learned>>) -> Self {
        self.learned = learned.cloned();
        self
    }

    /// Extends the hold for as long as it is polled.
    pub(super) fn extended(mut self, sleep: Option<&Sleep>, ttl: Duration) -> Self {
        if let Some(sleep) = sleep.filter(|_| self.hold.is_some()) {
            self.timer = Some(Timer { sleep: Arc::clone(sleep), sleeping: sleep(ttl / 2), ttl, due: false });
        }
        self
    }

    /// The units that the estimate took.
    pub(super) fn reserved(&self) -> u64 {
        self.reserved
    }

    /// Does what is under way, and what is due. The task is woken when there is more to do.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) {
        if let Some(timer) = &mut self.timer {
            while timer.sleeping.as_mut().poll(context).is_ready() {
                timer.sleeping = (timer.sleep)(timer.ttl / 2);
                timer.due = true;
            }
        }
        loop {
            if let Some(under_way) = &mut self.under_way {
                let Poll::Ready(answer) = under_way.as_mut().poll(context) else { return };
                self.under_way = None;
                self.answered(&answer);
            }
            let due = self.timer.as_mut().filter(|timer| timer.due && self.hold.is_some());
            let Some(timer) = due else { return };
            timer.due = false;
            let ttl = timer.ttl;
            self.begin(Resolve::Extend(ttl));
        }
    }

    /// Settles what was used so far, if that is worth a call: a quarter of what was reserved, and none is under way.
    pub(super) fn settle_part(&mut self, used: u64, context: &mut Context<'_>) {
        let part = used.saturating_sub(self.parts);
        let worth_it = part > 0 && part >= self.reserved / 4;
        if worth_it && !self.refused && self.under_way.is_none() && self.hold.is_some() {
            (self.parts, self.last_part) = (used, part);
            self.begin(Resolve::SettlePart(self.each(part)));
            self.poll(context);
        }
    }

    /// Ends the hold, without waiting. Ending it again does nothing.
    pub(super) fn end(&mut self, end: End) {
        let Some(hold) = self.hold.take() else { return };
        if let (End::Used(units), Some(learned)) = (end, &self.learned) {
            learned.observe(self.reserved, units);
        }
        let resolve = match end {
            End::Used(units) => Resolve::Settle(self.each(units.saturating_sub(self.parts))),
            End::AsReserved => Resolve::Settle(Units::Each(Vec::new())),
            End::Cancelled => Resolve::Cancel,
            End::Abandoned => {
                Resolve::Settle(Units::Each(self.refunding.iter().map(|name| (name.clone(), 0)).collect()))
            }
        };
        let (store, under_way) = (Arc::clone(&self.store), self.under_way.take());
        self.store.finish(Box::pin(async move {
            // One after the other: a part that comes after the end would be lost.
            let part = match under_way {
                Some(under_way) => under_way.await.map(drop),
                None => Ok(()),
            };
            let ended = match part {
                Ok(()) => match resolve_surely(Arc::clone(&store), hold.clone(), resolve).await {
                    // More was used than the limit grants: all that is held was used.
                    Ok(ended) if ended.refused.is_some() => {
                        resolve_surely(store, hold, Resolve::Settle(Units::AsReserved)).await.map(drop)
                    }
                    ended => ended.map(drop),
                },
                Err(error) => Err(error),
            };
            if let Err(error) = ended {
                tracing::warn!("a hold could not be settled, and is left to on_abandon: {error}");
            }
        }));
    }

    fn begin(&mut self, resolve: Resolve) {
        if let Some(hold) = self.hold.clone() {
            self.under_way = Some(Box::pin(resolve_surely(Arc::clone(&self.store), hold, resolve)));
        }
    }

    fn answered(&mut self, answer: &Result<Resolved, StoreError>) {
        match answer {
            Ok(resolved) if resolved.state == HoldState::Open => {
                // The overrun of a part. It is refused at the end, too.
                if resolved.refused.is_some() {
                    (self.parts, self.refused) = (self.parts - self.last_part, true);
                }
            }
            // It has expired, or its state was reset: there is nothing left to settle.
            Ok(_) => self.hold = None,
            Err(error) => {
                // Nobody knows what was settled. Settling more could charge it twice, and giving back could lose it.
                tracing::warn!("a hold could not be settled, and is left to on_abandon: {error}");
                self.hold = None;
            }
        }
    }

    /// The units of what was estimated. The others keep what they reserved.
    fn each(&self, units: u64) -> Units {
        Units::Each(self.estimated.iter().map(|name| (name.clone(), units)).collect())
    }
}

/// Asks once more if no answer came: repeating a resolution changes nothing.
async fn resolve_surely<S: Holds>(store: Arc<S>, hold: Hold, resolve: Resolve) -> Result<Resolved, StoreError> {
    let resolution = Resolution::new(&hold, resolve);
    match store.resolve(&resolution).await {
        Err(_) => store.resolve(&resolution).await,
        answer => answer,
    }
}

impl<S: Holds + 'static> Drop for Open<S> {
    fn drop(&mut self) {
        self.end(End::Abandoned);
    }
}
