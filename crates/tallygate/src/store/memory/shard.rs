//! The states under one lock: finds the state of a check, lets its algorithm decide, and bounds the number of keys.

use super::print::Print;
use super::table::{Expires, Table};
use crate::algorithm::{Algorithm, EncodedState, State};
use crate::check::Check;
use crate::clock::Timestamp;
use crate::counter::{CounterError, CounterOp, CounterValue};
use crate::decision::{Source, Status};
use crate::limit::Limit;
use crate::store::StoreError;

/// What a step may change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// Nothing.
    Look,
    /// Only a state that was written with other numbers.
    Adopt,
    /// Like `Adopt`, and charges the cost if it is free.
    Take,
    /// Like `Adopt`, and if the cost is not free, charges what is left.
    Drain,
}

/// The result of one check.
#[derive(Debug, Clone, Copy)]
pub(super) struct Step {
    pub(super) status: Status,
    pub(super) overflowed: bool,
    /// The shared state that was used, if any.
    pub(super) shared: Option<Print>,
    /// Another check of the call uses the same shared state.
    pub(super) crowded: bool,
}

impl Step {
    pub(super) fn of(status: Status) -> Self {
        Self { status, overflowed: false, shared: None, crowded: false }
    }

    pub(super) fn source(&self) -> Source {
        if self.overflowed { Source::Overflow } else { Source::Store }
    }
}

/// However small the store, the shared states of this many policies have room.
const POLICIES: usize = 64;

/// The answer to a new key when there is no room for it.
pub(super) fn no_room(limit: &Limit) -> Status {
    Status::from_parts(limit, false, 0, limit.numbers().full, limit.numbers().full)
}

/// Defines a shard with one table for each kind of state, and the lookup of an algorithm's table.
macro_rules! tables {
    ($($module:ident $state:ident $kind:literal { $($variant:ident $name:literal $doc:literal),+ })+) => {
        #[derive(Debug, Clone)]
        pub(super) struct Shard {
            $($module: Table<crate::algorithm::$module::$state>,)+
            counters: Table<Number>,
            pub(super) holds: Holds,
            pub(super) requests: Requests,
            bounds: Bounds,
            /// The latest instant of a decision.
            latest: Timestamp,
        }

        impl Shard {
            pub(super) fn new(keys: usize, shared: usize, sweep: bool) -> Self {
                Self {
                    $($module: Table::default(),)+
                    counters: Table::default(),
                    holds: Holds::default(),
                    requests: Requests::default(),
                    bounds: Bounds { keys, shared, sweep },
                    latest: Timestamp::from_micros(0),
                }
            }

            pub(super) fn len(&self) -> usize {
                self.counters.len() $(+ self.$module.len())+
            }

            /// The number of keys that have their own state or counter.
            fn own(&self) -> usize {
                self.counters.own() + self.holds.len() + self.requests.len() $(+ self.$module.own())+
            }

            /// Makes room for a new key by removing expired keys of any kind.
            fn make_room(&mut self, now: u64) {
                const BUCKETS: usize = 32;
                $(self.$module.sweep(now, BUCKETS);)+
                self.counters.sweep(now, BUCKETS);
                self.drop_ended(now);
                self.requests.drop_ended(now);
            }
        }

        /// Runs `$body` with `$table` bound to the table of the algorithm.
        macro_rules! with_table {
            ($shard:expr, $algorithm:expr, |$table:ident| $body:expr) => {
                match $algorithm {
                    $($(Algorithm::$variant)|+ => {
                        let $table = &mut $shard.$module;
                        $body
                    })+
                }
            };
        }
    };
}

#[derive(Debug, Clone)]
struct Bounds {
    /// The maximum number of states and counters in this shard.
    keys: usize,
    /// The number of additional shared states for each policy. Zero denies keys that do not fit.
    shared: usize,
    sweep: bool,
}

#[derive(Debug, Clone)]
struct Number {
    value: CounterValue,
    expires_at: Option<u64>,
}

impl Expires for Number {
    fn expired(&self, now: u64) -> bool {
        self.expires_at.is_some_and(|at| at <= now)
    }
}

impl<S: State> Expires for S {
    fn expired(&self, now: u64) -> bool {
        self.reset_at(self.limit(), now) <= now
    }
}

crate::algorithm::algorithms!(tables);

// Here, because it uses the macro that the line above defines.
mod holds;
mod requests;
mod saved;
pub(super) use holds::{Holds, Part, Record};
pub(super) use requests::{Remembered, Requests};
pub(super) use saved::{FORMAT, home};

impl Shard {
    #[inline(always)]
    pub(super) fn latest(&self) -> Timestamp {
        self.latest
    }

    #[inline(always)]
    pub(super) fn decides_at(&mut self, now: Timestamp) {
        self.latest = now;
    }

    /// Decides one check. `earlier` checks of the same call may each add a key before this one does.
    pub(super) fn step(&mut self, print: Print, check: &Check<'_>, now: u64, mode: Mode, earlier: usize) -> Step {
        match self.step_known(print, check, now, mode) {
            Some(status) => Step::of(status),
            None => self.step_new(print, check, now, mode, earlier),
        }
    }

    /// Decides a check whose key has a state. Inlined down to the arithmetic: a status returned through memory would
    /// stall on store forwarding.
    #[inline(always)]
    pub(super) fn step_known(&mut self, print: Print, check: &Check<'_>, now: u64, mode: Mode) -> Option<Status> {
        let sweep = self.bounds.sweep;
        with_table!(self, check.limit.algorithm(), |table| {
            if sweep && mode != Mode::Look {
                table.sweep_sometimes(now);
            }
            table.get_mut(print).map(|state| decide_known(state, check, now, mode, 0))
        })
    }

    /// Decides a check whose key has no state, as [`step_known`](Self::step_known) has just found.
    #[cold]
    pub(super) fn step_new(&mut self, print: Print, check: &Check<'_>, now: u64, mode: Mode, earlier: usize) -> Step {
        if self.bounds.sweep && mode != Mode::Look {
            with_table!(self, check.limit.algorithm(), |table| table.sweep(now, 4));
            if self.own() + earlier >= self.bounds.keys {
                self.make_room(now);
            }
        }
        let overflowed = self.own() + earlier >= self.bounds.keys;
        if overflowed && self.bounds.shared == 0 {
            return Step { overflowed, ..Step::of(no_room(check.limit)) };
        }
        let shared = overflowed.then(|| print.shared(check.key.policy(), self.bounds.shared));
        let print = shared.unwrap_or(print);
        // Callers may choose policy names too, so the number of shared states is bounded as well.
        let most = self.bounds.keys.max(POLICIES * self.bounds.shared);
        if shared.is_some() && self.len() - self.own() + earlier >= most {
            let known = with_table!(self, check.limit.algorithm(), |table| table.get(print).is_some());
            if !known {
                return Step { overflowed, ..Step::of(no_room(check.limit)) };
            }
        }
        let status = with_table!(self, check.limit.algorithm(), |table| match table.get_mut(print) {
            Some(state) => decide_known(state, check, now, mode, 0),
            None => step_unknown(table, print, check, now, mode),
        });
        // By this key, a refund would not find what a shared state was charged, but later perhaps a state of its own.
        let status = if overflowed { status.with_units(0) } else { status };
        Step { overflowed, shared, ..Step::of(status) }
    }

    pub(super) fn refund(&mut self, print: Print, check: &Check<'_>, now: u64, charged_at: u64) -> u64 {
        with_table!(self, check.limit.algorithm(), |table| {
            let Some(state) = table.get_mut(print) else {
                return 0;
            };
            if !state.fits(check.limit, now, 0) {
                state.adopt(check.limit, now, 0);
            }
            state.refund(check.limit, now, charged_at, check.cost.get())
        })
    }

    pub(super) fn encoded(&mut self, print: Print, algorithm: Algorithm) -> Option<EncodedState> {
        with_table!(self, algorithm, |table| match table.get(print.marked()) {
            Some(state) => Some(state.encode().marked(&self.holds.encoded_head(print, algorithm))),
            None => table.get(print).map(State::encode),
        })
    }

    pub(super) fn reset(&mut self, print: Print, algorithm: Algorithm) -> bool {
        with_table!(self, algorithm, |table| table.remove(print).is_some())
    }

    pub(super) fn count(&mut self, print: Print, op: CounterOp, now: u64) -> Result<CounterValue, CounterError> {
        if self.bounds.sweep {
            self.counters.sweep(now, 2);
        }
        let found = self.counters.get(print).filter(|number| !number.expired(now));
        let (value, expires_at) = found.map_or((None, None), |number| (Some(number.value), number.expires_at));
        let before = value.unwrap_or(CounterValue::Integer(0));
        let (after, ttl) = match op {
            CounterOp::Get => return Ok(before),
            CounterOp::Delete => {
                self.counters.remove(print);
                return Ok(before);
            }
            CounterOp::Add { delta, ttl } => (before.add(delta)?, ttl),
            CounterOp::AddFloat { delta, ttl } => (before.add_float(delta)?, ttl),
        };
        let created = value.is_none();
        // One that has expired still has its place.
        let new = self.counters.get(print).is_none();
        if new && self.bounds.sweep && self.own() >= self.bounds.keys {
            self.make_room(now);
        }
        if new && self.own() >= self.bounds.keys {
            return Err(CounterError::Store(StoreError::refused(
                "the memory store is full".to_owned(),
                "raise its capacity, or let counters expire".to_owned(),
            )));
        }
        let ttl = ttl.map(|ttl| u64::try_from(ttl.as_micros()).unwrap_or(u64::MAX));
        let expires_at = if created { ttl.map(|ttl| now.saturating_add(ttl)) } else { expires_at };
        self.counters.insert(print, Number { value: after, expires_at });
        Ok(after)
    }
}

#[inline(always)]
fn decide_known<S: State>(state: &mut S, check: &Check<'_>, now: u64, mode: Mode, owed: u64) -> Status {
    if !state.fits(check.limit, now, owed) {
        if mode == Mode::Look {
            let mut adopted = state.clone();
            adopted.adopt(check.limit, now, owed);
            return decide(&mut adopted, check, now, mode);
        }
        state.adopt(check.limit, now, owed);
    }
    decide(state, check, now, mode)
}

fn step_unknown<S: State>(table: &mut Table<S>, print: Print, check: &Check<'_>, now: u64, mode: Mode) -> Status {
    let mut state = S::fresh(check.limit, now);
    let status = decide(&mut state, check, now, mode);
    if matches!(mode, Mode::Take | Mode::Drain) {
        table.insert(print, state);
    }
    status
}

#[inline(always)]
fn decide<S: State>(state: &mut S, check: &Check<'_>, now: u64, mode: Mode) -> Status {
    let (limit, cost) = (check.limit, check.cost.get());
    let free = state.free(limit, now);
    let fits = free >= cost;
    let (allowed, taken) = match mode {
        Mode::Take if fits => {
            state.charge(limit, now, cost);
            (true, cost)
        }
        Mode::Drain => {
            let rest = free.min(cost);
            if rest > 0 {
                state.charge(limit, now, rest);
            }
            // A drained check is still denied.
            (false, rest)
        }
        _ => (fits, 0),
    };
    let retry_after = if allowed { 0 } else { state.retry_at(limit, now, cost) - now };
    let waits = (retry_after, state.reset_at(limit, now) - now);
    Status::computed(limit, allowed, free - taken, taken, waits)
}
