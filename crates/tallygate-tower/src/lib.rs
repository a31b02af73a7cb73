//! Rate limits as tower middleware, for axum, hyper, tonic and whatever else speaks `http`.
//!
//! ```
//! use tallygate_tower::{Caller, RateLimit, Rule};
//!
//! // Each caller's address, 100 calls a minute, on the embedded store.
//! let layer = RateLimit::per_client("100/min".parse()?);
//!
//! // Two limits, one decision: both are charged or none.
//! let layer = RateLimit::new()
//!     .rule(Rule::new("burst", "10/s burst 20".parse()?))
//!     .rule(Rule::new("daily", "5000/day".parse()?).by(Caller::header("x-api-key")));
//! # Ok::<(), tallygate::LimitError>(())
//! ```
//!
//! For many machines, give it a store they share: `.store(RedisStore::connect(url).await?)`, or
//! `.store(AnyStore::open(text).await?)` to choose by a line of text.

mod layer;
mod service;

mod decide;
mod settings;

mod caller;
mod request_view;
mod rule;

mod body;
mod future;
mod grpc;
mod refusal;

mod traps;

pub mod outbound;

pub use body::ResponseBody;
pub use caller::{Caller, ClientAddress};
pub use future::ResponseFuture;
pub use layer::RateLimit;
pub use refusal::Refusal;
pub use rule::Rule;
pub use service::RateLimited;

// Settings of this middleware are written in these words.
pub use tallygate::{Cost, Limit, Mode, OnError, Verdict};
pub use tallygate_http::{Dialect, ForwardedHeader, Prefixes, Trust, TrustedProxies};

/// The examples of the README, compiled and run. Here, because this crate's tests know all the crates they use.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
