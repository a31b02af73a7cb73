//! What is admitted, over time and over several limits at once.

use std::time::Duration;

use tallygate::clock::Timestamp;
use tallygate::{Algorithm, Check, Cost, Key, Status, history};

use super::Rig;
use super::scene::{Rounds, STEPS};

/// Property 2: no span admits more than the bound of the algorithm, and each answer is that of the algorithm.
pub async fn bound<R: Rig>(rig: &R, seed: u64, steps: usize) {
    for mut scene in Rounds::new(rig, "bound", seed, steps) {
        let mut records = Vec::new();
        for _ in 0..STEPS {
            // Near the edge, where an error would show: often the next call comes exactly when it may.
            let left = scene.peek("s", 1).await.remaining();
            let cost = scene.random.cost(&scene.limit, left);
            let decision = scene.decide("s", cost.get(), false).await.unwrap_or_else(|error| scene.fail(error));
            let wait = decision.binding().retry_after().unwrap_or_default();
            let by = match scene.random.between(0, 3) {
                0 => 0,
                1 => crate::traces::micros(wait),
                _ => scene.random.spread(1, scene.window()),
            };
            records.push(history::Record::new(cost, &decision));
            if !scene.has_time_for(by) {
                break;
            }
            scene.advance(by);
        }
        let report = history::bound(&scene.limit, &records);
        if let Some(violation) = report.violations.first() {
            scene.fail(violation);
        }
        if let Some(mismatch) = history::replay(&scene.limit, &records, Duration::ZERO).first() {
            scene.fail(mismatch);
        }
    }
}

/// Property 7: several limits are charged all or none, and each is answered separately.
pub async fn all_or_none<R: Rig>(rig: &R, seed: u64, steps: usize) {
    for mut scene in Rounds::new(rig, "all_or_none", seed, steps) {
        let algorithms: Vec<Algorithm> =
            (0..scene.random.between(1, 3)).map(|_| scene.random.pick(Algorithm::OVER_TIME)).collect();
        let mut limits = vec![scene.limit.clone()];
        limits.extend(algorithms.into_iter().map(|algorithm| scene.random.limit(algorithm)));
        let policies: Vec<String> = (0..limits.len()).map(|at| format!("all_or_none-{at}")).collect();
        let subject = scene.subject("s");
        let check = |at: usize, cost: Cost| {
            let key = Key::new(&policies[at], &subject).expect("short names");
            Check::new(key, &limits[at]).cost(cost)
        };
        for _ in 0..STEPS / 4 {
            let mut checks: Vec<Check<'_>> = Vec::new();
            for (at, limit) in limits.iter().enumerate() {
                let look = rig.limiter().peek(check(at, Cost::ONE)).await.unwrap_or_else(|error| scene.fail(error));
                // Mostly fitting, or one of four would be denied every time.
                let left = look.binding().remaining();
                let cost = scene.random.cost(limit, left).get();
                let cost = if scene.random.chance(70) { cost.min(left.max(1)) } else { cost };
                checks.push(check(at, Cost::new(cost).expect("from 1 to the capacity")));
            }
            let before = alone(rig, &checks).await;
            let decision = rig.limiter().check_all(&checks).await.unwrap_or_else(|error| scene.fail(error));
            let after = alone(rig, &checks).await;
            let details = format!("{checks:?}\n  before {before:?}\n  answer {decision:?}\n  after {after:?}");
            scene.must(
                decision.allowed() == before.iter().all(Status::allowed),
                format_args!("wrong outcome: {details}"),
            );
            scene
                .must(decision.decided_at() == Some(Timestamp::from_micros(scene.now())), "decided at another instant");
            if decision.allowed() {
                for (at, check) in checks.iter().enumerate() {
                    let left = before[at].remaining() - check.cost.get();
                    let right = after[at].remaining() == left && decision.statuses()[at].remaining() == left;
                    scene.must(right, format_args!("check {at} was not charged its cost: {details}"));
                }
            } else {
                scene.must(after == before, format_args!("denied, but something was charged: {details}"));
                scene.must(
                    decision.statuses() == before,
                    format_args!("the checks are not answered separately: {details}"),
                );
            }
            let by = scene.random.spread(1, scene.window());
            if scene.random.chance(60) && scene.has_time_for(by) {
                scene.advance(by);
            }
        }
    }
}

/// The answer to each check on its own.
async fn alone<R: Rig>(rig: &R, checks: &[Check<'_>]) -> Vec<Status> {
    let mut statuses = Vec::new();
    for check in checks {
        statuses.push(rig.limiter().peek(*check).await.expect("a peek").binding());
    }
    statuses
}
