mod common;
mod refused;

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use tallygate::call::{Call, Effect, UpTo};
use tallygate::clock::{ManualClock, Timestamp};
use tallygate::policy::{Excess, Mode};
use tallygate::request::RequestId;
use tallygate::store::StoreErrorKind;
use tallygate::{Algorithm, Check, Cost, Key, Limit, MemoryStore, Status, Store};
use tallygate_testkit::Server;
use tallygate_testkit::random::Random;

use super::*;
use crate::RedisStore;

const STEPS: usize = 3000;

fn limits() -> Vec<Limit> {
    let limit = |&algorithm: &Algorithm| Limit::builder(7, Duration::from_secs(60)).algorithm(algorithm).build();
    Algorithm::OVER_TIME.iter().map(|algorithm| limit(algorithm).unwrap()).collect()
}

/// One to three checks of few keys, so that calls of one run meet; with every mode and excess, and costs with several payers.
fn checks<'a>(random: &mut Random, limits: &'a [Limit], subjects: &'a [String]) -> Vec<Check<'a>> {
    let mut checks: Vec<Check<'a>> = Vec::new();
    for _ in 0..=random.between(0, 2) {
        let place = usize::try_from(random.between(0, limits.len() as u64 - 1)).unwrap();
        let limit = &limits[place];
        let subject = &subjects[usize::try_from(random.between(0, 1)).unwrap()];
        let key = Key::new(limit.algorithm().name(), subject).unwrap();
        if checks.iter().any(|check| check.key == key) {
            continue;
        }
        let mode = [Mode::Enforce, Mode::Enforce, Mode::Quota, Mode::Shadow];
        // Alone, a check decides its call whatever its mode.
        let mode = if checks.is_empty() { Mode::Enforce } else { mode[usize::try_from(random.between(0, 3)).unwrap()] };
        let excess = if random.between(0, 9) == 0 { Excess::Drain } else { Excess::Refuse };
        let cost = Cost::new(random.between(1, 3)).unwrap();
        let check = Check::new(key, limit).cost(cost).with_mode(mode).with_excess(excess);
        // Some pay what those before them cannot.
        let funded = checks.last().filter(|last| last.key.subject() == key.subject() && random.chance(40));
        checks.push(match funded {
            Some(last) => {
                let excess = if last.drains() { Excess::Drain } else { Excess::Refuse };
                check.cost(last.cost).with_mode(last.mode()).with_excess(excess).paying_rest()
            }
            None => check,
        });
    }
    checks
}

/// One run of several calls decides what separate runs at the same instant decide, and leaves the same states.
#[tokio::test]
async fn a_run_of_several_calls_decides_as_separate_runs() {
    let server = Server::redis().start();
    let clocks = [(); 2].map(|()| ManualClock::new(Timestamp::from_micros(1_700_000_000_000_000)));
    let memory = MemoryStore::builder().clock(clocks[0].clone()).without_sweep().build();
    let redis = RedisStore::builder(&server.url()).deadline(Duration::from_secs(10)).manual_clock(clocks[1].clone());
    let redis = redis.connect().await.unwrap();
    let (limits, subjects) = (limits(), ["a", "b"].map(str::to_owned));
    let mut random = Random::new(0x00c0_a1e5_ce00);
    let (mut calls_compared, mut denied) = (0, 0);
    for step in 0..STEPS {
        let batch: Vec<Vec<Check<'_>>> =
            (0..random.between(1, 6)).map(|_| checks(&mut random, &limits, &subjects)).collect();
        // Only checks and peeks share runs, but the script promises it for every verb.
        let verbs = [Verb::Check, Verb::Check, Verb::Check, Verb::Check, Verb::Peek, Verb::Refund, Verb::Reset];
        let mut call = |checks| match random.pick(&verbs) {
            // Some checks take what is left.
            Verb::Check if random.chance(25) => {
                let least = Cost::new(random.between(1, 2)).unwrap();
                let most = Cost::new(random.between(2, 9)).unwrap();
                Call::check_up_to(checks, UpTo::new(most).at_least(least).unwrap()).unwrap()
            }
            verb => Call::new(verb, checks).unwrap(),
        };
        let batch: Vec<Call<'_>> = batch.iter().map(|checks| call(checks)).collect();
        // Some have an id, and some of these are repeats, within one run, too.
        let mut id = |call: &Call<'_>| {
            let charges = call.verb() == Verb::Check && random.chance(30);
            charges.then(|| RequestId::new([random.pick(&[1, 2])]).unwrap())
        };
        let ids: Vec<Option<RequestId>> = batch.iter().map(&mut id).collect();
        let batch: Vec<Call<'_>> = batch.into_iter().zip(ids).map(|(call, id)| call.with_request_id(id)).collect();
        let question = |call: &Call<'_>| Questions {
            at_most: call.takes_at_most().map(Cost::get),
            request: call.request().cloned().map(Box::new),
            ..Questions::new(
                call.verb(),
                call.checks().iter().map(|check| Asked::new(check, &redis.engine.prefix)).collect(),
            )
        };
        let questions: Vec<Questions> = batch.iter().map(question).collect();
        let together =
            redis.engine.run_all(&questions.iter().collect::<Vec<_>>(), redis.engine.client.default_deadline()).await;
        for (call, answer) in batch.iter().zip(together) {
            let alone = memory.call(call).await.unwrap();
            let answer = answer.unwrap();
            // Whether an expired state was still there is up to the store.
            if call.verb() == Verb::Reset {
                continue;
            }
            assert_eq!(answer.allowed(), alone.allowed(), "step {step}: {call:?}");
            assert_eq!(answer.statuses(), alone.statuses(), "step {step}: {call:?}");
            calls_compared += 1;
            denied += usize::from(!alone.allowed());
        }
        // What is stored is the same: every key answers alike.
        for limit in &limits {
            for subject in &subjects {
                let check = [Check::new(Key::new(limit.algorithm().name(), subject).unwrap(), limit)];
                let call = Call::new(Verb::Peek, &check).unwrap();
                assert_eq!(redis.call(&call).await.unwrap(), memory.call(&call).await.unwrap(), "step {step}");
            }
        }
        let passes = random.between(0, 4) * random.between(0, 5_000_000);
        clocks.iter().for_each(|clock| clock.advance(Duration::from_micros(passes)));
    }
    assert!(denied > calls_compared / 10 && denied < calls_compared, "{denied} of {calls_compared} denied");
}

/// A call with a state that cannot be read harms no other call of its run.
#[tokio::test]
async fn one_bad_call_harms_no_other() {
    let server = Server::redis().start();
    let redis = RedisStore::builder(&server.url()).deadline(Duration::from_secs(10)).connect().await.unwrap();
    let limits = limits();
    let calls = ["good", "bad", "good"].map(|subject| question(&limits[0], subject, Verb::Check));
    server.command(&["SET", &calls[1].asked[0].key, "not ours"]);
    let answers = redis.engine.run_all(&calls.each_ref(), redis.engine.client.default_deadline()).await;
    let left: Vec<Option<u64>> =
        answers.iter().map(|answer| answer.as_ref().ok().map(|decision| decision.binding().remaining())).collect();
    let full = limits[0].capacity();
    assert_eq!(left, [Some(full - 1), None, Some(full - 2)]);
    // A refund of several gives back what it can.
    let asked = [&calls[0], &calls[1]].map(|call| call.asked[0].clone()).into();
    server.command(&["DEL", &calls[1].asked[0].key]);
    server.command(&["LPUSH", &calls[1].asked[0].key, "not ours"]);
    let refund = Questions::new(Verb::Refund, asked);
    let answer = redis.engine.run(&refund, redis.engine.client.default_deadline()).await.unwrap();
    assert_eq!(answer.statuses().iter().map(Status::units).collect::<Vec<_>>(), [1, 0]);
}

fn question(limit: &Limit, subject: &str, verb: Verb) -> Questions {
    let check = Check::new(Key::new(limit.algorithm().name(), subject).unwrap(), limit);
    Questions::new(verb, vec![Asked::new(&check, "tallygate")])
}

/// Puts two calls into one run: one that gives up after `hurried`, and one that waits for long.
async fn share_a_run(redis: &RedisStore, hurried: Duration) -> [Result<Decision, StoreError>; 2] {
    let limit = &limits_of(3)[0];
    let (run, answers): (Vec<Waiting>, Vec<_>) = [hurried, Duration::from_secs(20)]
        .map(|patience| {
            let (sender, answer) = oneshot::channel();
            let ticket = Arc::new(Ticket(AtomicU8::new(TAKEN)));
            let call = question(limit, "shared", Verb::Check);
            (Waiting { call, ticket, caller: Caller { deadline: Deadline::after(patience), answer: sender } }, answer)
        })
        .into_iter()
        .unzip();
    redis.engine.run_together(run).await;
    let mut answers = answers.into_iter();
    let mut next = async || answers.next().unwrap().await.unwrap();
    [next().await, next().await]
}

/// A run ended with the deadline of the most hurried caller. A part of a split call was then charged, and nobody knew.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_is_awaited_as_long_as_any_of_its_calls_wants() {
    let server = Server::redis().start();
    let redis = RedisStore::builder(&server.url()).deadline(Duration::from_secs(20)).connect().await.unwrap();
    server.stop();
    let answers = tokio::spawn(async move { share_a_run(&redis, Duration::from_millis(500)).await });
    tokio::time::sleep(Duration::from_secs(1)).await;
    server.cont();
    let [hurried, patient] = answers.await.unwrap();
    assert!(hurried.unwrap_err().is_late() && patient.unwrap().allowed());
}

/// The reply had arrived in time, and those that shared the run gave up before the task of the run had read it.
#[tokio::test(flavor = "current_thread")]
async fn a_reply_that_a_busy_process_reads_too_late_counts_for_all_calls_of_its_run() {
    let server = Server::redis().start();
    let redis = RedisStore::builder(&server.url()).deadline(Duration::from_millis(500)).connect().await.unwrap();
    let limit: Limit = "1000/h fixed_window".parse().unwrap();
    // So that the server knows the script.
    redis.engine.run(&question(&limit, "other", Verb::Peek), redis.engine.client.default_deadline()).await.unwrap();
    let check = Check::new(Key::new("p", "hot").unwrap(), &limit);
    let key = check.key.encode(&redis.engine.prefix, limit.algorithm().kind());
    let Turn::Run(lane) = Lanes::enter(&redis.engine, std::iter::once(key.as_str())) else { panic!("it is taken") };
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..50 {
        let (redis, limit) = (redis.clone(), limit.clone());
        calls.spawn(async move {
            let checks = [Check::new(Key::new("p", "hot").unwrap(), &limit)];
            redis.call(&Call::new(Verb::Check, &checks).unwrap()).await.map(|decision| decision.allowed())
        });
    }
    tokio::task::yield_now().await;
    // The run goes out, and its reply comes when the only thread does something else for longer than the deadline.
    server.stop();
    drop(lane);
    tokio::time::sleep(Duration::from_millis(50)).await;
    server.cont();
    std::thread::sleep(Duration::from_secs(1));
    for answer in calls.join_all().await {
        assert!(answer.unwrap());
    }
}

/// A run that could not be sent in the time of the most hurried caller was refused as a whole.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hurried_call_takes_nobody_with_it() {
    let server = Server::redis().start();
    let redis = RedisStore::builder(&server.url()).deadline(Duration::from_secs(20)).connect().await.unwrap();
    let (node, _) = redis.engine.client.servers().remove(0);
    let places = Arc::clone(node.places(Effect::Charges));
    let taken = places.acquire_many(u32::try_from(places.available_permits()).unwrap()).await.unwrap();
    let asking = tokio::spawn({
        let redis = redis.clone();
        async move { share_a_run(&redis, Duration::from_millis(50)).await }
    });
    tokio::time::sleep(Duration::from_millis(200)).await;
    drop(taken);
    let [hurried, patient] = asking.await.unwrap();
    assert_eq!(hurried.unwrap_err().kind(), StoreErrorKind::Overloaded);
    assert_eq!(patient.unwrap().binding().remaining(), 2, "the hurried call is not charged");
}

/// The refund of a denied call waited behind a flood of charges, ran out of time, and was dropped.
#[tokio::test]
async fn a_flood_of_charges_does_not_keep_refunds_away() {
    let server = Server::redis().start();
    let redis = RedisStore::builder(&server.url()).deadline(Duration::from_millis(500)).connect().await.unwrap();
    let (limit, deadline) = (&limits_of(3)[0], || redis.engine.client.default_deadline());
    redis.engine.run(&question(limit, "s", Verb::Check), deadline()).await.unwrap();
    let (node, _) = redis.engine.client.servers().remove(0);
    let places = node.places(Effect::Charges);
    let _flood = places.acquire_many(u32::try_from(places.available_permits()).unwrap()).await.unwrap();
    let charge = redis.engine.run(&question(limit, "s", Verb::Check), deadline()).await;
    assert_eq!(charge.unwrap_err().kind(), StoreErrorKind::Overloaded);
    let refund = redis.engine.run(&question(limit, "s", Verb::Refund), deadline()).await.unwrap();
    assert_eq!(refund.statuses()[0].units(), 1);
}

/// Callers that leave, the one whose run is in flight among them, leave nobody waiting.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_that_leave_do_not_hold_up_the_others() {
    let server = Server::redis().start();
    let store = RedisStore::builder(&server.url()).deadline(Duration::from_secs(20)).connect().await.unwrap();
    let limit: Limit = "1000000/h fixed_window".parse().unwrap();
    let mut random = Random::new(7);
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..2000 {
        let (store, limit) = (store.clone(), limit.clone());
        let leaves_after = (random.between(0, 1) == 0).then(|| Duration::from_micros(random.between(0, 2000)));
        calls.spawn(async move {
            let checks = [Check::new(Key::new("p", "hot").unwrap(), &limit)];
            let call = Call::new(Verb::Check, &checks).unwrap();
            match leaves_after {
                Some(patience) => drop(tokio::time::timeout(patience, store.call(&call)).await),
                None => assert!(store.call(&call).await.unwrap().allowed()),
            }
        });
    }
    calls.join_all().await;
    // The last run of those that left may still be in flight.
    let checks = [Check::new(Key::new("p", "hot").unwrap(), &limit)];
    store.call(&Call::new(Verb::Check, &checks).unwrap()).await.unwrap();
    while !store.engine.lanes.state().lanes.is_empty() {
        tokio::task::yield_now().await;
    }
    assert!(store.engine.lanes.state().by_key.is_empty());
}

/// A call was dropped by a thread that is not one of the runtime. Those that waited for it failed, as if the runtime had shut down.
#[test]
fn a_call_dropped_outside_of_its_runtime_leaves_nobody_behind() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let server = Server::redis().start();
    let store = RedisStore::builder(&server.url()).deadline(Duration::from_secs(20));
    let store = runtime.block_on(store.connect()).unwrap();
    let limit = limits_of(3).remove(0);
    let ask = async |store: &RedisStore, limit: &Limit| {
        let checks = [Check::new(Key::new("p", "hot").unwrap(), limit)];
        store.call(&Call::new(Verb::Check, &checks).unwrap()).await
    };
    server.stop();
    let (mut first, mut second) = (Box::pin(ask(&store, &limit)), Box::pin(ask(&store, &limit)));
    let both_wait = runtime.block_on(poll_fn(|cx| {
        Poll::Ready(first.as_mut().poll(cx).is_pending() && second.as_mut().poll(cx).is_pending())
    }));
    assert!(both_wait);
    drop(first);
    server.cont();
    assert!(runtime.block_on(second).unwrap().allowed());
}

/// With many callers on one key the server runs far fewer scripts than there are calls, and admits exactly the limit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hot_key_costs_few_runs_and_admits_exactly_the_limit() {
    const CALLERS: u64 = 128;
    const EACH: u64 = 40;
    let server = Server::redis().start();
    let store = RedisStore::builder(&server.url()).deadline(Duration::from_secs(20)).connect().await.unwrap();
    for limit in limits_of(1000) {
        server.command(&["CONFIG", "RESETSTAT"]);
        let mut callers = tokio::task::JoinSet::new();
        for _ in 0..CALLERS {
            let (store, limit) = (store.clone(), limit.clone());
            callers.spawn(async move {
                let mut allowed = 0;
                for _ in 0..EACH {
                    let checks = [Check::new(Key::new(limit.algorithm().name(), "hot").unwrap(), &limit)];
                    let decision = store.call(&Call::new(Verb::Check, &checks).unwrap()).await.unwrap();
                    allowed += u64::from(decision.allowed());
                }
                allowed
            });
        }
        let allowed: u64 = callers.join_all().await.into_iter().sum();
        assert_eq!(allowed, 1000, "{limit}");
        let stats = server.command(&["INFO", "commandstats"]).text();
        let line = stats.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls=")).unwrap();
        let calls: u64 = line.split(',').next().unwrap().parse().unwrap();
        assert!(calls < CALLERS * EACH / 3, "{limit}: {calls} runs for {} calls", CALLERS * EACH);
    }
}

/// A window so long that nothing is regained during a test.
fn limits_of(amount: u64) -> Vec<Limit> {
    let year = Duration::from_secs(365 * 86_400);
    let limit = |&algorithm: &Algorithm| Limit::builder(amount, year).algorithm(algorithm).build();
    Algorithm::OVER_TIME.iter().map(|algorithm| limit(algorithm).unwrap()).collect()
}
