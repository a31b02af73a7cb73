//! Rate limits, quotas and atomic counters, correct under any concurrency.
//!
//! A [`Limit`] says how much is allowed per window, a [`Key`] says for whom, and a [`Limiter`] answers with a
//! [`Decision`]. State is kept in a [`Store`]: the embedded [`MemoryStore`] of this crate, or Redis and Valkey through
//! `tallygate-redis`. Both give the same answers, to the unit.
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

mod call;
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

pub use algorithm::{Algorithm, EncodedState, UnknownAlgorithm};
pub use call::{Call, Effect, InvalidCheck, Settlement, Taking, Verb};
pub use check::{Check, Cost, CostError, Receipt};
pub use clock::{Clock, ManualClock, Timestamp};
pub use counter::{Counter, CounterError, CounterName, CounterOp, CounterValue};
pub use decision::{Decision, Source, Status};
pub use descriptor::Descriptor;
pub use few::Few;
pub use key::{Key, KeyError, decode_policy};
pub use limit::{Limit, LimitBuilder, LimitError};
pub use limiter::{CheckError, Limiter, NotReady};
pub use policy::{
    Action, Ask, Domain, Evaluation, Excess, Match, Matcher, Mode, OnError, Outcome, Pattern, Policy, PolicyError,
    PolicySet, PolicySetError, Reason, Rule, Rules, Ruling, Stores, Subject, Verdict, Want,
};
pub use store::{Counters, MemoryStore, MemoryStoreBuilder, Overflow, Store, StoreError};

#[doc(hidden)]
pub use limit::Numbers;
#[doc(hidden)]
pub use words::{UnknownWord, edit_distance, nearest};
