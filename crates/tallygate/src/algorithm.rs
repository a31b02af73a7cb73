//! The algorithms: one file each, with the same methods, and a twin of the same name in `tallygate-redis/lua`.
//!
//! They are pure: no clock, no store, and no allocation per decision, except for the two that keep lists. The exact
//! arithmetic and the reasons for it are in `docs/algorithms.md`.

use std::fmt;
use std::str::FromStr;

use crate::history::{Admitted, Span};
use crate::limit::{Limit, LimitError, Numbers};
use crate::words::nearest;

/// The list of algorithms. Everything that depends on the list is generated from it: `$then!` is called with one entry for
/// each kind of state, `module State "kind" { Variant "name" "what it does", .. }`. The module is the file here and the
/// script in `tallygate-redis/lua`; the kind is the two letters that end a state's key.
#[doc(hidden)] // At the root of the crate, where every exported macro appears. Its home is `tallygate::algorithm::algorithms`.
#[macro_export]
macro_rules! __algorithms {
    ($then:path) => {
        $then! {
            token_bucket TokenBucket "tb" { TokenBucket "token_bucket" "Refills evenly and holds at most the burst. GCRA is the same limit in another notation." }
            fixed_window FixedWindow "fw" {
                FixedWindow "fixed_window" "Counts per window of the wall clock. Admits up to twice the amount around a boundary.",
                FixedWindowFromFirstCall "fixed_window_from_first_call" "Counts per window started by the first call. Admits up to twice the amount around a boundary."
            }
            sliding_window SlidingWindow "sw" { SlidingWindow "sliding_window" "Counts per sub-window, the oldest in full. Never admits more than the amount in any window." }
            sliding_counter SlidingCounter "sc" { SlidingCounter "sliding_counter" "Weights the previous window by its remaining share; an estimate." }
            sliding_log SlidingLog "sl" { SlidingLog "sliding_log" "Keeps each admitted call; exact." }
            calendar_window CalendarWindow "cw" { CalendarWindow "calendar_window" "Counts per day, week, month or year of a time zone. Admits up to twice the amount around a boundary." }
            concurrency Concurrency "cc" { Concurrency "concurrency" "Counts what is in flight: units are reserved, and come back when their hold ends." }
        }
    };
}

macro_rules! define {
    ($($module:ident $state:ident $kind:literal { $($variant:ident $name:literal $doc:literal),+ })+) => {
        /// How a limit is enforced. `docs/guarantees.md` lists what each algorithm promises.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum Algorithm { $($(#[doc = $doc] $variant,)+)+ }

        impl Algorithm {
            /// All algorithms.
            pub const ALL: &[Self] = &[$($(Self::$variant),+),+];

            /// The algorithms that charge a check, and give units back as time passes: all but `concurrency`, whose units are only reserved.
            pub const OVER_TIME: &[Self] = {
                let Some((Self::Concurrency, over_time)) = Self::ALL.split_last() else { panic!("concurrency is the last of the list") };
                over_time
            };

            /// The name used in files, JSON, metrics and logs: `token_bucket`, `sliding_log`, …
            pub fn name(self) -> &'static str {
                match self { $($(Self::$variant => $name,)+)+ }
            }

            /// The two letters that end the key of a state, so that two algorithms never share a key.
            pub const fn kind(self) -> &'static str {
                match self { $($(Self::$variant)|+ => $kind,)+ }
            }

            /// Computes the numbers of the algorithm, for an amount above zero.
            pub(crate) fn complete(self, plain: Numbers) -> Result<Numbers, LimitError> {
                match self { $($(Self::$variant)|+ => $module::$state::complete(plain),)+ }
            }

            /// The numbers that the script of the algorithm reads, in order.
            pub(crate) fn script_numbers(self, n: &Numbers) -> Vec<u64> {
                match self { $($(Self::$variant)|+ => $module::$state::script_numbers(n),)+ }
            }

            /// For each admitted call, in order of time, the worst span that ends with it.
            pub(crate) fn worst_spans(self, n: &Numbers, calls: &[Admitted]) -> Vec<Span> {
                match self { $($(Self::$variant)|+ => $module::$state::worst_spans(n, calls),)+ }
            }
        }
    };
}

#[doc(inline)]
pub use crate::__algorithms as algorithms;

// Not by the macro: formatters and tools that follow modules do not look into it.
pub(crate) mod calendar_window;
pub(crate) mod concurrency;
pub(crate) mod fixed_window;
pub(crate) mod sliding_counter;
pub(crate) mod sliding_log;
pub(crate) mod sliding_window;
pub(crate) mod token_bucket;

algorithms!(define);

impl Algorithm {
    /// Whether it counts in windows that end: what was used in one does not count in the next.
    pub(crate) fn ends_windows(self) -> bool {
        matches!(self, Self::FixedWindow | Self::FixedWindowFromFirstCall | Self::CalendarWindow)
    }
}

impl Default for Algorithm {
    fn default() -> Self {
        Self::TokenBucket
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The error of an unknown algorithm name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown algorithm `{name}`{}: use one of {}", did_you_mean(.name), names())]
#[non_exhaustive]
pub struct UnknownAlgorithm {
    /// The unknown name.
    pub name: String,
}

impl FromStr for Algorithm {
    type Err = UnknownAlgorithm;

    fn from_str(name: &str) -> Result<Self, UnknownAlgorithm> {
        let found = Self::ALL.iter().copied().find(|algorithm| algorithm.name() == name);
        found.ok_or_else(|| UnknownAlgorithm { name: name.to_owned() })
    }
}

fn names() -> String {
    let names: Vec<String> = Algorithm::ALL.iter().map(|algorithm| format!("`{algorithm}`")).collect();
    names.join(", ")
}

fn did_you_mean(name: &str) -> String {
    if name.eq_ignore_ascii_case("gcra") {
        return " (it is the same limit as `token_bucket`)".to_owned();
    }
    let words: Vec<&str> = Algorithm::ALL.iter().map(|algorithm| algorithm.name()).chain(["burst"]).collect();
    match nearest(name, &words) {
        Some(word) => format!(" (did you mean `{word}`?)"),
        None => String::new(),
    }
}

/// What a store keeps for one key. Instants and durations are in microseconds.
///
/// Only `charge`, `refund` and `adopt` change a state: a denied check must leave no trace. If the clock is behind the
/// state's own time, that time is used: nothing is regained until the clock has caught up.
pub(crate) trait State: Sized + Clone {
    /// Computes the numbers of a limit whose amount is above zero.
    fn complete(plain: Numbers) -> Result<Numbers, LimitError>;

    /// The numbers that the twin reads, in order.
    fn script_numbers(n: &Numbers) -> Vec<u64>;

    /// The guarantee: for each admitted call, in order of time, the worst span that ends with it.
    fn worst_spans(n: &Numbers, calls: &[Admitted]) -> Vec<Span>;

    /// The state of an unused key.
    fn fresh(limit: &Limit, now: u64) -> Self;

    /// Whether this state can be used under `limit` at `now`: it was written with the same numbers, and the clock has
    /// not stepped back by more than a full refill. Up to `owed` units may be used beyond the capacity.
    fn fits(&self, limit: &Limit, now: u64, owed: u64) -> bool;

    /// Converts a state that does not fit: what was used stays used, as of now, up to `owed` units beyond the capacity.
    fn adopt(&mut self, limit: &Limit, now: u64, owed: u64);

    /// Units that can be charged now.
    fn free(&self, limit: &Limit, now: u64) -> u64;

    /// How many units are used beyond the capacity.
    fn debt(&self, limit: &Limit, now: u64) -> u64;

    /// How far any count of this state is above the capacity: the debt, or more where a count weighs less than it is.
    fn excess(&self, limit: &Limit, now: u64) -> u64 {
        self.debt(limit, now)
    }

    /// Units are held until `deadline`: what is charged counts at least until then.
    fn lasts_until(&mut self, deadline: u64) {
        let _ = deadline;
    }

    /// When the window began of which units are used. Zero for algorithms without windows that end.
    fn window_start(&self) -> u64 {
        0
    }

    /// Charges `cost`, even beyond the capacity, but at most to twice the capacity.
    fn charge(&mut self, limit: &Limit, now: u64, cost: u64);

    /// Gives back up to `units` of what was charged at `charged_at`. Returns how many were given back. If none were,
    /// nothing changes.
    fn refund(&mut self, limit: &Limit, now: u64, charged_at: u64, units: u64) -> u64;

    /// When `cost`, which is not free now, will be free.
    fn retry_at(&self, limit: &Limit, now: u64, cost: u64) -> u64;

    /// From when on this state equals a fresh one.
    fn reset_at(&self, limit: &Limit, now: u64) -> u64;

    /// The limit this state was written under.
    fn limit(&self) -> &Limit;

    /// The state as stored by its twin.
    fn encode(&self) -> EncodedState;

    /// The state of [`EncodedState::into_bytes`], which was written under `limit`. `None` if the bytes are not one.
    fn decode(limit: &Limit, encoded: &[u8]) -> Option<Self>;
}

/// A state exactly as a shared store keeps it. Each form carries a version, so that an instance can detect a newer one.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum EncodedState {
    /// A string; its first byte is the version.
    Packed(Vec<u8>),
    /// The members of a sorted set with their scores, in order; the last byte of each is the version. The score of a mark is
    /// [`u64::MAX`], which stands for infinity.
    SortedSet(Vec<(u64, Vec<u8>)>),
}

/// The version of the stored forms that this code reads and writes.
const VERSION: u8 = 1;
/// The version of a state of which units are held or owed.
const MARKED: u8 = 2;

impl EncodedState {
    /// The same state, of which units are held or owed: a packed one ends with its head and has another version, and a log has one
    /// more member.
    pub(crate) fn marked(mut self, head: &[u8]) -> Self {
        match &mut self {
            Self::Packed(packed) => {
                packed[0] = MARKED;
                packed.extend(head);
            }
            Self::SortedSet(members) => members.push((u64::MAX, [head, &[MARKED]].concat())),
        }
        self
    }

    /// One string: of a sorted set, the members one after the other. Those of a log have one length, and contain their scores.
    pub(crate) fn into_bytes(self) -> Vec<u8> {
        match self {
            Self::Packed(packed) => packed,
            Self::SortedSet(members) => members.into_iter().flat_map(|(_, member)| member).collect(),
        }
    }

    /// A version followed by little-endian doubles.
    fn doubles(numbers: &[u64]) -> Self {
        let mut packed = vec![VERSION];
        numbers.iter().for_each(|number| packed.extend_from_slice(&double(*number)));
        Self::Packed(packed)
    }
}

/// A number as scripts read it. No number of a limit, a cost or a state is above 2^53.
#[expect(clippy::cast_precision_loss, reason = "below 2^53")]
pub(crate) fn double(number: u64) -> [u8; 8] {
    (number as f64).to_le_bytes()
}

/// The number that a double stands for.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked just before")]
fn number(double: [u8; 8]) -> Option<u64> {
    const LARGEST: f64 = 9_007_199_254_740_992.0;
    let number = f64::from_le_bytes(double);
    (number.fract() == 0.0 && (0.0..=LARGEST).contains(&number)).then_some(number as u64)
}

/// The numbers of [`EncodedState::doubles`].
fn numbers<const N: usize>(encoded: &[u8]) -> Option<[u64; N]> {
    let (doubles, rest) = encoded.strip_prefix(&[VERSION])?.as_chunks::<8>();
    let doubles: &[[u8; 8]; N] = doubles.try_into().ok().filter(|_| rest.is_empty())?;
    let mut numbers = [0; N];
    for (place, double) in numbers.iter_mut().zip(doubles) {
        *place = number(*double)?;
    }
    Some(numbers)
}
