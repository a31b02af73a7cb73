//! The embedded store: states in this process, sharded to reduce lock contention.

mod builder;
mod bytes;
mod funds;
mod listing;
mod overrides;
pub(super) mod print;
mod recorded;
pub(super) mod saved;
mod shard;
mod table;
#[cfg(test)]
mod tests;

use std::task::{Context, Waker};

use super::{Store, StoreError};
use crate::algorithm::{Algorithm, EncodedState};
use crate::call::{Call, Effect, Settlement, Taking, Verb, fund};
use crate::check::{Check, Cost};
use crate::clock::{Clock, Timestamp};
use crate::counter::{CounterError, CounterName, CounterOp, CounterValue, Counters};
use crate::decision::{Decision, Source, Status};
use crate::hold::{Hold, HoldState, Holds, Refused, Reservation, Resolution, Resolve, Resolved, Turn, Work};
use crate::key::Key;
use crate::request::Request;
use crate::sync::{Mutex, MutexGuard};
use overrides::Kept;
use print::{Factors, Print};
use shard::{Mode, Part, Record, Remembered, Shard, Step, no_room};

/// Keeps states in this process. It needs no thread: it removes expired states as it works. It never holds more keys
/// than its capacity.
///
/// In memory a key is a 128-bit keyed hash: all keys have the same size, and no one outside can construct a collision.
#[derive(Debug)]
pub struct MemoryStore {
    shards: Box<[Padded]>,
    factors: Factors,
    clock: Clock,
    overrides: Mutex<Kept>,
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
        if shard.is_marked(print, check.limit.algorithm()) {
            drop(shard);
            return self.answer_any(&Call::of_distinct(Verb::Check, std::slice::from_ref(check)));
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
        let prints: Vec<Print> = call.checks().iter().map(|check| self.print(&check.key)).collect();
        let request = call.request().map(|request| (self.print_of(request), request));
        // Shards are locked in order of their index, so two calls cannot deadlock.
        let asked = prints.iter().chain(request.iter().map(|(print, _)| print));
        let mut order: Vec<usize> = asked.map(|print| self.shard_index(*print)).collect();
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
        let mut shards = Shards { order: &order, guards: &mut guards, count: self.shards.len(), looks: false };
        if let Some((print, _)) = request.filter(|_| call.verb().effect() != Effect::GivesBack)
            && let Some(answer) = shards.of(print).requests.recall(print, call, now)
        {
            return answer;
        }
        let call = &*call.at(now);
        let checks = call.checks();
        shards.open(call, &prints, micros);
        let (mut allowed, mut granted) = (true, None);
        let steps: Vec<Step> = match call.verb() {
            Verb::Check | Verb::Reserve => {
                let mut steps = shards.judge(checks, &prints, micros, Mode::Adopt);
                if call.verb() == Verb::Reserve {
                    shards.judge_hold(checks, &prints, micros, &mut steps);
                }
                let room =
                    request.is_none_or(|(print, _)| shards.of(print).has_room_for_an_answer(micros, checks.len()));
                if !room {
                    let status = no_room(checks[0].limit);
                    steps[0] = Step { overflowed: true, crowded: true, ..Step::of(status) };
                }
                let fits = |place: usize| steps[place].status.allowed();
                let settlement = if room { call.settle(fits) } else { call.clone().denied(true).settle(fits) };
                allowed = settlement.allowed();
                let left =
                    |(check, step): (&Check<'_>, &Step)| (check.mode(), check.pays_rest(), step.status.remaining());
                let left = fund::sums(checks.iter().zip(&steps).map(left));
                granted =
                    call.takes_at_most().map(|most| if allowed { Settlement::granted(most.get(), left) } else { 0 });
                let parts = funds::parts(checks, &steps, granted);
                let deadline =
                    call.reservation().filter(|_| allowed).map(|asked| (micros + asked.ttl_micros(), asked.id()));
                let ends_at = call.reservation().map_or(0, |asked| micros + asked.life_micros());
                for (at, check) in checks.iter().enumerate() {
                    let (fits, cost) = (steps[at].status.allowed(), Cost::new(parts[at]));
                    let (mode, cost) = match (settlement.taking(check.mode(), check.drains(), fits), cost) {
                        (Taking::Cost, Ok(cost)) => (Mode::Take, cost),
                        (Taking::Rest, _) if !steps[at].crowded => (Mode::Drain, check.part_of_fund().cost),
                        _ => continue,
                    };
                    steps[at] = match deadline {
                        Some((deadline, id)) if mode == Mode::Take => {
                            shards.of(prints[at]).hold(prints[at], check, micros, deadline, id)
                        }
                        _ => shards.step(prints[at], &check.cost(cost), micros, mode, 0),
                    };
                }
                shards.await_funds(checks, &prints, micros, &mut steps);
                if let Some((deadline, id)) = deadline {
                    let part = |(at, check): (usize, &Check<'_>)| Part {
                        policy: check.key.policy().to_owned(),
                        subject: check.key.written_subject(),
                        print: prints[at],
                        limit: check.limit.clone(),
                        terms: check.terms(),
                        reserved: steps[at].status.units(),
                        left: steps[at].status.units(),
                        settled: 0,
                        refunded: 0,
                        unpaid: 0,
                    };
                    let parts = checks.iter().enumerate().map(part).collect();
                    let mut record = Record {
                        state: HoldState::Open,
                        charged_at: micros,
                        deadline,
                        forget_at: 0,
                        attempt: 0,
                        turn: Turn::FIRST,
                        ends_at,
                        number: 0,
                        parts,
                    };
                    record.forget_after(deadline);
                    shards.of(prints[0]).holds.begin(id, record);
                }
                if let Some((print, request)) = request.filter(|_| allowed) {
                    let answer = Remembered {
                        forget_at: micros.saturating_add(request.kept_micros()),
                        fingerprint: *request.fingerprint(),
                        looked: shards.looks,
                        hold: call.reservation().map(Reservation::id),
                        decided_at: now,
                        source: source_of(&steps),
                        statuses: steps.iter().map(|step| step.status).collect(),
                    };
                    shards.of(print).requests.remember(print, answer);
                }
                steps
            }
            Verb::Peek => {
                let mut steps = shards.judge(checks, &prints, micros, Mode::Look);
                shards.await_funds(checks, &prints, micros, &mut steps);
                allowed = call.settle(|place| steps[place].status.allowed()).allowed();
                steps
            }
            Verb::Refund => {
                let steps = shards.refund(checks, &prints, micros);
                if let Some((print, request)) = request {
                    shards.of(print).requests.forget(print, request);
                }
                steps
            }
            Verb::Reset => {
                let mut reset = |at: usize, check: &Check<'_>| {
                    let existed = shards.of(prints[at]).reset_held(prints[at], check.limit.algorithm());
                    Step::of(Status::untouched(check.limit).with_units(u64::from(existed)))
                };
                checks.iter().enumerate().map(|(at, check)| reset(at, check)).collect()
            }
        };
        let source = source_of(&steps);
        let seen = |(step, check): (Step, &Check<'_>)| step.status.seen_by(check.pays_rest(), check.is_hopeless());
        Decision::new(allowed, steps.into_iter().zip(checks).map(seen).collect(), source, now).with_granted(granted)
    }

    /// Settles, extends or cancels a hold.
    pub(crate) fn resolve_now(&self, resolution: &Resolution<'_>) -> Resolved {
        let hold = resolution.hold;
        let places: Vec<(Print, Algorithm)> =
            hold.places().map(|(key, algorithm)| (self.print(&key), algorithm)).collect();
        let mut order: Vec<usize> = places.iter().map(|(print, _)| self.shard_index(*print)).collect();
        order.sort_unstable();
        order.dedup();
        let now = self.clock.now();
        let mut guards: Vec<MutexGuard<'_, Shard>> = order.iter().map(|&home| lock(&self.shards[home])).collect();
        let latest = guards.iter().map(|shard| shard.latest()).max().unwrap_or(now);
        let now = self.in_order(now, latest);
        guards.iter_mut().for_each(|shard| shard.decides_at(now));
        let mut shards = Shards { order: &order, guards: &mut guards, count: self.shards.len(), looks: false };
        shards.resolve(resolution, &places, now)
    }

    /// The open holds of the state of a check with their deadlines, as a shared store would keep them.
    pub fn encoded_holds(&self, check: &Check<'_>) -> Vec<(u64, Vec<u8>)> {
        let print = self.print(&check.key);
        lock(self.shard_of(print)).encoded_holds(print, check.limit.algorithm())
    }

    /// A copy with the same states, on the same clock.
    pub(crate) fn copy(&self) -> Self {
        let shards = self.shards.iter().map(|shard| Padded(Mutex::new(lock(shard).clone())));
        let (shards, factors) = (shards.collect(), self.factors.clone());
        Self { shards, factors, clock: self.clock.clone(), overrides: Mutex::new(self.overrides.lock().clone()) }
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

    // A call of it would be a tenth of a check.
    #[inline(always)]
    fn print(&self, key: &Key<'_>) -> Print {
        self.factors.print(key.policy().as_bytes(), key.subject())
    }

    /// That of what is remembered of a call.
    fn print_of(&self, request: &Request) -> Print {
        self.factors.print(b"", request.name_bytes())
    }

    /// What is remembered of a call with an id, as a shared store would keep it.
    pub fn encoded_answer(&self, request: &Request) -> Option<Vec<u8>> {
        let print = self.print_of(request);
        lock(self.shard_of(print)).requests.encoded(print)
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
    /// Whether the call looks at what is held of its states.
    looks: bool,
}

impl Shards<'_, '_> {
    /// The shard of a key.
    fn of(&mut self, print: Print) -> &mut Shard {
        let found = self.order.binary_search(&print.shard(self.count));
        &mut self.guards[found.expect("every shard of the call is locked")]
    }

    /// Prepares the states of a call. A check or a peek looks at holds only if the state of one of its checks is marked, or if one of
    /// them says what its limit grants to holds.
    fn open(&mut self, call: &Call<'_>, prints: &[Print], now: u64) {
        let checks = call.checks();
        let marked = |(check, print): (&Check<'_>, &Print)| self.of(*print).is_marked(*print, check.limit.algorithm());
        let usual = matches!(call.verb(), Verb::Check | Verb::Peek);
        let told = checks.iter().any(|check| check.holds().is_some());
        self.looks = !usual || told || checks.iter().zip(prints).any(marked);
        if !self.looks || call.verb() == Verb::Reset {
            return;
        }
        for (at, check) in checks.iter().enumerate() {
            let found =
                self.order.binary_search(&prints[at].shard(self.count)).expect("every shard of the call is locked");
            self.guards[found].open(prints[at], check.limit, now, now, call.verb() == Verb::Peek);
        }
    }

    /// Decides a check, after `earlier` others of its call.
    fn step(&mut self, print: Print, check: &Check<'_>, now: u64, mode: Mode, earlier: usize) -> Step {
        match self.looks {
            true => self.of(print).step_held(print, check, now, mode, earlier),
            false => self.of(print).step(print, check, now, mode, earlier),
        }
    }

    /// Judges whether what fits may also be held.
    fn judge_hold(&mut self, checks: &[Check<'_>], prints: &[Print], now: u64, steps: &mut [Step]) {
        for (at, check) in checks.iter().enumerate() {
            self.of(prints[at]).judge_hold(prints[at], check, now, &mut steps[at]);
        }
        if !self.of(prints[0]).has_room_for_a_hold(now, checks.len()) {
            steps[0].status = no_room(checks[0].limit);
        }
    }

    /// Judges each check on its own, without charging.
    fn judge(&mut self, checks: &[Check<'_>], prints: &[Print], now: u64, mode: Mode) -> Vec<Step> {
        let mut steps: Vec<Step> = Vec::with_capacity(checks.len());
        for (at, check) in checks.iter().enumerate() {
            // A payer is asked for what it may have alone: whether it is enough is seen when all of them have answered.
            let check = &check.part_of_fund();
            // Each earlier check of the call may add a key before this one does.
            let mut step = self.step(prints[at], check, now, mode, at);
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
                step.status = step.status.into_denied();
            }
            steps.push(step);
        }
        funds::judge(checks, &mut steps);
        steps
    }
}

impl Shards<'_, '_> {
    /// Resolves a hold whose states are all locked. Twin: `tallygate-redis/lua/resolve.lua`.
    fn resolve(&mut self, resolution: &Resolution<'_>, places: &[(Print, Algorithm)], now: Timestamp) -> Resolved {
        let (id, micros) = (resolution.hold.id(), now.as_micros());
        let Some(&(first, _)) = places.first() else { return Resolved::of_nothing(&resolution.resolve, now) };
        let same = |record: &&Record| {
            let parts = record.parts.iter().map(|part| (part.print, part.limit.algorithm().kind()));
            parts.eq(places.iter().map(|(print, algorithm)| (*print, algorithm.kind())))
        };
        let Some(mut record) = self.of(first).holds.record(id, micros).filter(same).cloned() else {
            return Resolved::unknown(now);
        };
        for part in &record.parts {
            self.of(part.print).open(part.print, &part.limit, record.charged_at, micros, true);
        }
        let repeated = record.attempt == resolution.attempt;
        let state = record.state_at(micros);
        if state != HoldState::Open || repeated {
            let answer = self.report(&record, state, now);
            return if repeated { answer } else { answer.unchanged() };
        }
        let next = resolution.resolve.next();
        if resolution.hold.turn() != record.turn && next != Some(record.turn) {
            return self.report(&record, state, now).refused(Refused::Renewed);
        }
        // What is in flight and has lost its place, because the state was reset, is not prolonged.
        let gone = |part: &Part| {
            let holds = part.reserved > 0 && part.limit.is_concurrency();
            holds && !self.of(part.print).is_open(id, &record, part)
        };
        if resolution.resolve.extends() && record.parts.iter().any(gone) {
            return self.report(&record, HoldState::Expired, now).unchanged();
        }
        let used = resolution.used();
        let charged = || record.parts.iter().filter(|part| part.reserved > 0 && !part.limit.is_concurrency());
        if resolution.resolve.takes_same()
            && charged().any(|part| charged().any(|other| part.reserved != other.reserved))
        {
            return self.report(&record, state, now).refused(Refused::DifferentUnits);
        }
        let overruns = |(part, used): (&Part, &Option<u64>)| {
            part.reserved > 0 && part.refuses_overruns() && used.is_some_and(|used| used > part.left)
        };
        if let Some(place) = record.parts.iter().zip(&used).position(overruns) {
            return self.report(&record, state, now).refused(Refused::Overrun(place));
        }
        let deadline = match &resolution.resolve {
            resolve if resolve.extends() => record.deadline.max((micros + resolve.extend_micros()).min(record.ends_at)),
            _ => record.deadline,
        };
        let mut parts = std::mem::take(&mut record.parts);
        for (part, used) in parts.iter_mut().zip(used).filter(|(part, _)| part.reserved > 0) {
            self.of(part.print).resolve_part((id, &record), part, micros, &resolution.resolve, used, deadline);
        }
        // To extend again does no harm. If it counted, a settlement that is repeated after it would not be known.
        let attempt = if resolution.resolve.extends() { record.attempt } else { resolution.attempt };
        record = Record { attempt, deadline, parts, turn: next.unwrap_or(record.turn), ..record };
        record.state = match &resolution.resolve {
            Resolve::Settle(_) => HoldState::Settled,
            Resolve::Cancel => HoldState::Cancelled,
            _ => HoldState::Open,
        };
        record.forget_after(if record.state == HoldState::Open { deadline } else { micros });
        let answer = self.report(&record, record.state, now);
        self.of(first).holds.remember(id, record);
        answer
    }

    fn report(&mut self, record: &Record, state: HoldState, now: Timestamp) -> Resolved {
        let parts = record.parts.iter().map(|part| self.of(part.print).report(part, state, now.as_micros()));
        Resolved::done(state, Timestamp::from_micros(record.deadline), now, parts.collect())
    }
}

fn source_of(steps: &[Step]) -> Source {
    if steps.iter().any(|step| step.overflowed) { Source::Overflow } else { Source::Store }
}

fn lock(shard: &Padded) -> MutexGuard<'_, Shard> {
    shard.0.lock()
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

impl Holds for MemoryStore {
    async fn resolve(&self, resolution: &Resolution<'_>) -> Result<Resolved, StoreError> {
        Ok(self.resolve_now(resolution))
    }

    fn cancel_soon(&self, hold: Hold) {
        self.resolve_now(&Resolution::new(&hold, Resolve::Cancel));
    }

    /// What waits for nothing but this store ends when it is polled first.
    fn finish(&self, mut work: Work) {
        let _ = work.as_mut().poll(&mut Context::from_waker(Waker::noop()));
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
