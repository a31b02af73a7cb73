//! The embedded store: every property, and what only it promises: bounded memory, sweeping, threads.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on must stop")]

#[path = "memory/capacity.rs"]
mod capacity;
#[path = "memory/counters.rs"]
mod counters;
#[path = "memory/threads.rs"]
mod threads;

use std::sync::atomic::{AtomicU64, Ordering};

use tallygate::{
    Algorithm, Check, Cost, CounterError, CounterName, CounterOp, CounterValue, Decision, Key, Limit, Limiter,
    ManualClock, MemoryStore, Store, StoreError, Timestamp, history,
};
use tallygate_testkit::conformance::{self, MemoryRig};
use tallygate_testkit::traces::Trace;

const START: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);

#[tokio::test]
async fn every_property_holds_while_it_sweeps() {
    for seed in 0..4 {
        conformance::all(&MemoryRig::swept(), seed, 20_000).await;
    }
}

#[tokio::test]
async fn every_property_holds_without_sweeping() {
    for seed in 100..104 {
        conformance::all(&MemoryRig::unswept(), seed, 20_000).await;
    }
}

/// Forgetting is invisible: over any trace in which time goes on.
#[tokio::test]
async fn swept_and_unswept_are_twins() {
    for (seed, algorithm) in (7..).zip(Algorithm::ALL) {
        let clock = ManualClock::new(START);
        let swept = Limiter::new(MemoryStore::builder().clock(clock.clone()).build());
        let unswept = Limiter::new(MemoryStore::builder().clock(clock.clone()).without_sweep().build());
        let ran = Trace::new(algorithm, seed, 150_000).run((&swept, &clock), (&unswept, &clock)).await;
        let denied = ran.unwrap_or_else(|mismatch| panic!("{mismatch}"));
        assert!(denied > 15_000, "only {denied} calls of {algorithm} were denied: the trace tries too little");
        let (kept, all) = (swept.store().len(), unswept.store().len());
        assert!(kept < all / 2, "{kept} of {all} keys were kept: too little was swept to tell");
    }
}

/// Two stores that hash differently and keep different clocks, which also step back: nothing but the calls counts.
#[tokio::test]
async fn two_stores_are_twins_when_time_steps_back() {
    for (seed, algorithm) in (70..).zip(Algorithm::ALL) {
        let clocks = [ManualClock::new(START), ManualClock::new(START)];
        let [one, two] = clocks
            .each_ref()
            .map(|clock| Limiter::new(MemoryStore::builder().clock(clock.clone()).without_sweep().build()));
        let trace = Trace::new(algorithm, seed, 100_000).backward();
        let ran = trace.run((&one, &clocks[0]), (&two, &clocks[1])).await;
        assert!(ran.unwrap_or_else(|mismatch| panic!("{mismatch}")) > 10_000);
    }
}

/// A store that forgets to charge one call in a thousand.
struct Careless {
    store: MemoryStore,
    calls: AtomicU64,
}

impl Store for Careless {
    async fn check(&self, checks: &[Check<'_>]) -> Result<Decision, StoreError> {
        match self.calls.fetch_add(1, Ordering::Relaxed) % 1000 {
            999 => self.store.peek(checks).await,
            _ => self.store.check(checks).await,
        }
    }

    async fn peek(&self, checks: &[Check<'_>]) -> Result<Decision, StoreError> {
        self.store.peek(checks).await
    }

    async fn refund(&self, check: &Check<'_>, charged_at: Option<Timestamp>) -> Result<u64, StoreError> {
        self.store.refund(check, charged_at).await
    }

    async fn reset(&self, check: &Check<'_>) -> Result<bool, StoreError> {
        self.store.reset(check).await
    }

    async fn count(&self, name: &CounterName, op: CounterOp) -> Result<CounterValue, CounterError> {
        self.store.count(name, op).await
    }
}

/// The trace must be able to fail.
#[tokio::test]
async fn a_store_that_differs_is_found() {
    for (seed, algorithm) in (700..).zip(Algorithm::ALL) {
        let clock = ManualClock::new(START);
        let store = || MemoryStore::builder().clock(clock.clone()).without_sweep().build();
        let careless = Limiter::new(Careless { store: store(), calls: AtomicU64::new(0) });
        let trace = Trace::new(algorithm, seed, 100_000).backward();
        let mismatch = trace.run((&careless, &clock), (&Limiter::new(store()), &clock)).await.unwrap_err().to_string();
        assert!(mismatch.contains(algorithm.name()) && mismatch.contains("one: "), "{mismatch}");
    }
}

/// A log's running sums start over at 10^15: two calls of one instant stand astride that, and nobody gains by it.
#[test]
fn running_sums_start_over_unnoticed() {
    let half = Cost::new(500_000_000).unwrap();
    let limit: Limit = "1000000000/ms sliding_log".parse().unwrap();
    let clock = ManualClock::new(START);
    let limiter = Limiter::new(MemoryStore::builder().clock(clock.clone()).build());
    let check = Check::new(Key::new("p", "s").unwrap(), &limit);
    let mut records = Vec::new();
    for _ in 0..1_000_500 {
        for _ in 0..2 {
            records.push(history::Record::new(half, &limiter.check_now(check.cost(half)).unwrap()));
        }
        let full = limiter.check_now(check).unwrap();
        assert!(!full.allowed() && full.binding().retry_after() <= Some(limit.window()), "{full:?}");
        clock.advance(limit.window());
    }
    let report = history::bound(&limit, &records);
    assert!(report.holds(), "{}", report.violations[0]);
    assert!(report.admitted > 1_000_000_000_000_000);
    assert!(records.iter().filter(|record| !record.allowed).count() < 600, "more than an instant was lost");
}

/// Found when written: an instant beyond all time made the sum of it and a window overflow.
#[tokio::test]
async fn a_refund_of_a_charge_in_the_future_is_one_of_just_now() {
    for algorithm in Algorithm::ALL {
        let limit = Limit::per_hour(5).algorithm(algorithm).build().unwrap();
        let limiter = Limiter::new(MemoryStore::builder().clock(ManualClock::new(START)).build());
        let check = Check::new(Key::new("p", "s").unwrap(), &limit);
        limiter.check(check).await.unwrap();
        assert_eq!(limiter.refund(check, Some(Timestamp::from_micros(u64::MAX))).await.unwrap(), 1, "{limit}");
    }
}
