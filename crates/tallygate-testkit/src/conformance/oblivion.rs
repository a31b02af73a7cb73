//! What leaves no trace: dropped states and denied calls.

use super::Rig;
use super::scene::{Rounds, STEPS, Scene};
use crate::traces::micros;

/// Property 5: dropping a state at its expiry changes no later status. Two keys get the same calls; one of them is
/// reset whenever `reset_after` has passed.
pub async fn forgetting_is_invisible<R: Rig>(rig: &R, seed: u64, steps: usize) {
    for mut scene in Rounds::new(rig, "forgetting", seed, steps) {
        for _ in 0..STEPS / 4 {
            scene.stir(&["kept", "dropped"]).await;
            if scene.random.chance(30) {
                give_back(&mut scene).await;
            }
            if scene.random.chance(50) {
                continue;
            }
            let reset = micros(scene.peek("kept", 1).await.reset_after());
            let later = if scene.random.chance(50) { 0 } else { scene.random.spread(1, scene.window()) };
            if !scene.has_time_for(reset + later) {
                break;
            }
            scene.must(reset <= scene.full(), "reset_after is longer than a full refill");
            if reset > 0 {
                scene.advance(reset - 1);
                let before = scene.peek("kept", 1).await;
                scene.must(micros(before.reset_after()) == 1, "the reported reset_after changed");
                scene.advance(1);
            }
            scene.advance(later);
            let full = scene.peek("kept", 1).await;
            let fresh = scene.peek(&format!("fresh at {}", scene.now()), 1).await;
            scene.must(full == fresh, "after reset_after the key is not like a new one");
            scene.reset("dropped").await;
        }
    }
}

/// Gives some of the last units back to both keys, sometimes all of them.
async fn give_back<R: Rig>(scene: &mut Scene<'_, R>) {
    let capacity = scene.limit.capacity();
    let units = if scene.random.chance(40) { capacity } else { scene.random.spread(1, capacity) };
    let charged_at = scene.random.chance(50).then(|| scene.now());
    let given = scene.refund("kept", units, charged_at).await;
    scene.must(scene.refund("dropped", units, charged_at).await == given, "the keys are given back different units");
}

/// Property 6: a denied check changes no later status, and neither does a peek. Two keys get the same calls, but one of
/// them is also refused and peeked at.
pub async fn refusal_is_free<R: Rig>(rig: &R, seed: u64, steps: usize) {
    for mut scene in Rounds::new(rig, "refusal", seed, steps) {
        for _ in 0..STEPS / 4 {
            let left = scene.stir(&["refused", "spared"]).await.remaining();
            let before = scene.peek("refused", 1).await;
            for _ in 0..scene.random.between(0, 3) {
                let capacity = scene.limit.capacity();
                let cost = scene.random.between(left + 1, capacity.max(left + 1));
                if cost <= capacity {
                    scene.must(!scene.check("refused", cost).await.allowed(), "more is admitted than remained");
                }
                scene.peek("refused", scene.limit.capacity()).await;
            }
            scene.must(scene.peek("refused", 1).await == before, "a refusal or a peek left a trace");
        }
    }
}
