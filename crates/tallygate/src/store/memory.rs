//! The embedded store: states in this process, sharded to reduce lock contention.

pub(super) mod print;
mod shard;
mod table;
#[cfg(test)]
mod tests;

use super::{Store, StoreError};
use crate::algorithm::EncodedState;
use crate::call::{Call, Settlement, Taking, Verb};
use crate::check::{Check, Cost};
use crate::clock::{Clock, Timestamp};
use crate::counter::{CounterError, CounterName, CounterOp, CounterValue, Counters};
use crate::decision::{Decision, Source, Status};
use crate::key::Key;
use crate::sync::{Mutex, MutexGuard};
use print::{Factors, Print};
use shard::{Mode, Shard, Step, no_room};

/// Keeps states in this process. It needs no thread: it removes expired states as it works. It never holds more keys
/// than its capacity.
///
/// In memory a key is a 128-bit keyed hash: all keys have the same size, and no one outside can construct a collision.
#[derive(Debug)]
pub struct MemoryStore {
    shards: Box<[Padded]>,
    factors: Factors,
    clock: Clock,
}

/// A shard on its own cache lines, to avoid false sharing.
#[derive(Debug)]
#[repr(align(128))]
struct Padded(Mutex<Shard>);

/// What happens to new keys when the store is full of keys that still count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Overflow {
    /// They are denied.
    Deny,
    /// For each policy, new keys share this many states, chosen by a hash of the key. Some callers may be denied for
    /// what others used, but no state that still counts is dropped. A key that finds room later starts afresh.
    Shared(usize),
}

/// Builds a [`MemoryStore`].
#[derive(Debug, Clone)]
#[must_use = "call `.build()`"]
pub struct MemoryStoreBuilder {
    capacity: usize,
    overflow: Overflow,
    clock: Option<Clock>,
    sweep: bool,
}

impl MemoryStore {
    /// Creates a store for one million keys on the system clock.
    pub fn new() -> Self {
        Self::builder().build()
    }

    /// Starts a store with other settings.
    pub fn builder() -> MemoryStoreBuilder {
        MemoryStoreBuilder { capacity: 1_000_000, overflow: Overflow::Shared(1024), clock: None, sweep: true }
    }

    /// The current instant on the store's clock.
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// The number of states and counters, including expired ones that are not yet removed.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| lock(shard).len()).sum()
    }

    /// Whether the store holds nothing.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The state of a check as a shared store would keep it, if there is one.
    pub fn encoded_state(&self, check: &Check<'_>) -> Option<EncodedState> {
        let print = self.print(&check.key);
        lock(self.shard_of(print)).encoded(print, check.limit.algorithm())
    }

    #[inline(always)]
    pub(crate) fn answer(&self, call: &Call<'_>) -> Decision {
        match call.plain_check() {
            // A single check is charged if it fits, whatever its mode.
            Some(check) => self.charge_one(check),
            // Cloned so that the common call can stay in registers.
            None => self.answer_any(&call.clone()),
        }
    }

    /// The common call. Inlined into the function that returns the decision, because copies of it would stall on store
    /// forwarding.
    #[inline(always)]
    pub(crate) fn charge_one(&self, check: &Check<'_>) -> Decision {
        let print = self.print(&check.key);
        let (mut shard, now) = self.lock_at_now(print);
        if let Some(status) = shard.step_known(print, check, now.as_micros(), Mode::Take) {
            drop(shard);
            return Decision::of_one(status, Source::Store, now);
        }
        let step = shard.step_new(print, check, now.as_micros(), Mode::Take, 0);
        drop(shard);
        Decision::of_one(step.status, step.source(), now)
    }

    /// Follows a shared store that charged `units` and has `remaining` left: takes as much here, as far as there is any, and
    /// leaves no more. A second state knows how much it took for these units: no more than that is ever given back.
    pub(crate) fn follow(&self, check: &Check<'_>, units: u64, remaining: u64) {
        let print = self.print(&check.key);
        let (mut shard, now) = self.lock_at_now(print);
        let mut take = |print: Print, units: u64| {
            let (cost, mode) = Cost::new(units).map_or((Cost::ONE, Mode::Look), |cost| (cost, Mode::Take));
            shard.step(print, &check.cost(cost), now.as_micros(), mode, 0)
        };
        let seen = take(print, 0);
        let left = seen.status.remaining();
        let taken = units.min(left);
        if seen.overflowed {
            // Other keys are charged for what this one used, but not for what it has no more left.
            take(print, taken);
            return;
        }
        take(print, left - remaining.min(left - taken));
        let followed = print.followed();
        if !take(followed, 0).overflowed {
            take(followed, taken);
        }
    }

    /// Follows a shared store that gave units back. What this store charged by itself stays charged.
    pub(crate) fn follow_refund(&self, check: &Check<'_>) {
        let print = self.print(&check.key);
        let (mut shard, now) = self.lock_at_now(print);
        let (now, charged_at) = (now.as_micros(), check.charged_at().unwrap_or(now).as_micros());
        let given = shard.refund(print.followed(), check, now, charged_at);
        if let Ok(given) = Cost::new(given) {
            shard.refund(print, &check.cost(given), now, charged_at);
        }
    }

    /// Follows a shared store that dropped a state.
    pub(crate) fn follow_reset(&self, check: &Check<'_>) {
        let print = self.print(&check.key);
        let (mut shard, _) = self.lock_at_now(print);
        for print in [print, print.followed()] {
            shard.reset(print, check.limit.algorithm());
        }
    }

    /// Locks the shard of a key for a decision, and says at which instant it is made.
    #[inline(always)]
    fn lock_at_now(&self, print: Print) -> (MutexGuard<'_, Shard>, Timestamp) {
        let now = self.clock.now();
        let mut shard = lock(self.shard_of(print));
        let now = self.in_order(now, shard.latest());
        shard.decides_at(now);
        (shard, now)
    }

    #[inline(never)]
    fn answer_any(&self, call: &Call<'_>) -> Decision {
        let checks = call.checks();
        let prints: Vec<Print> = checks.iter().map(|check| self.print(&check.key)).collect();
        // Shards are locked in order of their index, so two calls cannot deadlock.
        let mut order: Vec<usize> = prints.iter().map(|print| self.shard_index(*print)).collect();
        order.sort_unstable();
        order.dedup();
        let now = self.clock.now();
        let mut guards: Vec<MutexGuard<'_, Shard>> = order.iter().map(|&home| lock(&self.shards[home])).collect();
        let latest = guards.iter().map(|shard| shard.latest()).max().unwrap_or(now);
        let now = self.in_order(now, latest);
        let micros = now.as_micros();
        for shard in &mut guards {
            shard.decides_at(now);
        }
        let mut shards = Shards { order: &order, guards: &mut guards, count: self.shards.len() };
        let (mut allowed, mut granted) = (true, None);
        let steps: Vec<Step> = match call.verb() {
            Verb::Check => {
                let mut steps = shards.judge(checks, &prints, micros, Mode::Adopt);
                let settlement = call.settle(|place| steps[place].status.allowed());
                allowed = settlement.allowed();
                let left = checks.iter().zip(&steps).map(|(check, step)| (check.mode(), step.status.remaining()));
                granted =
                    call.takes_at_most().map(|most| if allowed { Settlement::granted(most.get(), left) } else { 0 });
                for (at, check) in checks.iter().enumerate() {
                    let (fits, left) = (steps[at].status.allowed(), steps[at].status.remaining());
                    let cost = granted.map_or(Ok(check.cost), |granted| {
                        Cost::new(Settlement::part_of_grant(check.mode(), granted, left))
                    });
                    let (mode, cost) = match (settlement.taking(check.mode(), check.drains(), fits), cost) {
                        (Taking::Cost, Ok(cost)) => (Mode::Take, cost),
                        (Taking::Rest, _) if !steps[at].crowded => (Mode::Drain, check.cost),
                        _ => continue,
                    };
                    steps[at] = shards.of(prints[at]).step(prints[at], &check.cost(cost), micros, mode, 0);
                }
                steps
            }
            Verb::Peek => {
                let steps = shards.judge(checks, &prints, micros, Mode::Look);
                allowed = call.settle(|place| steps[place].status.allowed()).allowed();
                steps
            }
            Verb::Refund => {
                let mut refund = |at: usize, check: &Check<'_>| {
                    let charged_at = check.charged_at().map_or(micros, Timestamp::as_micros);
                    let given = shards.of(prints[at]).refund(prints[at], check, micros, charged_at);
                    let seen = shards.of(prints[at]).step(prints[at], &check.within_capacity(), micros, Mode::Look, 0);
                    Step { status: seen.status.into_refund(given), ..seen }
                };
                checks.iter().enumerate().map(|(at, check)| refund(at, check)).collect()
            }
            Verb::Reset => {
                let mut reset = |at: usize, check: &Check<'_>| {
                    let existed = shards.of(prints[at]).reset(prints[at], check.limit.algorithm());
                    Step::of(Status::untouched(check.limit).with_units(u64::from(existed)))
                };
                checks.iter().enumerate().map(|(at, check)| reset(at, check)).collect()
            }
        };
        let source = if steps.iter().any(|step| step.overflowed) { Source::Overflow } else { Source::Store };
        let hopeless = |(step, check): (Step, &Check<'_>)| match check.is_hopeless() {
            true => step.status.into_never(),
            false => step.status,
        };
        Decision::new(allowed, steps.into_iter().zip(checks).map(hopeless).collect(), source, now).with_granted(granted)
    }

    /// A copy with the same states, on the same clock.
    pub(crate) fn copy(&self) -> Self {
        let shards = self.shards.iter().map(|shard| Padded(Mutex::new(lock(shard).clone())));
        Self { shards: shards.collect(), factors: self.factors.clone(), clock: self.clock.clone() }
    }

    /// The clock is read before locking to keep the critical section short, so instants can arrive out of order. This
    /// restores the order in which decisions are made.
    #[inline(always)]
    fn in_order(&self, now: Timestamp, latest: Timestamp) -> Timestamp {
        // A manual clock is taken at its word.
        if now >= latest || !self.clock.runs() { now } else { self.out_of_order(now, latest) }
    }

    /// After a short wait for the lock, the latest instant is used. After a longer one, or if the clock was set back,
    /// only a new reading can tell which.
    #[cold]
    fn out_of_order(&self, now: Timestamp, latest: Timestamp) -> Timestamp {
        const MOMENT: u64 = 1_000_000;
        let set_back = |now: Timestamp| latest.as_micros().saturating_sub(now.as_micros()) >= MOMENT;
        let now = if set_back(now) { self.clock.now() } else { now };
        if set_back(now) { now } else { now.max(latest) }
    }

    #[inline]
    fn print(&self, key: &Key<'_>) -> Print {
        self.factors.print(key.policy().as_bytes(), key.subject())
    }

    fn shard_index(&self, print: Print) -> usize {
        print.shard(self.shards.len())
    }

    fn shard_of(&self, print: Print) -> &Padded {
        &self.shards[self.shard_index(print)]
    }
}

/// The locked shards of a call.
struct Shards<'s, 'g> {
    /// The indices of the locked shards, sorted.
    order: &'s [usize],
    guards: &'s mut [MutexGuard<'g, Shard>],
    /// The number of all shards.
    count: usize,
}

impl Shards<'_, '_> {
    /// The shard of a key.
    fn of(&mut self, print: Print) -> &mut Shard {
        let found = self.order.binary_search(&print.shard(self.count));
        &mut self.guards[found.expect("every shard of the call is locked")]
    }

    /// Judges each check on its own, without charging.
    fn judge(&mut self, checks: &[Check<'_>], prints: &[Print], now: u64, mode: Mode) -> Vec<Step> {
        let mut steps: Vec<Step> = Vec::with_capacity(checks.len());
        for (at, check) in checks.iter().enumerate() {
            // Each earlier check of the call may add a key before this one does.
            let mut step = self.of(prints[at]).step(prints[at], check, now, mode, at);
            // Two checks that were judged separately must not charge the same state.
            let same_state = |other: usize| {
                let same_table = checks[other].limit.algorithm().kind() == check.limit.algorithm().kind();
                let same_shard = prints[other].shard(self.count) == prints[at].shard(self.count);
                steps[other].shared == step.shared && same_shard && same_table
            };
            if step.shared.is_some() && (0..at).any(same_state) {
                (step.status, step.crowded) = (no_room(check.limit), true);
            }
            if check.is_hopeless() {
                step.status = step.status.into_never();
            }
            steps.push(step);
        }
        steps
    }
}

fn lock(shard: &Padded) -> MutexGuard<'_, Shard> {
    shard.0.lock()
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryStoreBuilder {
    const MOST_SHARDS: usize = 64;
    /// With fewer keys per shard, random imbalance would fill one shard long before the others.
    const KEYS_PER_SHARD: usize = 4096;

    /// Sets the maximum number of keys. Defaults to one million.
    pub fn capacity(mut self, keys: usize) -> Self {
        self.capacity = keys.max(1);
        self
    }

    /// Sets what happens beyond the capacity. Defaults to 1024 shared states for each policy.
    pub fn overflow(mut self, overflow: Overflow) -> Self {
        self.overflow = overflow;
        self
    }

    /// Sets the clock. Defaults to the system clock.
    pub fn clock(mut self, clock: impl Into<Clock>) -> Self {
        self.clock = Some(clock.into());
        self
    }

    /// Never drops a state. Memory grows with every key; for tests that compare with a store whose keys do not expire.
    pub fn without_sweep(mut self) -> Self {
        self.sweep = false;
        self
    }

    /// Builds the store.
    pub fn build(self) -> MemoryStore {
        let count = (self.capacity / Self::KEYS_PER_SHARD).clamp(1, Self::MOST_SHARDS);
        let count = if count.is_power_of_two() { count } else { count.next_power_of_two() / 2 };
        let shard = |index: usize| {
            let capacity = self.capacity / count + usize::from(index < self.capacity % count);
            let shared = match self.overflow {
                Overflow::Deny => 0,
                Overflow::Shared(states) => states.max(1).div_ceil(count),
            };
            Padded(Mutex::new(Shard::new(capacity, shared, self.sweep)))
        };
        MemoryStore {
            shards: (0..count).map(shard).collect(),
            factors: Factors::random(),
            clock: self.clock.unwrap_or_default(),
        }
    }
}

impl Store for MemoryStore {
    async fn call(&self, call: &Call<'_>) -> Result<Decision, StoreError> {
        Ok(self.answer(call))
    }

    #[inline(always)]
    fn call_now(&self, call: &Call<'_>) -> Option<Result<Decision, StoreError>> {
        Some(Ok(self.answer(call)))
    }
}

impl Counters for MemoryStore {
    async fn count(&self, name: &CounterName, op: CounterOp) -> Result<CounterValue, CounterError> {
        let print = self.factors.print(b"", name.as_str().as_bytes());
        let mut shard = lock(self.shard_of(print));
        let now = self.clock.now().as_micros();
        shard.count(print, op, now)
    }
}
