//! The units that this process holds for one key, and how many it takes next.

use std::sync::Arc;
use std::time::Instant;

use super::refill::Refill;
use crate::call::{Call, Verb};
use crate::check::{Check, Cost};
use crate::clock::Timestamp;
use crate::decision::{Decision, Source, Status};
use crate::key::Key;
use crate::limit::Limit;
use crate::store::memory::print::Print;
use crate::store::{Store, StoreError};

/// For how long units may be spent after the store was asked for them, in microseconds. Never longer than the window.
pub(super) const AGE: u64 = 1_000_000;
/// An allotment is what the key uses in this time, in microseconds.
const AHEAD: u64 = 100_000;
/// At most this part of what the store had left when it last answered.
const PART: u64 = 8;
/// Fewer units are not worth a call of their own.
const LEAST: u64 = 4;
/// The first allotment of a key. Each may be twice the one before.
pub(super) const FIRST: u64 = 16;

/// What this process knows of one key. Times are of its own monotonic clock, in microseconds.
#[derive(Debug)]
pub(super) struct Pool {
    pub(super) print: Print,
    /// Distinguishes it from an earlier pool of the same key.
    pub(super) id: u64,
    pub(super) name: Arc<Name>,
    pub(super) limit: Limit,
    pub(super) refill: Option<Arc<Refill>>,
    pub(super) used_at: u64,
    allotment: Option<Allotment>,
    known: Known,
    rate: Rate,
}

/// Units that were taken and not yet spent.
#[derive(Debug, Clone, Copy)]
pub(super) struct Allotment {
    pub(super) units: u64,
    /// By the store's clock.
    pub(super) charged_at: Timestamp,
    /// Before the store was asked.
    asked_at: u64,
    /// They are spent before this, or not at all.
    pub(super) until: u64,
}

/// What the store last said.
#[derive(Debug)]
struct Known {
    status: Status,
    asked_at: u64,
    answered_at: u64,
    /// The store has answered since it last failed.
    fresh: bool,
}

/// How many units were used since the last refill began.
#[derive(Debug)]
struct Rate {
    used: u64,
    since: u64,
    /// Of the last allotment.
    size: u64,
}

/// An owned key.
#[derive(Debug)]
pub(super) struct Name {
    policy: String,
    subject: Vec<u8>,
}

impl Name {
    pub(super) fn of(key: &Key<'_>) -> Self {
        Self { policy: key.policy().to_owned(), subject: key.subject().to_vec() }
    }

    pub(super) fn key(&self) -> Key<'_> {
        Key::new(&self.policy, &self.subject).expect("it was a key before")
    }
}

/// Units that are to be given back.
#[derive(Debug)]
pub(super) struct Unspent {
    name: Arc<Name>,
    limit: Limit,
    pub(super) units: u64,
    charged_at: Timestamp,
}

impl Unspent {
    /// Gives them back, once. Returns how many still counted.
    pub(super) async fn give_back<S: Store>(&self, to: &S, deadline: Option<Instant>) -> Result<u64, StoreError> {
        let Ok(units) = Cost::new(self.units) else { return Ok(0) };
        let check = Check::new(self.name.key(), &self.limit).cost(units).with_charged_at(Some(self.charged_at));
        let refund = Call::of_distinct(Verb::Refund, std::slice::from_ref(&check)).by(deadline);
        Ok(refund.ask(to).await?.statuses()[0].units())
    }
}

/// Units that were taken out of a pool for a call.
#[derive(Debug, Clone, Copy)]
pub(super) struct Spent {
    pub(super) allotment: Allotment,
    /// The pool.
    pub(super) id: u64,
    pub(super) status: Status,
}

impl Spent {
    pub(super) fn decision(&self) -> Decision {
        Decision::of_one(self.status, Source::Allotment, self.allotment.charged_at)
    }
}

/// For how long units may be spent after the store was asked for them, if the state of the key is reset `reset_after` later.
/// Clocks of two machines differ, so a window is left early: by a millisecond and a hundredth of what is left of it.
fn life(limit: &Limit, reset_after: u64) -> u64 {
    let most = AGE.min(limit.numbers().window);
    match limit.algorithm().ends_windows() {
        true => most.min(reset_after.saturating_sub(1000 + reset_after / 100)),
        false => most,
    }
}

fn micros(span: std::time::Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

impl Pool {
    /// The pool of a key that has used `used` units since `since`, and was answered `status`.
    pub(super) fn new(print: Print, id: u64, check: &Check<'_>, rate: (u64, u64), answer: (Status, u64, u64)) -> Self {
        let (status, asked_at, answered_at) = answer;
        Self {
            print,
            id,
            name: Arc::new(Name::of(&check.key)),
            limit: check.limit.clone(),
            refill: None,
            used_at: answered_at,
            allotment: None,
            known: Known { status, asked_at, answered_at, fresh: true },
            rate: Rate { used: rate.0, since: rate.1, size: FIRST / 2 },
        }
    }

    pub(super) fn is_of(&self, limit: &Limit) -> bool {
        limit.is_same(&self.limit) || *limit == self.limit
    }

    /// The unspent units, also those that may not be spent any more.
    pub(super) fn units(&self) -> u64 {
        self.allotment.map_or(0, |allotment| allotment.units)
    }

    /// The units that may be spent.
    pub(super) fn spendable(&self, now: u64) -> u64 {
        self.allotment.filter(|allotment| now < allotment.until).map_or(0, |allotment| allotment.units)
    }

    /// Takes `cost` units for a call, if there are as many.
    pub(super) fn spend(&mut self, cost: u64, now: u64) -> Option<Spent> {
        self.used_at = now;
        let allotment = self.allotment.as_mut().filter(|allotment| now < allotment.until && cost <= allotment.units)?;
        allotment.units -= cost;
        let spent = Allotment { units: cost, ..*allotment };
        let left = allotment.units;
        self.rate.count(cost, now);
        let known = self.known.status.after(now.saturating_sub(self.known.answered_at));
        Some(Spent { allotment: spent, id: self.id, status: known.with_more_left(left, true).with_units(cost) })
    }

    /// Puts units into the pool. Returns how many had to be dropped for them.
    pub(super) fn add(&mut self, new: Allotment, now: u64) -> u64 {
        let old = self.allotment.filter(|old| old.units > 0);
        let (kept, dropped) = match old {
            // Together they are as old as the older ones.
            Some(old) if now < old.until.min(new.until) => {
                let (charged_at, asked_at) = (old.charged_at.min(new.charged_at), old.asked_at.min(new.asked_at));
                let units = old.units + new.units;
                (Allotment { units, charged_at, asked_at, until: old.until.min(new.until) }, 0)
            }
            Some(old) if now < old.until => (old, new.units),
            old => (new, old.map_or(0, |old| old.units)),
        };
        self.allotment = Some(kept);
        dropped
    }

    /// Puts back what a call took and was denied. Returns how many units had to be dropped.
    pub(super) fn put_back(&mut self, spent: &Spent, now: u64) -> u64 {
        self.rate.used = self.rate.used.saturating_sub(spent.allotment.units);
        self.add(spent.allotment, now)
    }

    /// Records what the store answered to a call that it was asked at `asked_at`. `used` units were charged for callers.
    pub(super) fn learn(&mut self, status: Status, used: u64, asked_at: u64, now: u64) {
        self.known = Known { status, asked_at, answered_at: now, fresh: true };
        self.used_at = now;
        self.rate.count(used, now);
    }

    /// Records the answer to a refill that was to hold `size` units. Returns how many units had to be dropped.
    pub(super) fn land(&mut self, decision: &Decision, size: u64, asked_at: u64, now: u64) -> u64 {
        self.rate = Rate { used: 0, since: asked_at, size };
        let (status, charged_at) = (decision.statuses()[0], decision.decided_at());
        self.known = Known { status, asked_at, answered_at: now, fresh: true };
        match (status.units(), charged_at) {
            (0, _) | (_, None) => 0,
            (units, Some(charged_at)) => {
                let until = asked_at.saturating_add(life(&self.limit, micros(status.reset_after())));
                self.add(Allotment { units, charged_at, asked_at, until }, now)
            }
        }
    }

    /// Records that a refill failed. Until the store has answered a call, none waits for another.
    pub(super) fn failed(&mut self) {
        self.known.fresh = false;
    }

    /// How many units to hold for the next calls, of which the first costs `cost`: what the key uses in a tenth of a second, less
    /// as the limit or the end of the window comes near. Zero if it is not worth it.
    pub(super) fn wanted(&self, cost: u64, now: u64) -> u64 {
        let Known { status, asked_at, fresh, .. } = &self.known;
        // Zero if the window has ended: what was left in it says nothing about the next.
        let reset_after = asked_at.saturating_add(micros(status.reset_after())).saturating_sub(now);
        if !fresh || now.saturating_sub(*asked_at) >= AGE {
            return 0;
        }
        let ahead = AHEAD.min(life(&self.limit, reset_after));
        let by_rate = self.rate.per(ahead, now).min(self.rate.size.saturating_mul(2));
        let wanted = by_rate.min(status.remaining() / PART);
        if wanted >= LEAST.max(cost.saturating_mul(2)) { wanted } else { 0 }
    }

    /// Takes out what may not be spent any more, or what would spoil what is taken next: units that are nearly too old.
    pub(super) fn outdated(&mut self, now: u64) -> Option<Unspent> {
        let ends_windows = self.limit.algorithm().ends_windows();
        let outdated = |allotment: &Allotment| {
            let half = allotment.asked_at + (allotment.until - allotment.asked_at) / 2;
            now >= if ends_windows { allotment.until } else { half }
        };
        self.allotment.filter(outdated)?;
        self.unspent()
    }

    /// Takes out what may not be spent any more.
    pub(super) fn ended(&mut self, now: u64) -> Option<Unspent> {
        self.allotment.filter(|allotment| now >= allotment.until)?;
        self.unspent()
    }

    /// Takes out all units.
    pub(super) fn unspent(&mut self) -> Option<Unspent> {
        let Allotment { units, charged_at, .. } = self.allotment.take().filter(|allotment| allotment.units > 0)?;
        Some(Unspent { name: Arc::clone(&self.name), limit: self.limit.clone(), units, charged_at })
    }
}

impl Rate {
    /// Counts units. A rate of long ago is forgotten.
    fn count(&mut self, units: u64, now: u64) {
        if now.saturating_sub(self.since) > 4 * AHEAD {
            (self.used, self.since) = (self.per(AHEAD, now), now - AHEAD);
        }
        self.used = self.used.saturating_add(units);
    }

    /// The units used in `span`.
    fn per(&self, span: u64, now: u64) -> u64 {
        let passed = now.saturating_sub(self.since).max(1);
        let used = u128::from(self.used) * u128::from(span) / u128::from(passed);
        u64::try_from(used).unwrap_or(u64::MAX)
    }
}
