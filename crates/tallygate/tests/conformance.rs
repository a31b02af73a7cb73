//! The properties of every store, with and without sweeping.

use tallygate::clock::ManualClock;
use tallygate::{Algorithm, MemoryStore};
use tallygate_testkit::conformance::{self, MemoryRig};
use tallygate_testkit::traces::{Opaque, Trace};

use crate::START;

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

/// Dropping expired states is invisible, over any trace in which time moves forward.
#[tokio::test]
async fn swept_and_unswept_are_twins() {
    for (seed, &algorithm) in (7..).zip(Algorithm::OVER_TIME) {
        let clock = ManualClock::new(START);
        let swept = MemoryStore::builder().clock(clock.clone()).build();
        let unswept = MemoryStore::builder().clock(clock.clone()).without_sweep().build();
        let ran = Trace::new(algorithm, seed, 150_000).run((&Opaque(&swept), &clock), (&unswept, &clock)).await;
        let denied = ran.unwrap_or_else(|mismatch| panic!("{mismatch}"));
        assert!(denied > 15_000, "only {denied} calls of {algorithm} were denied: the trace tries too little");
        let (kept, all) = (swept.len(), unswept.len());
        assert!(kept < all / 2, "{kept} of {all} keys were kept: too little was swept to tell");
    }
}

/// Two stores with different hashes and different clocks, which also step back: only the calls matter.
#[tokio::test]
async fn two_stores_are_twins_when_time_steps_back() {
    for (seed, &algorithm) in (70..).zip(Algorithm::OVER_TIME) {
        let clocks = [ManualClock::new(START), ManualClock::new(START)];
        let store = |clock: &ManualClock| MemoryStore::builder().clock(clock.clone()).without_sweep().build();
        let [one, two] = clocks.each_ref().map(store);
        let trace = Trace::new(algorithm, seed, 100_000).backward();
        let ran = trace.run((&one, &clocks[0]), (&two, &clocks[1])).await;
        assert!(ran.unwrap_or_else(|mismatch| panic!("{mismatch}")) > 10_000);
    }
}
