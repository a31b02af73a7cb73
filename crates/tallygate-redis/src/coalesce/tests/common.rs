//! Reservations of one state that share a run.

use tallygate::hold::{Hold, HoldId, HoldTerms, Holds, OnAbandon, Resolution, Resolve, Units};

use super::*;
use crate::common::Common;

/// One run of several reservations decides what separate ones do, and leaves the same states and holds: the script's short way, and the way that
/// everything else takes.
#[tokio::test]
async fn reservations_that_share_a_run_are_decided_as_separate_ones() {
    let server = Server::redis().start();
    let clocks = [(); 2].map(|()| ManualClock::new(Timestamp::from_micros(1_700_000_000_000_000)));
    let memory = MemoryStore::builder().clock(clocks[0].clone()).without_sweep().build();
    let redis = RedisStore::builder(&server.url()).deadline(Duration::from_secs(10)).manual_clock(clocks[1].clone());
    let redis = redis.connect().await.unwrap();
    let limit = |algorithm: Algorithm, amount| {
        Limit::builder(amount, Duration::from_secs(20)).algorithm(algorithm).build().unwrap()
    };
    let mut random = Random::new(0x4e5e_7e00);
    let (mut common, mut full, mut denied, mut open) = (0, 0, 0, Vec::<Hold>::new());
    for step in 0..1_200 {
        let algorithm = random.pick(Algorithm::OVER_TIME);
        // Sometimes the numbers change, and the holds of the state are closed.
        let limit = limit(algorithm, if random.chance(3) { 12 } else { 20 });
        let grants = |on_abandon| HoldTerms::DEFAULT.with_most_open(5).with_most_held(70).with_on_abandon(on_abandon);
        let terms = [OnAbandon::Charge, OnAbandon::Refund].map(grants);
        let check = |random: &mut Random| {
            let cost = Cost::new(random.between(1, 4)).unwrap();
            let check = Check::new(Key::new("p", "s").unwrap(), &limit).cost(cost);
            check.with_holds(Some(&terms[usize::from(random.chance(50))]))
        };
        let checks: Vec<[Check<'_>; 1]> = (0..random.between(1, 6)).map(|_| [check(&mut random)]).collect();
        let call = |checks| {
            let id = HoldId::from_bytes(std::array::from_fn(|_| u8::try_from(random.between(0, 255)).unwrap()));
            let reservation = Reservation::new(Duration::from_millis(random.between(1, 9_000))).with_id(id);
            match random.chance(4) {
                true => Call::new(Verb::Check, checks).unwrap(),
                false => Call::reserve(checks, reservation).unwrap(),
            }
        };
        let batch: Vec<Call<'_>> = checks.iter().map(|checks| &checks[..]).map(call).collect();
        let question = |call: &Call<'_>| Questions {
            reservation: call.reservation().map(|asked| Box::new(*asked)),
            ..Questions::new(call.verb(), vec![Asked::new(&call.checks()[0], &redis.engine.prefix)])
        };
        let questions: Vec<Questions> = batch.iter().map(question).collect();
        let questions: Vec<&Questions> = questions.iter().collect();
        common += usize::from(Common::of(&questions).is_some());
        let together = redis.engine.run_all(&questions, redis.engine.client.default_deadline()).await;
        for (call, answer) in batch.iter().zip(together) {
            let (alone, answer) = (memory.call(call).await.unwrap(), answer.unwrap());
            assert_eq!(answer.statuses(), alone.statuses(), "step {step}: {call:?}");
            (denied, full) =
                (denied + usize::from(!answer.allowed()), full + usize::from(answer.binding().holds_full()));
            if let Some(reservation) = call.reservation().filter(|_| answer.allowed()) {
                open.push(Hold::new(reservation.id(), call.checks()));
            }
        }
        if random.chance(60) && !open.is_empty() {
            let hold = open.swap_remove(usize::try_from(random.between(0, open.len() as u64 - 1)).unwrap());
            let units = Units::Same(random.between(0, 5));
            let resolve = match random.between(0, 2) {
                0 => Resolve::Settle(units),
                1 => Resolve::SettlePart(units),
                _ => Resolve::Cancel,
            };
            let resolution = Resolution::new(&hold, resolve);
            // Repeated, it changes nothing.
            for _ in 0..2 {
                let resolved = [memory.resolve(&resolution).await.unwrap(), redis.resolve(&resolution).await.unwrap()];
                assert_eq!(resolved[0], resolved[1], "step {step}: {resolution:?}");
            }
        }
        let peek = [check(&mut random)];
        let call = Call::new(Verb::Peek, &peek).unwrap();
        assert_eq!(redis.call(&call).await.unwrap(), memory.call(&call).await.unwrap(), "step {step}");
        let passes = random.between(0, 3) * random.between(0, 3_000_000);
        clocks.iter().for_each(|clock| clock.advance(Duration::from_micros(passes)));
    }
    assert!(common > 500 && full > 100 && denied > full, "{common} common runs, {denied} denied, {full} of them full");
}
