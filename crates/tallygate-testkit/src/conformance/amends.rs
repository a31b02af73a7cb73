//! Changes: other numbers for a limit in use, refunds, invalid questions.

use tallygate::call::InvalidCheck;
use tallygate::decision::Source;
use tallygate::{Algorithm, Check, CheckError, Cost, Key, Limit};

use super::Rig;
use super::scene::{Rounds, STEPS, Scene};
use crate::traces::{micros, zero};

/// Other numbers on a live key give no free refill and lock nobody out: what was used stays used, and no wait is longer
/// than a full refill of the new limit.
pub async fn live_limits_keep_what_was_used<R: Rig>(rig: &R, seed: u64, steps: usize) {
    for mut scene in Rounds::new(rig, "live_limits", seed, steps) {
        for change in 0..STEPS / 10 {
            for _ in 0..scene.random.between(0, 3) {
                scene.stir(&["s"]).await;
            }
            let old = scene.limit.clone();
            let new = scene.random.other_numbers(&old);
            let before = scene.peek("s", 1).await;
            let used = old.capacity() - before.remaining();
            scene.limit = new.clone();
            let left = scene.peek("s", 1).await.remaining();
            scene.limit = old.clone();
            scene.must(scene.peek("s", 1).await == before, format_args!("a peek under {new} left a trace"));
            scene.limit = new;
            let capacity = scene.limit.capacity();
            let room = capacity.saturating_sub(used);
            scene.must(left <= room, format_args!("{room} should be left after {old} with {used} used, not {left}"));
            // After a first change the limit may hold more than a lower one could show.
            scene.must(change > 0 || left == room, format_args!("of {room} only {left} is left after {old}"));
            let cost = scene.random.cost(&scene.limit, left).get();
            let status = scene.check("s", cost).await;
            scene.must(status.allowed() == (cost <= left), "the check is answered differently from the peek");
            let wait = micros(status.retry_after().unwrap_or_default());
            scene.must(wait <= scene.full() && micros(status.reset_after()) <= scene.full(), "locked out");
            if !status.allowed() && scene.has_time_for(wait) {
                scene.advance(wait - 1);
                scene.must(!scene.check("s", cost).await.allowed(), "admitted a microsecond before retry_after");
                scene.advance(1);
                scene.must(scene.check("s", cost).await.allowed(), "denied at retry_after");
            }
        }
    }
}

/// A refund gives back at most what was used and still counts, never creates a state and never raises one above its
/// capacity.
pub async fn refunds_stay_within_what_was_used<R: Rig>(rig: &R, seed: u64, steps: usize) {
    for mut scene in Rounds::new(rig, "refunds", seed, steps) {
        let capacity = scene.limit.capacity();
        let given = scene.refund("unknown", capacity, None).await;
        scene.must(given == 0, "something was given back to a key that had used nothing");
        scene.must(scene.peek("unknown", 1).await.remaining() == capacity, "a refund raised the capacity");
        scene.must(!scene.reset("unknown").await, "a refund created a state");
        for _ in 0..STEPS / 4 {
            scene.stir(&["s"]).await;
            give_back(&mut scene).await;
        }
    }
}

async fn give_back<R: Rig>(scene: &mut Scene<'_, R>) {
    let capacity = scene.limit.capacity();
    let algorithm = scene.limit.algorithm();
    let before = scene.peek("s", 1).await.remaining();
    let (now, used) = (scene.now(), capacity - before);
    let units = scene.random.spread(1, (2 * capacity).min(Limit::MAX_AMOUNT));
    let stale = match algorithm {
        // A refund above the capacity cannot have been regained completely.
        Algorithm::TokenBucket => now.checked_sub(scene.full()).filter(|_| units <= capacity),
        Algorithm::FixedWindow => Some(now - now % scene.window() - 1),
        _ => Some(now - scene.full() - 1),
    };
    let charged_at = match scene.random.between(0, 2) {
        0 => None,
        1 => Some(now),
        _ => stale.or(Some(now.saturating_sub(scene.full()))),
    };
    let given = scene.refund("s", units, charged_at).await;
    let after = scene.peek("s", 1).await.remaining();
    scene.must(given <= units, "more was given back than requested");
    scene.must(after <= capacity, "a refund raised the key above its capacity");
    scene.must(stale.is_none() || charged_at != stale || given == 0, "units that no longer count were given back");
    if algorithm == Algorithm::SlidingCounter {
        // A unit of the previous window counts for less than one.
        scene.must(after >= before && after - before <= given, "more came back than was given back");
    } else {
        scene.must(after == before + given, "the change differs from the units reported");
        let current = charged_at.is_none_or(|at| at == now);
        scene.must(!current || given == units.min(used), "not everything that was requested and used was given back");
    }
}

/// A cost above the capacity is an error, a limit of zero a denial for ever, and neither changes anything.
pub async fn mistakes_touch_nothing<R: Rig>(rig: &R, seed: u64, steps: usize) {
    for mut scene in Rounds::new(rig, "mistakes", seed, steps) {
        for _ in 0..STEPS / 10 {
            let subject = if scene.random.chance(50) { "s" } else { "unknown" };
            if subject == "s" {
                scene.stir(&[subject]).await;
            }
            let before = scene.peek(subject, 1).await;
            ask_too_much(&scene, subject).await;
            ask_for_nothing(&mut scene, subject).await;
            scene.must(scene.peek(subject, 1).await == before, "a mistake left a trace");
            scene.must(subject == "s" || !scene.reset(subject).await, "a mistake created a state");
        }
    }
}

async fn ask_too_much<R: Rig>(scene: &Scene<'_, R>, subject: &str) {
    let Ok(above) = Cost::new(scene.limit.capacity() + 1) else {
        return;
    };
    let is_refused = |error: &CheckError| matches!(error, CheckError::Invalid(InvalidCheck::CostAboveCapacity { .. }));
    for peek in [false, true] {
        let answer = scene.decide(subject, above.get(), peek).await;
        scene.must(answer.as_ref().is_err_and(is_refused), "a cost above the capacity is not an error");
    }
    // Together with a check that would fit, which must not be charged either.
    let name = scene.subject("beside");
    let key = |policy| Key::new(policy, &name).expect("short names");
    let fits = Check::new(key("mistakes"), &scene.limit);
    let checks = [fits, Check::new(key("mistakes too"), &scene.limit).cost(above)];
    let answer = scene.rig.limiter().check_all(&checks).await;
    scene
        .must(answer.as_ref().is_err_and(is_refused), "a cost above the capacity, with another check, is not an error");
    scene.must(!scene.reset("beside").await, "a check in an invalid call was charged");
}

async fn ask_for_nothing<R: Rig>(scene: &mut Scene<'_, R>, subject: &str) {
    let nothing = zero(&scene.limit);
    let limit = std::mem::replace(&mut scene.limit, nothing);
    for peek in [false, true] {
        let answer = scene.decide(subject, 5, peek).await.unwrap_or_else(|error| scene.fail(error));
        let status = answer.binding();
        scene.must(!answer.allowed() && status.remaining() == 0, "a limit of zero admits something");
        scene.must(status.retry_after().is_none(), "a limit of zero reports a wait");
        scene.must(answer.source() == Source::ZeroLimit, "a limit of zero asked a store");
    }
    scene.must(scene.refund(subject, 5, None).await == 0, "a limit of zero gives units back");
    let name = scene.subject("beside");
    let key = |policy| Key::new(policy, &name).expect("short names");
    let checks = [Check::new(key("mistakes"), &limit), Check::new(key("mistakes too"), &scene.limit)];
    let answer = scene.rig.limiter().check_all(&checks).await.unwrap_or_else(|error| scene.fail(error));
    let outcomes: Vec<bool> = answer.statuses().iter().map(|status| status.allowed()).collect();
    scene.must(outcomes == [true, false], "another check is not answered separately from a limit of zero");
    scene.limit = limit;
    scene.must(!scene.reset("beside").await, "a check together with a limit of zero was charged");
}
