//! Reported waits and remainders are exact.

use super::Rig;
use super::scene::{Rounds, STEPS};
use crate::traces::micros;

/// Property 3: admitted exactly at `retry_after`, denied a microsecond before, and the reported instant does not
/// change.
pub async fn honest_wait<R: Rig>(rig: &R, seed: u64, steps: usize) {
    for mut scene in Rounds::new(rig, "honest_wait", seed, steps) {
        for _ in 0..STEPS / 2 {
            let left = scene.stir(&["s"]).await.remaining();
            if left == scene.limit.capacity() {
                continue;
            }
            let (least, most) = (left + 1, scene.limit.capacity());
            let cost = if scene.random.chance(50) { least } else { scene.random.between(least, most) };
            let denied = scene.check("s", cost).await;
            scene.must(!denied.allowed(), "more is admitted than remained");
            let wait = micros(denied.retry_after().unwrap_or_default());
            scene.must(wait > 0, "a denied call reports no wait");
            scene.must(wait <= scene.full(), "the wait is longer than a full refill");
            if !scene.has_time_for(wait) {
                break;
            }
            let (start, part) = (scene.now(), scene.random.spread(1, wait));
            scene.set(start + part.min(wait - 1));
            let later = scene.check("s", cost).await;
            scene.must(!later.allowed(), "admitted before retry_after");
            scene.must(
                scene.now() + micros(later.retry_after().unwrap_or_default()) == start + wait,
                "the reported instant changed",
            );
            scene.set(start + wait - 1);
            scene.must(!scene.check("s", cost).await.allowed(), "admitted a microsecond before retry_after");
            scene.set(start + wait);
            scene.must(scene.check("s", cost).await.allowed(), "denied at retry_after");
        }
    }
}

/// Property 4: exactly `remaining` more units fit at the same instant.
pub async fn honest_remaining<R: Rig>(rig: &R, seed: u64, steps: usize) {
    for mut scene in Rounds::new(rig, "honest_remaining", seed, steps) {
        for _ in 0..STEPS / 4 {
            let mut left = scene.stir(&["s"]).await.remaining();
            scene.must(left <= scene.limit.capacity(), "more remains than the capacity");
            scene.must(left == scene.peek("s", 1).await.remaining(), "a peek says otherwise");
            let mut calls = scene.random.between(1, 4);
            while left > 0 {
                let cost = if calls == 1 { left } else { scene.random.between(1, left) };
                let status = scene.check("s", cost).await;
                scene.must(status.allowed(), "what remained is refused");
                scene.must(status.remaining() == left - cost, "`remaining` does not fall by the cost");
                left -= cost;
                calls = calls.saturating_sub(1).max(1);
            }
            let over = scene.check("s", 1).await;
            scene.must(!over.allowed() && over.remaining() == 0, "more than remained is admitted");
        }
    }
}
