//! Holders: each reserves units, works for a moment, and settles what it used, or cancels, or is never heard of again.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tallygate::clock::Timestamp;
use tallygate::hold::{Hold, HoldState, HoldTerms, OnAbandon, Resolved, Units};
use tallygate::limiter::{CheckError, HoldGuard, Limiter};
use tallygate::{Check, Cost, Key, StoreError};
use tallygate_redis::RedisStore;
use tallygate_testkit::random::Random;
use tokio::time::sleep;

use crate::caller::{Leaving, Scene, leave};
use crate::history::{Holding, StateKey, Used};

/// For how long units are held. The end of a round waits longer.
pub const TTL: Duration = Duration::from_millis(300);

/// Holds units, one hold after the other, until the round is over.
pub async fn run(scene: Arc<Scene>, limiter: Limiter<RedisStore>, mut random: Random) {
    let keys: Vec<usize> = scene.world.held().collect();
    while !scene.over.load(Ordering::Relaxed) {
        let first = usize::try_from(random.between(0, keys.len() as u64 - 1)).expect("an index");
        let mut chosen = vec![keys[first]];
        if random.chance(40) {
            chosen.push(keys[(first + 1) % keys.len()]);
        }
        {
            let _gate = scene.gate.read().await;
            let holding = hold(&scene, &limiter, chosen, &mut random).await;
            scene.recorder.with(|log| log.holdings.push(holding));
        }
        sleep(Duration::from_micros(random.between(0, 4 * scene.world.schedule.load.pause))).await;
    }
}

/// What its holder does with a hold.
#[derive(Debug, Clone, Copy)]
enum End {
    Settle,
    Cancel,
    Abandon,
    Drop,
}

async fn hold(scene: &Scene, limiter: &Limiter<RedisStore>, keys: Vec<usize>, random: &mut Random) -> Holding {
    let states: Vec<&StateKey> = keys.iter().map(|&key| &scene.world.keys[key]).collect();
    let reserved = random.between(1, 9);
    let mut holding = Holding::begin(scene.recorder.now(), keys, reserved);
    let terms: Vec<HoldTerms> = states.iter().map(|state| terms(state)).collect();
    let cost = Cost::new(reserved).expect("at least one");
    let checks: Vec<Check<'_>> =
        states.iter().zip(&terms).map(|(state, terms)| check(state).cost(cost).with_holds(Some(terms))).collect();
    let leaving =
        if random.chance(scene.world.schedule.load.hang_up) { Leaving::early(random) } else { Leaving::Never };
    let answer = leave(leaving, limiter.reserve(&checks, TTL)).await;
    holding.ended = scene.recorder.now();
    let reserved = match answer {
        Some(Ok(reserved)) => reserved,
        Some(Err(CheckError::Store(error))) if !StoreError::may_have_charged(&error) => return holding.none(),
        // It may have reserved, and what gives that back may fail.
        _ => return holding,
    };
    let Some(guard) = reserved.hold else { return holding.none() };
    holding.granted = true;
    // The slots of a split call decide at instants of their own.
    let decision = &reserved.decision;
    holding.granted_at = decision.decided_at().filter(|_| !decision.split()).map(Timestamp::as_micros);
    sleep(Duration::from_micros(random.spread(1, 60_000))).await;
    let end = match random.between(0, 9) {
        0 => End::Drop,
        1 | 2 => End::Abandon,
        3 | 4 => End::Cancel,
        _ => End::Settle,
    };
    finish(limiter, guard, end, &states, &mut holding, random).await;
    holding.ended = scene.recorder.now();
    holding
}

fn check(state: &StateKey) -> Check<'_> {
    Check::new(Key::new(&state.policy, &state.subject).expect("short names"), &state.limit)
}

fn terms(state: &StateKey) -> HoldTerms {
    HoldTerms::DEFAULT.with_on_abandon(state.holds.unwrap_or_default())
}

async fn finish(
    limiter: &Limiter<RedisStore>,
    guard: HoldGuard<RedisStore>,
    end: End,
    states: &[&StateKey],
    holding: &mut Holding,
    random: &mut Random,
) {
    let reserved = holding.reserved;
    let hold = match end {
        // Its cancellation is sent, and nobody hears whether it arrived.
        End::Drop => return drop(guard),
        End::Abandon => {
            let kept =
                states.iter().map(|state| if terms(state).on_abandon() == OnAbandon::Charge { reserved } else { 0 });
            holding.used = kept.map(Used::exactly).collect();
            holding.abandoned = true;
            return drop(guard.into_hold());
        }
        _ => guard.into_hold(),
    };
    let mut used = random.between(0, reserved);
    if matches!(end, End::Settle) && used > 0 && random.chance(30) {
        let part = random.between(1, used);
        match limiter.settle_partial(&hold, Units::Same(part)).await {
            Ok(open) if open.done => used -= part,
            // Nobody knows what is left: the rest may be more than that.
            _ => return,
        }
    }
    let ended = async || match end {
        End::Cancel => limiter.cancel(&hold).await,
        _ => limiter.settle(&hold, Units::Same(used)).await,
    };
    for _ in 0..3 {
        let Ok(resolved) = ended().await else { continue };
        know(&resolved, holding);
        if random.chance(30) {
            twice(limiter, &hold, &resolved, holding).await;
        }
        return;
    }
}

/// What the store says about the end of a hold is what stays used.
fn know(resolved: &Resolved, holding: &mut Holding) {
    if matches!(resolved.state, HoldState::Settled | HoldState::Cancelled | HoldState::Expired)
        && resolved.parts.len() == holding.keys.len()
    {
        holding.used = resolved.parts.iter().map(|part| Used::exactly(part.settled)).collect();
        holding.ended_at = Some(resolved.decided_at.as_micros());
    }
    if resolved.parts.iter().any(|part| part.settled + part.refunded > part.reserved) {
        holding.wrong = Some(format!("more was settled and given back than was reserved: {resolved:?}"));
    }
}

/// A hold that has ended stays as it ended.
async fn twice(limiter: &Limiter<RedisStore>, hold: &Hold, first: &Resolved, holding: &mut Holding) {
    let Ok(again) = limiter.settle(hold, Units::Same(0)).await else { return };
    let units = |resolved: &Resolved| resolved.parts.iter().map(|part| part.settled).collect::<Vec<_>>();
    if again.done || again.state != first.state || units(&again) != units(first) {
        holding.wrong = Some(format!("it ended as {first:?}, and then as {again:?}"));
    }
}
