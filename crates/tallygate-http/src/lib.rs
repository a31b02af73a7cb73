//! What the HTTP edges of Tallygate share: response headers, problem bodies, the decision as JSON, and the client's address.
//!
//! No server and no framework, only `http` types. The server, the middleware and the forward-auth endpoint use it, so a
//! client gets the same answer from each of them.
//!
//! - [`Headers`] renders `RateLimit`, `RateLimit-Policy` and `Retry-After`, or an older [`Dialect`] of them;
//! - [`Problem`] is the body of a refusal (`application/problem+json`), with a stable [`ProblemCode`];
//! - [`Answer`] and [`decision_json`] are the object the server answers and the command line prints;
//! - [`verdict_headers`], [`verdict_problem`] and [`verdict_json`] do all three for a call under policies;
//! - [`sanitize`] makes untrusted text safe to print;
//! - [`llm`] reads what requests to language models may use, and what their responses used;
//! - [`client_address`] finds the client behind trusted proxies.
//!
//! ```
//! use http::HeaderMap;
//! use std::time::Duration;
//! use tallygate::{Check, Key, Limit, Limiter, MemoryStore};
//! use tallygate_http::{Dialect, Headers, Line};
//!
//! let limiter = Limiter::new(MemoryStore::new());
//! let limit: Limit = "100/min fixed_window".parse()?;
//! let decision = limiter.check_now(Check::new(Key::new("api", "user:42")?, &limit))?;
//!
//! let mut response = HeaderMap::new();
//! Headers {
//!     dialect: Dialect::Draft10,
//!     lines: &[Line { policy: "api", limit: &limit, status: &decision.binding() }],
//!     binding: Some(0),
//!     allowed: decision.allowed(),
//!     unix_now: Duration::ZERO,
//! }
//! .apply(&mut response);
//! assert_eq!(response["ratelimit-policy"], r#""api";q=100;w=60"#);
//! assert!(response["ratelimit"].to_str()?.starts_with(r#""api";r=99;t="#));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod address;
mod decision;
mod digest;
mod grpc;
mod headers;
mod hold;
mod hold_list;
pub mod llm;
mod problem;
pub mod sanitize;
mod verdict;

pub use address::{ForwardedHeader, InvalidProxies, Prefixes, Trust, TrustedProxies, client_address};
pub use decision::{Answer, NO_POLICY, Part, Payers, decision_answer, decision_json, millis_up};
pub use digest::digest;
pub use grpc::is_grpc;
pub use headers::{Dialect, Headers, Line, seconds_up};
pub use hold::{HoldAnswer, HoldOfPolicy, HoldUnits};
pub use hold_list::{ListedHold, ListedUnits};
pub use problem::{Problem, ProblemCode};
pub use verdict::{
    SOON, SOURCE_HEADER, VerdictHeaders, verdict_answer, verdict_headers, verdict_json, verdict_problem, verdict_source,
};
