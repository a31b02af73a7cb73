//! Rate limits, quotas and atomic counters, correct under any concurrency.
//!
//! A [`Limit`] says how much per how long; a [`Key`] says whose; a [`Limiter`] answers with a [`Decision`]. The states
//! live in a [`Store`]: the embedded [`MemoryStore`] of this crate, or Redis and Valkey through `tallygate-redis`, with
//! the same meaning to the unit.
//!
//! ```
//! use tallygate::{Check, Key, Limit, Limiter, MemoryStore};
//!
//! let limiter = Limiter::new(MemoryStore::new());
//! let limit: Limit = "10/s burst 50".parse()?;
//! let decision = limiter.check_now(Check::new(Key::new("api", "user:42")?, &limit))?;
//! assert!(decision.allowed());
//! assert_eq!(decision.binding().remaining(), 49);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod limiter;

mod check;
mod decision;
mod few;
mod key;
mod limit;

mod algorithm;
mod store;
mod sync;

mod descriptor;
mod policy;

mod words;

mod clock;
mod counter;
pub mod history;

pub use algorithm::{Algorithm, UnknownAlgorithm};
pub use check::{Check, Cost, CostError};
pub use clock::{Clock, ManualClock, Timestamp};
pub use counter::{Counter, CounterError, CounterName, CounterOp, CounterValue};
pub use decision::{Decision, Source, Status, Statuses};
pub use descriptor::Descriptor;
pub use few::Few;
pub use key::{Key, KeyError, decode_policy};
pub use limit::{Limit, LimitBuilder, LimitError};
pub use limiter::{CheckError, InvalidCheck, Limiter, MAX_CHECKS, NotReady, validate};
pub use policy::{
    Ask, Charge, Domain, Excess, Match, Matcher, Mode, OnError, Outcome, Pattern, Policy, PolicyError, PolicySet,
    PolicySetError, Reason, Rule, Rules, Ruling, Subject, UnknownWord, Verdict, Want,
};
pub use store::{MemoryStore, MemoryStoreBuilder, Overflow, Store, StoreError, at_once};

#[doc(hidden)]
pub use limit::Numbers;
#[doc(hidden)]
pub use words::{edit_distance, nearest};
