//! Takes units of hot keys in advance, and spends them without asking the store.

mod filling;
mod hot;
mod pool;
mod refill;
mod shard;
mod spending;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::memory::print::{Factors, Print};
use super::{Store, StoreError};
use crate::call::{Call, Verb};
use crate::check::Check;
use crate::clock::Clock;
use crate::counter::{CounterError, CounterName, CounterOp, CounterValue, Counters};
use crate::decision::{Decision, Source};
use crate::hold::{Hold, Holds, Resolution, Resolved, Work};
use crate::policy::Mode;
use crate::sync::Mutex;
use filling::Step;
use pool::{Pool, Spent};
use shard::Shard;
use spending::Spending;

/// A store that takes units of hot keys from `store` in advance, and allows further calls without asking it.
///
/// Only checks that [opt in](Check::with_allotment) are answered so, and only those that enforce. All units were charged in
/// `store` before they are spent, so processes that share it never admit more than the limit in a window of `fixed_window` and
/// `fixed_window_from_first_call`: units are dropped before their window ends. Under other algorithms units may be spent up to a
/// second after they were charged, and never more than an eighth of the limit is held by one process;
/// `docs/guarantees.md` has the bounds.
///
/// A denial always comes from `store`. What is allowed without it has the source [`Source::Allotment`]: `remaining` is what was
/// left when the store last answered, plus what is held here. Others may have taken some of it.
///
/// An allotment is what the key has used in the last tenth of a second, and at most an eighth of what was left. As the limit comes
/// near it shrinks, and in the end each call asks the store. What is not spent within a second is given back by the next call
/// about the key, or by [`give_back`](Self::give_back).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use tallygate::decision::Source;
/// use tallygate::store::Allotments;
/// use tallygate::{Check, Key, Limit, Limiter, MemoryStore};
///
/// let limiter = Limiter::new(Allotments::new(MemoryStore::new()));
/// let limit: Limit = "1000/min fixed_window".parse()?;
/// let check = Check::new(Key::new("api", "everybody")?, &limit).with_allotment(true);
/// let (mut admitted, mut asked) = (0, 0);
/// for _ in 0..2000 {
///     let decision = limiter.check(check).await?;
///     admitted += u64::from(decision.allowed());
///     asked += u64::from(decision.allowed() && decision.source() == Source::Store);
/// }
/// assert_eq!(admitted, 1000);
/// assert!(asked < 500, "{asked}");
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Allotments<S> {
    store: Arc<S>,
    clock: Clock,
    factors: Factors,
    shards: Box<[Mutex<Shard>]>,
    /// Pools in each shard.
    capacity: usize,
    pools: AtomicU64,
    dropped: Arc<AtomicU64>,
}

const SHARDS: usize = 16;

/// Drops pools when a call ends, also if it is abandoned.
struct Forgetting<'a, S> {
    from: &'a Allotments<S>,
    prints: Vec<Print>,
}

impl<S> Forgetting<'_, S> {
    fn forget(&self) {
        for &print in &self.prints {
            let dropped = self.from.shard(print).lock().forget(print);
            self.from.count_dropped(dropped);
        }
    }
}

impl<S> Drop for Forgetting<'_, S> {
    fn drop(&mut self) {
        self.forget();
    }
}

impl<S> Allotments<S> {
    /// Wraps `store`, with room for 1,024 hot keys.
    pub fn new(store: S) -> Self {
        let shards = (0..SHARDS).map(|_| Mutex::new(Shard::default())).collect();
        let (pools, dropped) = (AtomicU64::new(0), Arc::default());
        let (clock, factors) = (Clock::monotonic(), Factors::random());
        Self { store: Arc::new(store), clock, factors, shards, capacity: 0, pools, dropped }.capacity(1024)
    }

    /// Sets how many keys can be hot. Units of others are not taken in advance.
    #[must_use]
    pub fn capacity(mut self, keys: usize) -> Self {
        self.capacity = keys.div_ceil(SHARDS).max(1);
        self
    }

    /// Sets the clock, for tests. Defaults to a monotonic one.
    #[must_use]
    pub fn clock(mut self, clock: impl Into<Clock>) -> Self {
        self.clock = clock.into();
        self
    }

    /// The wrapped store.
    pub fn store(&self) -> &S {
        &self.store
    }

    /// The number of keys that have been hot of late.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }

    /// Whether no key is hot.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The units that were taken from the store and not yet spent: what others could have had.
    pub fn units(&self) -> u64 {
        self.shards.iter().map(|shard| shard.lock().units()).sum()
    }

    /// How many units were neither spent nor given back: their window ended, the store did not take them back, or the limit was
    /// changed or reset. They stay charged until they stop counting.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    fn now(&self) -> u64 {
        self.clock.now().as_micros()
    }

    fn print(&self, check: &Check<'_>) -> Print {
        self.factors.print(check.key.policy().as_bytes(), check.key.subject())
    }

    fn shard(&self, print: Print) -> &Mutex<Shard> {
        &self.shards[print.shard(SHARDS)]
    }

    fn count_dropped(&self, units: u64) {
        self.dropped.fetch_add(units, Ordering::Relaxed);
    }

    /// Whether any check of the call may be answered without the store. A call that takes what is left asks for more than its cost.
    fn applies(call: &Call<'_>) -> bool {
        let charges = call.verb() == Verb::Check
            && !call.is_denied()
            && call.takes_at_most().is_none()
            && call.request().is_none();
        // Which of several payers pays is not known in advance.
        charges && call.checks().iter().any(opts_in) && !call.checks().iter().any(Check::pays_rest)
    }

    /// Takes the units of a check out of its pool, if it has as many.
    fn spend(&self, print: Print, check: &Check<'_>, now: u64) -> Option<Spent> {
        let mut shard = self.shard(print).lock();
        shard.find(print).filter(|pool| pool.is_of(check.limit))?.spend(check.cost.get(), now)
    }

    /// Puts back what a call has taken and was denied.
    fn put_back(&self, print: Print, spent: &Spent) {
        let now = self.now();
        let mut shard = self.shard(print).lock();
        let dropped = match shard.find(print).filter(|pool| pool.id == spent.id) {
            Some(pool) => pool.put_back(spent, now),
            None => spent.allotment.units,
        };
        self.count_dropped(dropped);
    }

    /// Records what the store answered to checks that opt in, and gives those that are asked about often a pool.
    fn learn<'c>(&self, checks: impl Iterator<Item = &'c Check<'c>>, decision: &Decision, asked_at: u64) {
        let now = self.now();
        for (place, check) in checks.enumerate().filter(|(_, check)| opts_in(check)) {
            if decision.source() != Source::Store || decision.failure(place).is_some() {
                continue;
            }
            let (status, print) = (decision.statuses()[place], self.print(check));
            let used = if decision.allowed() { status.units() } else { 0 };
            let mut shard = self.shard(print).lock();
            match shard.find(print) {
                Some(pool) if pool.is_of(check.limit) => pool.learn(status, used, asked_at, now),
                // Refunds under two limits would convert the state again and again.
                Some(_) => self.count_dropped(shard.forget(print)),
                None => {
                    if let Some(rate) = shard.hot(print, used, now) {
                        let id = self.pools.fetch_add(1, Ordering::Relaxed);
                        shard.insert(Pool::new(print, id, check, rate, (status, asked_at, now)), self.capacity, now);
                    }
                }
            }
        }
    }

    /// For a call that resets: drops its pools now, and again when it ends, so that nothing from before is spent after it.
    fn forgetting(&self, call: &Call<'_>) -> Option<Forgetting<'_, S>> {
        let resets = call.verb() == Verb::Reset;
        let forgetting = resets.then(|| Forgetting {
            from: self,
            prints: call.checks().iter().map(|check| self.print(check)).collect(),
        })?;
        forgetting.forget();
        Some(forgetting)
    }

    /// Counts the units that are held here as left, in the answer of the store.
    fn with_held(&self, call: &Call<'_>, decision: Decision) -> Decision {
        let funded = call.checks().iter().any(Check::pays_rest);
        if !matches!(call.verb(), Verb::Check | Verb::Peek) || funded || !call.checks().iter().any(opts_in) {
            return decision;
        }
        let now = self.now();
        let held = |check: &Check<'_>| {
            let print = self.print(check);
            let mut shard = self.shard(print).lock();
            let pool = shard.find(print).filter(|pool| opts_in(check) && pool.is_of(check.limit));
            pool.map_or(0, |pool| pool.spendable(now))
        };
        let held: Vec<u64> = call.checks().iter().map(held).collect();
        if held.iter().all(|&units| units == 0) {
            return decision;
        }
        spending::with_held(call, decision, &held)
    }
}

/// Whether a check may be answered from a pool: it enforces, and is allowed or denied as a whole.
fn opts_in(check: &Check<'_>) -> bool {
    check.allotment() && check.mode() == Mode::Enforce && check.is_plain()
}

impl<S: Store + 'static> Store for Allotments<S> {
    async fn call(&self, call: &Call<'_>) -> Result<Decision, StoreError> {
        if !Self::applies(call) {
            let _forgetting = self.forgetting(call);
            return Ok(self.with_held(call, self.store.call(call).await?));
        }
        let mut spending = Spending::new(self);
        for (place, check) in call.checks().iter().enumerate().filter(|(_, check)| opts_in(check)) {
            let print = self.print(check);
            match self.step(print, check, call.deadline()) {
                Step::Spent(spent) if call.checks().len() == 1 => return Ok(spent.decision()),
                Step::Spent(spent) => spending.add(place, print, spent),
                Step::Wait(refill) => {
                    self.wait(refill).await;
                    // Not again: a call waits for two answers at most.
                    if let Some(spent) = self.spend(print, check, self.now()) {
                        spending.add(place, print, spent);
                    }
                }
                Step::Ask => {}
            }
        }
        let (rest, asked_at) = (spending.rest(call), self.now());
        match &rest[..] {
            [] => Ok(spending.decision()),
            rest => {
                let decision = self.store.call(&call.about(rest)).await?;
                Ok(spending.settle(call, rest, decision, asked_at))
            }
        }
    }

    fn call_now(&self, call: &Call<'_>) -> Option<Result<Decision, StoreError>> {
        if !Self::applies(call) {
            let _forgetting = self.forgetting(call);
            return self.store.call_now(call).map(|answer| Ok(self.with_held(call, answer?)));
        }
        let mut spending = Spending::new(self);
        for (place, check) in call.checks().iter().enumerate().filter(|(_, check)| opts_in(check)) {
            let print = self.print(check);
            match self.step_now(print, check) {
                Some(spent) if call.checks().len() == 1 => return Some(Ok(spent.decision())),
                Some(spent) => spending.add(place, print, spent),
                None => {}
            }
        }
        let (rest, asked_at) = (spending.rest(call), self.now());
        match &rest[..] {
            [] => Some(Ok(spending.decision())),
            rest => {
                let answer = self.store.call_now(&call.about(rest))?;
                Some(answer.map(|decision| spending.settle(call, rest, decision, asked_at)))
            }
        }
    }
}

/// What a hold gives back is the store's. What was taken in advance stays where it is.
impl<S: Holds + 'static> Holds for Allotments<S> {
    async fn resolve(&self, resolution: &Resolution<'_>) -> Result<Resolved, StoreError> {
        self.store.resolve(resolution).await
    }

    fn cancel_soon(&self, hold: Hold) {
        self.store.cancel_soon(hold);
    }

    fn finish(&self, work: Work) {
        self.store.finish(work);
    }
}

impl<S: Counters> Counters for Allotments<S> {
    async fn count(&self, name: &CounterName, op: CounterOp) -> Result<CounterValue, CounterError> {
        self.store.count(name, op).await
    }
}
