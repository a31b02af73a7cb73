//! Units reserved now and settled later, on the embedded store.

mod ends;
mod listing;
mod model;
mod overruns;

use std::time::Duration;

use tallygate::check::Receipt;
use tallygate::clock::{ManualClock, Timestamp};
use tallygate::hold::{Hold, HoldPart, HoldState, HoldTerms, Resolved, Units};
use tallygate::limiter::HoldGuard;
use tallygate::{Algorithm, Check, Cost, Key, Limit, Limiter, MemoryStore, Status};

use crate::START;

/// A limiter on a manual clock.
fn limiter() -> (Limiter<MemoryStore>, ManualClock) {
    let clock = ManualClock::new(START);
    (Limiter::new(MemoryStore::builder().clock(clock.clone()).build()), clock)
}

fn key(subject: &str) -> Key<'_> {
    Key::new("tokens", subject).unwrap()
}

fn units(units: u64) -> Cost {
    Cost::new(units).unwrap()
}

/// Ten units in an hour, under each algorithm. No hour ends within a test.
fn limits() -> impl Iterator<Item = Limit> {
    let limit = |&algorithm| Limit::builder(10, Duration::from_secs(3600)).algorithm(algorithm).build().unwrap();
    Algorithm::OVER_TIME.iter().map(limit)
}

async fn reserve(limiter: &Limiter<MemoryStore>, check: Check<'_>, cost: u64, seconds: u64) -> Hold {
    let reserved = limiter.reserve(&[check.cost(units(cost))], Duration::from_secs(seconds)).await.unwrap();
    reserved.hold.map(HoldGuard::into_hold).expect("it is allowed")
}

async fn status(limiter: &Limiter<MemoryStore>, check: Check<'_>) -> Status {
    limiter.peek(check).await.unwrap().binding()
}

/// What is left, held and owed.
async fn numbers(limiter: &Limiter<MemoryStore>, check: Check<'_>) -> [u64; 3] {
    let status = status(limiter, check).await;
    [status.remaining(), status.held(), status.debt()]
}
