//! Rate limits, quotas and atomic counters, correct under any concurrency.
//!
//! ```
//! use tallygate::Limiter;
//!
//! let api = Limiter::default().limit("api", "10/s burst 50")?;
//! assert!(api.check_now("user:42")?.allowed());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A [`Limit`] says how much is allowed per window, a [`Key`] says for whom, and a [`Limiter`] answers with a
//! [`Decision`]. State is kept in a [`Store`]: the embedded [`MemoryStore`] of this crate, or Redis and Valkey through
//! `tallygate-redis`. Both give the same answers, to the unit.
//!
//! [`BoundLimit`] is one limit with a name, as above. For several limits in one decision, build [`Check`]s:
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use tallygate::{Check, Key, Limit, Limiter};
//!
//! let limiter = Limiter::default();
//! let (user, everyone): (Limit, Limit) = ("10/s burst 50".parse()?, "1000/s".parse()?);
//! let checks = [Check::new(Key::new("user", "42")?, &user), Check::new(Key::new("api", "all")?, &everyone)];
//! let decision = limiter.check_all(&checks).await?;
//! assert!(decision.allowed());
//! assert_eq!(decision.binding().remaining(), 49);
//! # Ok(()) }
//! ```
//!
//! | module | for |
//! |---|---|
//! | [`limiter`], [`limit`], [`key`], [`check`], [`decision`] | the front door: what is asked and answered |
//! | [`hold`] | units reserved now and settled later |
//! | [`request`] | ids of calls, so that they can be repeated |
//! | [`counter`] | atomic counters |
//! | [`live`] | overrides that are kept in the store, and obeyed by every instance |
//! | [`policy`] | named rules that match requests, as the server and the middleware use them |
//! | [`store`], [`call`], [`algorithm`] | writing a store, or a wrapper around one |
//! | [`clock`], [`history`] | tests: a manual clock, and proofs over recorded decisions |
//! | [`words`] | the closed sets of words of configuration files |

pub mod limiter;

pub mod check;
pub mod decision;
mod few;
pub mod hold;
pub mod key;
pub mod limit;
pub mod request;

pub mod algorithm;
pub mod call;
pub mod store;
mod sync;

pub mod live;
pub mod policy;

pub mod words;

pub mod clock;
pub mod counter;
pub mod history;

pub use algorithm::Algorithm;
pub use check::{Check, Cost};
pub use counter::Counter;
pub use decision::{Decision, Status};
pub use key::Key;
pub use limit::Limit;
pub use limiter::{BoundLimit, CheckError, Limiter};
pub use store::{MemoryStore, Store, StoreError};
