//! Repeats recent denials without asking the store.

#[cfg(test)]
mod tests;

use std::time::Duration;

use hashbrown::HashTable;

use super::memory::print::{Factors, Print};
use super::{Store, StoreError};
use crate::call::{Call, Effect, Verb};
use crate::check::Check;
use crate::clock::{Clock, Timestamp};
use crate::counter::{CounterError, CounterName, CounterOp, CounterValue, Counters};
use crate::decision::{Decision, Source, Status};
use crate::hold::{Hold, Holds, Resolution, Resolved, Work};
use crate::key::Key;
use crate::limit::Limit;
use crate::sync::Mutex;

/// A store that repeats a denial of `store` for as long as it holds, at most for a second by default.
///
/// A denied check holds until its `retry_after`, because a denied call charges nothing, and time alone gives no units
/// earlier. So a hot key that is over its limit costs the store one call a second, however often it is asked about.
///
/// The cache never allows anything. Refunds and resets through it take effect at once. Those that other processes make,
/// and a limit that another process has raised, take effect when the entry ends: at most the time that
/// [`at_most`](Self::at_most) sets too late. A policy can choose another time, or none:
/// [`Policy::with_cache_denials`](crate::policy::Policy::with_cache_denials).
///
/// What it answers has the source [`Source::DenyCache`]: `retry_after` counts down, and `remaining` is what was left when
/// the store answered. For a cost above the one that was denied, `retry_after` is a lower bound.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use tallygate::decision::Source;
/// use tallygate::store::DenyCache;
/// use tallygate::{Limiter, MemoryStore};
///
/// let api = Limiter::new(DenyCache::new(MemoryStore::new())).limit("api", "1/min")?;
/// for expected in [(true, Source::Store), (false, Source::Store), (false, Source::DenyCache)] {
///     let decision = api.check("user:42").await?;
///     assert_eq!((decision.allowed(), decision.source()), expected);
/// }
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct DenyCache<S> {
    store: S,
    clock: Clock,
    at_most: Duration,
    /// In each shard.
    capacity: usize,
    factors: Factors,
    shards: Box<[Mutex<Shard>]>,
}

#[derive(Debug, Default)]
struct Shard {
    entries: HashTable<Entry>,
    /// Changes with every refund and reset. What the store answered before one is not kept.
    generation: u64,
}

/// What the store last answered to a check of a denied call. Times are of the clock of the cache, in microseconds.
#[derive(Debug, Clone)]
struct Entry {
    print: Print,
    limit: Limit,
    cost: u64,
    status: Status,
    /// When the answer arrived. The status is as of then.
    answered_at: u64,
    /// Until when it may be repeated.
    until: u64,
    decided_at: Timestamp,
}

/// A question to the store, as far as its answer may be kept.
struct Pending {
    began: u64,
    /// Of the shard of each check.
    generations: Vec<u64>,
}

/// Drops the entries of a call when it ends, also if it is abandoned.
struct Dropping<'c, S> {
    cache: &'c DenyCache<S>,
    prints: Vec<Print>,
}

impl<S> Drop for Dropping<'_, S> {
    fn drop(&mut self) {
        self.cache.forget(&self.prints);
    }
}

const SHARDS: usize = 16;

impl<S> DenyCache<S> {
    /// Wraps `store`, with room for 10,000 entries of at most a second.
    pub fn new(store: S) -> Self {
        let shards = (0..SHARDS).map(|_| Mutex::new(Shard::default())).collect();
        let (clock, at_most) = (Clock::monotonic(), Duration::from_secs(1));
        Self { store, clock, at_most, capacity: 0, factors: Factors::random(), shards }.capacity(10_000)
    }

    /// Sets for how long a denial may be repeated, where its policy does not say. Zero is never.
    #[must_use]
    pub fn at_most(mut self, span: Duration) -> Self {
        self.at_most = span;
        self
    }

    /// Sets the most entries. Denials beyond are not kept.
    #[must_use]
    pub fn capacity(mut self, entries: usize) -> Self {
        self.capacity = entries.div_ceil(SHARDS).max(1);
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

    /// The number of entries, including those that have ended and are not yet removed.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().entries.len()).sum()
    }

    /// Whether it holds nothing.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
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

    /// For how long a denial of this check may be repeated, in microseconds.
    fn age(&self, check: &Check<'_>) -> u64 {
        let span = check.cache_denials().unwrap_or(self.at_most);
        u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
    }

    /// Whether the answer to a call may be repeated. A denied call must change nothing, so it must not drain.
    fn applies(&self, call: &Call<'_>) -> bool {
        let decides = call.verb().effect() != Effect::GivesBack && !call.is_denied();
        let drains = || call.checks().iter().any(Check::drains);
        // What is held may be given back at any time, and a limit that is about to change may be raised.
        let held = call.verb() == Verb::Reserve
            || call.checks().iter().any(|check| check.holds().is_some() || check.changes().is_some());
        // What is remembered under an id is an answer of the store, and what several payers have together is not known of any one.
        let funded = call.checks().iter().any(Check::pays_rest);
        let decides = decides && !held && !funded && call.request().is_none();
        decides && call.checks().iter().any(|check| self.age(check) > 0) && !drains()
    }

    /// The denial of a call whose checks are all known, if it is still denied.
    fn repeat(&self, call: &Call<'_>) -> Option<Decision> {
        let now = self.now();
        let checks = call.checks();
        let known = |check: &Check<'_>| {
            let print = self.print(check);
            let shard = self.shard(print).lock();
            let entry = shard.entries.find(print.bucket_hash(), |entry| entry.print == print)?;
            entry.status_at(now, check).map(|status| (status, entry.decided_at))
        };
        let (mut statuses, mut decided_at) = (Vec::with_capacity(checks.len()), Timestamp::from_micros(0));
        for check in checks {
            let (status, at) = known(check)?;
            statuses.push(status);
            decided_at = decided_at.max(at);
        }
        // A denial that may not be repeated is reported next to one that may, and decides nothing.
        if call.settle(|place| statuses[place].allowed() || self.age(&checks[place]) == 0).allowed() {
            return None;
        }
        let denial = match statuses[..] {
            [status] => Decision::of_one(status, Source::DenyCache, decided_at),
            _ => Decision::new(false, statuses, Source::DenyCache, decided_at),
        };
        Some(denial.with_granted(call.takes_at_most().map(|_| 0)))
    }

    fn begin(&self, call: &Call<'_>) -> Pending {
        let generation = |check: &Check<'_>| {
            let print = self.print(check);
            let mut shard = self.shard(print).lock();
            let known = shard.entries.find(print.bucket_hash(), |entry| entry.print == print);
            if known.is_some_and(|entry| !entry.is_of(check.limit)) {
                // The state will be converted to the other limit.
                shard.forget(print);
            }
            shard.generation
        };
        Pending { began: self.now(), generations: call.checks().iter().map(generation).collect() }
    }

    /// Keeps the answer to a call that was denied, as of the instant before it was asked.
    #[cold]
    fn keep(&self, call: &Call<'_>, pending: &Pending, decision: &Decision) {
        let whole = |place: usize| decision.failure(place).is_none();
        // A peek leaves a state under other numbers as it is, and the next check has to convert it.
        let charges = call.verb().effect() == Effect::Charges;
        let plain = charges && decision.source() == Source::Store;
        let plain = plain && !decision.split() && (0..call.checks().len()).all(whole);
        let (Some(decided_at), true) = (decision.decided_at(), plain) else { return };
        let answered_at = self.now();
        let ages = call.checks().iter().zip(decision.statuses()).filter(|(_, status)| !status.allowed());
        let Some(age) = ages.map(|(check, _)| self.age(check)).max().filter(|&age| age > 0) else { return };
        for (at, (check, status)) in call.checks().iter().zip(decision.statuses()).enumerate() {
            let wait = status.retry_after().filter(|_| !status.allowed());
            let wait = wait.map_or(u64::MAX, |wait| u64::try_from(wait.as_micros()).unwrap_or(u64::MAX));
            // What may not be repeated on its own is kept for as long as the denial next to it.
            let own = self.age(check);
            let kept = if status.allowed() || own == 0 { age } else { own };
            let print = self.print(check);
            let entry = Entry {
                print,
                limit: check.limit.clone(),
                cost: if check.is_hopeless() { u64::MAX } else { check.cost.get() },
                status: status.with_units(0),
                answered_at,
                until: pending.began.saturating_add(wait.min(kept)),
                decided_at,
            };
            let mut shard = self.shard(print).lock();
            if shard.generation == pending.generations[at] {
                shard.insert(entry, answered_at, self.capacity);
            }
        }
    }

    fn forget(&self, prints: &[Print]) {
        for &print in prints {
            self.shard(print).lock().forget(print);
        }
    }

    fn dropping(&self, call: &Call<'_>) -> Dropping<'_, S> {
        Dropping { cache: self, prints: call.checks().iter().map(|check| self.print(check)).collect() }
    }

    /// For a hold that may give back: drops its entries now, and again when it is resolved.
    fn dropping_of(&self, hold: &Hold) -> Dropping<'_, S> {
        let print = |(key, _): (Key<'_>, _)| self.factors.print(key.policy().as_bytes(), key.subject());
        let prints: Vec<Print> = hold.places().map(print).collect();
        self.forget(&prints);
        Dropping { cache: self, prints }
    }

    /// For a call that gives back: drops its entries now, and again when it ends.
    fn drop_entries(&self, call: &Call<'_>) -> Option<Dropping<'_, S>> {
        let dropping = (call.verb().effect() == Effect::GivesBack).then(|| self.dropping(call))?;
        self.forget(&dropping.prints);
        Some(dropping)
    }
}

impl Entry {
    fn is_of(&self, limit: &Limit) -> bool {
        limit.is_same(&self.limit) || *limit == self.limit
    }

    /// What it says about a check now, if it says anything.
    fn status_at(&self, now: u64, check: &Check<'_>) -> Option<Status> {
        // More than what was denied is denied as well. What was allowed is known for that cost only.
        let cost = if check.is_hopeless() { u64::MAX } else { check.cost.get() };
        let same_cost = if self.status.allowed() { cost == self.cost } else { cost >= self.cost };
        let status = self.status.after(now.saturating_sub(self.answered_at));
        let status = if check.is_hopeless() { status.into_never() } else { status };
        (now < self.until && same_cost && self.is_of(check.limit)).then_some(status)
    }
}

impl Shard {
    fn forget(&mut self, print: Print) {
        self.generation += 1;
        if let Ok(entry) = self.entries.find_entry(print.bucket_hash(), |entry| entry.print == print) {
            entry.remove();
        }
    }

    fn insert(&mut self, entry: Entry, now: u64, capacity: usize) {
        let (print, hash) = (entry.print, entry.print.bucket_hash());
        if let Some(known) = self.entries.find_mut(hash, |known| known.print == print) {
            // The smaller of two denied costs says more, unless it has ended or is of another limit.
            let says_more = !known.status.allowed() && (entry.status.allowed() || known.cost < entry.cost);
            if !(says_more && now < known.until && known.limit == entry.limit) {
                *known = entry;
            }
            return;
        }
        if self.entries.len() >= capacity {
            self.entries.retain(|entry| now < entry.until);
        }
        if self.entries.len() < capacity {
            self.entries.insert_unique(hash, entry, |entry| entry.print.bucket_hash());
        }
    }
}

impl<S: Store> Store for DenyCache<S> {
    async fn call(&self, call: &Call<'_>) -> Result<Decision, StoreError> {
        if !self.applies(call) {
            let _dropping = self.drop_entries(call);
            return self.store.call(call).await;
        }
        if let Some(denial) = self.repeat(call) {
            return Ok(denial);
        }
        let pending = self.begin(call);
        // What it charges in one slot may deny others until it is given back, because of another slot.
        let mut given_back = (call.checks().len() > 1).then(|| self.dropping(call));
        let answer = self.store.call(call).await;
        if let Ok(decision) = &answer {
            if !decision.split() {
                given_back.iter_mut().for_each(|dropping| dropping.prints.clear());
            }
            if !decision.allowed() {
                self.keep(call, &pending, decision);
            }
        }
        answer
    }

    fn call_now(&self, call: &Call<'_>) -> Option<Result<Decision, StoreError>> {
        if !self.applies(call) {
            let _dropping = self.drop_entries(call);
            return self.store.call_now(call);
        }
        if let Some(denial) = self.repeat(call) {
            return Some(Ok(denial));
        }
        let pending = self.begin(call);
        let answer = self.store.call_now(call)?;
        if let Ok(decision) = &answer
            && !decision.allowed()
        {
            self.keep(call, &pending, decision);
        }
        Some(answer)
    }
}

impl<S: Holds> Holds for DenyCache<S> {
    async fn resolve(&self, resolution: &Resolution<'_>) -> Result<Resolved, StoreError> {
        let _dropping = self.dropping_of(resolution.hold);
        self.store.resolve(resolution).await
    }

    fn cancel_soon(&self, hold: Hold) {
        let _dropping = self.dropping_of(&hold);
        self.store.cancel_soon(hold);
    }

    fn finish(&self, work: Work) {
        self.store.finish(work);
    }
}

impl<S: Counters> Counters for DenyCache<S> {
    async fn count(&self, name: &CounterName, op: CounterOp) -> Result<CounterValue, CounterError> {
        self.store.count(name, op).await
    }
}
