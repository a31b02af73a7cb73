//! Looks for holes: random calls and random faults on real servers, and a checker that knows what was promised.
//!
//! A [`Schedule`] is chosen by a seed. A [`World`](world::World) is what it runs against: Redis or Valkey, Sentinels, a
//! cluster, a server process. The [nemesis](mod@nemesis) injects its faults while [callers](mod@caller) call, and [holders](mod@holder) reserve and settle. The
//! [checker](mod@checker) then compares the [history](mod@history) with `docs/guarantees.md`.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "test support: a broken fixture must stop the test")]
#![allow(clippy::disallowed_methods, reason = "it measures real processes, in real time")]
#![allow(clippy::missing_panics_doc, reason = "see above")]

pub mod caller;
pub mod checker;
pub mod detail;
pub mod drill;
pub mod fault;
pub mod grpc;
pub mod history;
pub mod holder;
pub mod minimise;
pub mod nemesis;
pub mod report;
pub mod round;
pub mod schedule;
pub mod served;
pub mod siege;
pub mod world;

pub use report::Report;
pub use schedule::{Schedule, WorldKind};
