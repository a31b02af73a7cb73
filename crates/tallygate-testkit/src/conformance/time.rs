//! A clock that steps back, or flaps.

use tallygate::clock::Timestamp;
use tallygate::{Algorithm, history};

use super::Rig;
use super::scene::{Rounds, STEPS, Scene};
use crate::traces::micros;

/// Room to step back by three times this.
const LONGEST: u64 = 10 * 365 * 86_400 * 1_000_000;

/// Property 8: a clock that steps back, or flaps, never admits more, and never blocks longer than one additional
/// refill.
///
/// While the clock is behind the last charge, time counts as standing still: the bound holds on that time, and waits
/// stay exact. A clock that is behind by more than a full refill is adopted: what was used stays used as of then, so
/// the step itself regains nothing, and nobody waits longer than a full refill.
pub async fn backward_time<R: Rig>(rig: &R, seed: u64, steps: usize) {
    for mut scene in Rounds::new(rig, "backward", seed, steps) {
        if scene.full() > LONGEST {
            continue;
        }
        let left = scene.limit.capacity();
        let mut held = Held { at: 0, read_at: 0, left, retry_at: 0, reset_at: 0, latest: scene.now() };
        let mut records = Vec::new();
        let mut flaps_to = None;
        for _ in 0..STEPS / 4 {
            let believed = match flaps_to.take() {
                Some(to) => {
                    scene.set(to);
                    false
                }
                None => step(&mut scene, &held, &mut flaps_to),
            };
            held.latest = held.latest.max(scene.now());
            held.look(&scene, believed).await;
            if believed {
                judge(&scene, &records);
                let carried = scene.peek("s", 1).await.remaining() < scene.limit.capacity();
                // A window started by its first call continues as of now, if anything is used in it.
                let begun = history::Record::bare(Timestamp::from_micros(scene.now()), 0, true);
                records = if carried { vec![begun] } else { Vec::new() };
                held.at = scene.now();
            }
            let left = scene.peek("s", 1).await.remaining();
            let cost = scene.random.cost(&scene.limit, left).get();
            held.check(&scene, cost, believed, &mut records).await;
            if scene.random.chance(20) {
                held.wait(&scene, &mut records).await;
                flaps_to = None;
            }
        }
        judge(&scene, &records);
    }
}

/// What the key must have stored.
struct Held {
    /// The instant of the last charge, had the clock never stepped back; or when the clock was last adopted.
    at: u64,
    /// The reading of the clock then.
    read_at: u64,
    /// What was left then.
    left: u64,
    /// When the whole capacity was then reported to be free again.
    retry_at: u64,
    /// When the limit was then reported to be completely unused again.
    reset_at: u64,
    /// The latest reading of the clock since.
    latest: u64,
}

impl Held {
    async fn look<R: Rig>(&self, scene: &Scene<'_, R>, believed: bool) {
        let status = scene.peek("s", scene.limit.capacity()).await;
        let wait = micros(status.retry_after().unwrap_or_default());
        let had = self.retry_at.saturating_sub(scene.now());
        scene.must(wait <= scene.full().max(if believed { 0 } else { had }), "the wait is longer than reported before");
        scene.must(wait <= 2 * scene.full(), "the wait is longer than two full refills");
        // The weight of a previous window follows the clock, behind or not: the earlier, the more it counts.
        let weighs = scene.limit.algorithm() == Algorithm::SlidingCounter;
        if scene.now() <= if weighs { self.read_at } else { self.at } {
            scene.must(status.remaining() <= self.left, "something was regained while the clock was behind");
        }
    }

    async fn check<R: Rig>(
        &mut self,
        scene: &Scene<'_, R>,
        cost: u64,
        believed: bool,
        records: &mut Vec<history::Record>,
    ) -> bool {
        let status = scene.check("s", cost).await;
        if status.allowed() {
            self.at = self.at.max(scene.now());
            records.push(history::Record::bare(Timestamp::from_micros(self.at), cost, true));
        }
        if status.allowed() || believed {
            let whole = scene.peek("s", scene.limit.capacity()).await;
            let wait = micros(whole.retry_after().unwrap_or_default());
            let reset_at = scene.now() + micros(whole.reset_after());
            let (left, retry_at) = (whole.remaining(), scene.now() + wait);
            *self = Self { at: self.at, read_at: scene.now(), left, retry_at, reset_at, latest: scene.now() };
        }
        status.allowed()
    }

    /// Waits stay exact wherever the clock stands.
    async fn wait<R: Rig>(&mut self, scene: &Scene<'_, R>, records: &mut Vec<history::Record>) {
        let left = scene.peek("s", 1).await.remaining();
        if left == scene.limit.capacity() {
            return;
        }
        let denied = scene.check("s", left + 1).await;
        let wait = micros(denied.retry_after().unwrap_or_default());
        scene.must(wait > 0, "more is admitted than remained");
        if scene.has_time_for(wait) {
            scene.advance(wait - 1);
            self.latest = self.latest.max(scene.now() + 1);
            scene.must(!scene.check("s", left + 1).await.allowed(), "admitted a microsecond before retry_after");
            scene.advance(1);
            scene.must(self.check(scene, left + 1, false, records).await, "denied at retry_after");
        }
    }
}

/// Moves the clock. Returns whether it is so far back that it is adopted.
fn step<R: Rig>(scene: &mut Scene<'_, R>, held: &Held, flaps_to: &mut Option<u64>) -> bool {
    let (now, full) = (scene.now(), scene.full());
    // A dropped state is missed when time returns to before its expiry.
    let forgotten = scene.rig.forgets() && held.latest >= held.reset_at;
    // Not so far back that the state's own time, which is not later than the last charge, could be out of reach.
    let nearest = held.at.saturating_sub(full);
    let to = match scene.random.between(0, 9) {
        0..=2 => now,
        3..=5 => now + scene.random.spread(1, scene.window()),
        6 if !forgotten => nearest.min(now),
        7 if !forgotten && held.reset_at > 0 && held.at > 4 * full => {
            // So far back that the state's own time, which is less than a full refill before the last charge, is out of
            // reach.
            let to = held.at - 2 * full - scene.random.spread(1, full);
            scene.set(to);
            return true;
        }
        8..=9 if !forgotten => now.saturating_sub(scene.random.spread(1, full)).max(nearest).min(now),
        _ => now + 1,
    };
    if to < now && scene.random.chance(50) {
        *flaps_to = Some(now);
    }
    if to <= now || scene.has_time_for(to - now) {
        scene.set(to);
    }
    false
}

fn judge<R: Rig>(scene: &Scene<'_, R>, records: &[history::Record]) {
    let report = history::bound(&scene.limit, records);
    if let Some(violation) = report.violations.first() {
        scene.fail(format_args!("on a time that stands still while the clock is behind: {violation}"));
    }
}
