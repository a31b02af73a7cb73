//! How pools are filled, and how what is not spent is given back.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::Allotments;
use super::pool::{Pool, Spent, Unspent};
use super::refill::{Answer, Refill, Waiting};
use crate::call::{Call, UpTo};
use crate::check::{Check, Cost};
use crate::store::Store;
use crate::store::memory::print::Print;

/// What to do about a check.
pub(super) enum Step {
    /// Its units were taken out of the pool.
    Spent(Spent),
    /// A refill is in flight.
    Wait(Arc<Refill>),
    /// The store decides.
    Ask,
}

/// How many units a refill takes that fills a pool up to `wanted`: at least what is missing for the call that begins it.
fn up_to(pool: &Pool, cost: u64, wanted: u64, now: u64) -> Option<UpTo> {
    let held = pool.spendable(now);
    let (least, most) = (cost.saturating_sub(held), wanted.saturating_sub(held));
    UpTo::new(Cost::new(most).ok()?).at_least(Cost::new(least).ok()?).ok()
}

impl<S: Store + 'static> Allotments<S> {
    /// Gives back units that were not spent in time. Call it every second or so: otherwise units of a key that nobody asks about any
    /// more stay charged until they stop counting. Stops at the first error of the store. Returns how many units were given back.
    pub async fn give_back(&self) -> u64 {
        self.give_back_if(Pool::ended).await
    }

    /// Gives back all units that are not spent, before the process ends. Calls that follow take new ones.
    pub async fn give_back_all(&self) -> u64 {
        self.give_back_if(|pool, _| pool.unspent()).await
    }

    async fn give_back_if(&self, choose: impl Fn(&mut Pool, u64) -> Option<Unspent>) -> u64 {
        let mut given_back = 0;
        for shard in &self.shards {
            // All their callers may have left.
            let refills = shard.lock().refills();
            for refill in refills {
                self.wait(refill).await;
            }
            loop {
                let now = self.now();
                let Some(unspent) = shard.lock().give_back(now, &choose) else { break };
                let given = unspent.give_back(&*self.store, None).await;
                let units = given.as_ref().map_or(0, |&units| units);
                self.count_dropped(unspent.units.saturating_sub(units));
                given_back += units;
                if given.is_err() {
                    return given_back;
                }
            }
        }
        given_back
    }

    /// Spends units for a check that opts in, or begins a refill, or joins the one in flight.
    pub(super) fn step(&self, print: Print, check: &Check<'_>, deadline: Option<Instant>) -> Step {
        let (now, cost) = (self.now(), check.cost.get());
        let mut shard = self.shard(print).lock();
        let Some(pool) = shard.find(print).filter(|pool| pool.is_of(check.limit)) else { return Step::Ask };
        if let Some(spent) = pool.spend(cost, now) {
            return Step::Spent(spent);
        }
        if let Some(refill) = &pool.refill {
            return if refill.ends_by(deadline) { Step::Wait(Arc::clone(refill)) } else { Step::Ask };
        }
        let wanted = pool.wanted(cost, now);
        let unspent = if wanted > 0 { pool.outdated(now) } else { pool.ended(now) };
        if wanted == 0 && unspent.is_none() {
            return Step::Ask;
        }
        let up_to = up_to(pool, cost, wanted, now);
        let (store, dropped) = (Arc::clone(&self.store), Arc::clone(&self.dropped));
        let (name, limit, denials) = (Arc::clone(&pool.name), pool.limit.clone(), check.cache_denials());
        let refill = Refill::new((print, pool.id, wanted), now, deadline, async move {
            if let Some(unspent) = unspent {
                let given = unspent.give_back(&*store, deadline).await.unwrap_or(0);
                dropped.fetch_add(unspent.units.saturating_sub(given), Ordering::Relaxed);
            }
            let check = Check::new(name.key(), &limit).with_cache_denials(denials);
            let call = Call::check_up_to(&[check], up_to?).ok()?.by(deadline);
            Some(store.call(&call).await)
        });
        let refill = Arc::new(refill);
        pool.refill = Some(Arc::clone(&refill));
        Step::Wait(refill)
    }

    pub(super) async fn wait(&self, refill: Arc<Refill>) {
        Waiting::new(refill, |refill: &Refill, answer| self.land(refill, answer)).await;
    }

    /// Like [`step`](Self::step), if the store answers at once. `None` leaves the check to the store.
    pub(super) fn step_now(&self, print: Print, check: &Check<'_>) -> Option<Spent> {
        let (now, cost) = (self.now(), check.cost.get());
        let (refill, up_to, name) = {
            let mut shard = self.shard(print).lock();
            let pool = shard.find(print).filter(|pool| pool.is_of(check.limit))?;
            if let Some(spent) = pool.spend(cost, now) {
                return Some(spent);
            }
            // What is to be given back first is left to a call that can wait.
            if pool.refill.is_some() || pool.units() > pool.spendable(now) {
                return None;
            }
            let wanted = pool.wanted(cost, now);
            let up_to = up_to(pool, cost, wanted, now)?;
            let refill = Arc::new(Refill::without_waiting((print, pool.id, wanted), now, None));
            pool.refill = Some(Arc::clone(&refill));
            (refill, up_to, Arc::clone(&pool.name))
        };
        let checks = [Check::new(name.key(), check.limit).with_cache_denials(check.cache_denials())];
        let answer = Call::check_up_to(&checks, up_to).ok().and_then(|call| self.store.call_now(&call));
        self.land(&refill, answer);
        self.spend(print, check, self.now())
    }
}

impl<S> Allotments<S> {
    /// Records the answer to a refill, for the pool that began it.
    fn land(&self, refill: &Refill, answer: Answer) {
        let now = self.now();
        let mut shard = self.shard(refill.print).lock();
        let pool = shard.find(refill.print).filter(|pool| pool.id == refill.id);
        let dropped = match (pool, answer) {
            (Some(pool), answer) => {
                pool.refill = None;
                match answer {
                    None => 0,
                    Some(Ok(decision)) => pool.land(&decision, refill.size, refill.asked_at, now),
                    Some(Err(_)) => {
                        pool.failed();
                        0
                    }
                }
            }
            // It was reset, or its limit was changed.
            (None, Some(Ok(decision))) => decision.statuses()[0].units(),
            (None, _) => 0,
        };
        self.count_dropped(dropped);
    }
}
