//! The properties of every store, written once and run on memory, Redis, Valkey and a cluster.
//!
//! Each property takes a [`Rig`], a seed and a number of steps, and tries limits over their whole range for all
//! algorithms. If the store violates it, it panics with the seed, the limit and the last calls.

mod amends;
mod honesty;
mod oblivion;
mod rig;
mod scene;
mod sums;
mod time;

pub use amends::{live_limits_keep_what_was_used, mistakes_touch_nothing, refunds_stay_within_what_was_used};
pub use honesty::{honest_remaining, honest_wait};
pub use oblivion::{forgetting_is_invisible, refusal_is_free};
pub use rig::{MemoryRig, Rig};
pub use sums::{all_or_none, bound};
pub use time::backward_time;

use tallygate::{Algorithm, MemoryStore};

use crate::traces::{Opaque, Trace};

/// Property 1, twins: the store answers like an embedded store that never drops a state.
pub async fn twins<R: Rig>(rig: &R, seed: u64, steps: usize) {
    for &algorithm in Algorithm::ALL {
        let twin = MemoryStore::builder().clock(rig.clock().clone()).without_sweep().build();
        let trace = Trace::new(algorithm, seed, steps / Algorithm::ALL.len());
        let trace = if rig.forgets() { trace } else { trace.backward() };
        let ran = trace.run((&Opaque(&**rig.limiter().store()), rig.clock()), (&twin, rig.clock())).await;
        if let Err(mismatch) = ran {
            panic!("{mismatch}");
        }
    }
}

/// Property 9: after any calls, every key expires.
pub async fn every_key_expires<R: Rig>(rig: &R) {
    if let Err(immortal) = rig.every_key_expires().await {
        panic!("a key without a TTL: {immortal}");
    }
}

/// All properties, with `steps` steps each.
pub async fn all<R: Rig>(rig: &R, seed: u64, steps: usize) {
    twins(rig, seed, steps).await;
    bound(rig, seed, steps).await;
    honest_wait(rig, seed, steps).await;
    honest_remaining(rig, seed, steps).await;
    forgetting_is_invisible(rig, seed, steps).await;
    refusal_is_free(rig, seed, steps).await;
    all_or_none(rig, seed, steps).await;
    backward_time(rig, seed, steps).await;
    live_limits_keep_what_was_used(rig, seed, steps).await;
    refunds_stay_within_what_was_used(rig, seed, steps).await;
    mistakes_touch_nothing(rig, seed, steps).await;
    every_key_expires(rig).await;
}
