//! The whole server under tools of others, under load and under hostile names.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod hostile;
mod openapi;
mod overload;
#[path = "../support/running.rs"]
mod running;
mod scraped;
#[path = "../serve/served.rs"]
#[expect(dead_code, reason = "shared with tests that use all of it")]
mod served;
