//! Rate limits as tower middleware, for axum, hyper, tonic and any other service over `http`.
//!
//! ```
//! use tallygate_tower::{Caller, RateLimit, Rule};
//!
//! // 100 calls a minute for each client address, on the embedded store.
//! let layer = RateLimit::per_client("100/min")?;
//!
//! // Two limits, one decision: both are charged or neither is.
//! let layer = RateLimit::new()
//!     .rule(Rule::new("burst", "10/s burst 20")?)
//!     .rule(Rule::new("daily", "5000/day")?.by(Caller::header("x-api-key")));
//! # Ok::<(), tallygate_tower::LimitError>(())
//! ```
//!
//! For several machines, give it a store they share: `.store(RedisStore::connect(url).await?)`, or
//! `.store(AnyStore::open(text).await?)` to choose the store by configuration.

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

mod reserve;

mod diagnostics;

pub mod outbound;

pub use body::{RefusalBody, ResponseBody};
pub use caller::{Caller, ClientAddress};
pub use future::ResponseFuture;
pub use layer::RateLimit;
pub use refusal::Refusal;
pub use reserve::{MeteredBody, Reserve, ReserveFuture, ReserveLimit, ReserveLimited, Reserved};
pub use rule::Rule;
pub use service::RateLimited;

// What the settings of this middleware are written in.
pub use tallygate::hold::{HoldTerms, OnAbandon, Overrun};
pub use tallygate::limit::{IntoLimit, LimitError};
pub use tallygate::policy::{Mode, OnError, Outcome, Verdict};
pub use tallygate::{Cost, Limit, MemoryStore};
pub use tallygate_http::llm;
pub use tallygate_http::{Dialect, ForwardedHeader, Prefixes, Trust, TrustedProxies};

/// The examples of the README and the guides, compiled and run. Here, because the tests of this crate depend on all crates they use.
#[cfg(doctest)]
mod documents {
    #[doc = include_str!("../../../README.md")]
    struct Readme;
    #[doc = include_str!("../../../docs/guide/quickstart.md")]
    struct QuickStart;
    #[doc = include_str!("../../../docs/guide/middleware.md")]
    struct Middleware;
    #[doc = include_str!("../../../docs/guide/llm-tokens.md")]
    struct LlmTokens;
    #[doc = include_str!("../../../docs/guide/recipes.md")]
    struct Recipes;
    #[doc = include_str!("../../../docs/guide/redis.md")]
    struct Redis;
    #[doc = include_str!("../../../docs/guide/from-governor.md")]
    struct FromGovernor;
    #[doc = include_str!("../../../docs/guide/from-tower-governor.md")]
    struct FromTowerGovernor;
    #[doc = include_str!("../../../crates/tallygate/README.md")]
    struct CrateLibrary;
    #[doc = include_str!("../../../crates/tallygate-redis/README.md")]
    struct CrateRedis;
    #[doc = include_str!("../../../crates/tallygate-tower/README.md")]
    struct CrateTower;
}
