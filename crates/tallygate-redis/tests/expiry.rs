//! Keys live as long as their state counts, a little longer, and no longer than that.

use std::collections::HashMap;
use std::time::Duration;

use tallygate::clock::{ManualClock, Timestamp};
use tallygate::{Algorithm, Check, Key, Limit, Limiter, MemoryStore};
use tallygate_testkit::random::Random;
use tallygate_testkit::wait::{PATIENCE, until};
use tallygate_testkit::{Flavour, Server};

use crate::support::{
    RedisLimiter, every_key_expires, flavours, keys, lifetimes, limit, patient, receipt, units, used,
};

/// A limit with a window so short that a test sees many.
fn short(random: &mut Random, algorithm: Algorithm) -> Limit {
    let (amount, millis) = (random.between(1, 20), random.between(1, 400));
    let plain = Limit::builder(amount, Duration::from_millis(millis)).algorithm(algorithm);
    let burst = algorithm == Algorithm::TokenBucket && random.chance(50);
    if burst { plain.burst(amount * 2).build().unwrap() } else { plain.build().unwrap() }
}

/// Every verb on every algorithm, with limits whose numbers change. Returns how long the keys of each policy may live.
async fn traffic(limiter: &RedisLimiter, server: &Server, seed: u64, calls: u64) -> HashMap<String, Duration> {
    let mut random = Random::new(seed);
    let mut longest: HashMap<String, Duration> = HashMap::new();
    for call in 0..calls {
        let algorithm = random.pick(Algorithm::OVER_TIME);
        // One policy for each kind of key.
        let policy = algorithm.kind();
        let limit = short(&mut random, algorithm);
        let life = limit.full_after() + limit.window() + Duration::from_secs(2);
        longest.entry(policy.to_owned()).and_modify(|longest| *longest = life.max(*longest)).or_insert(life);
        let subject = format!("s{}", random.between(0, 3));
        let check = Check::new(Key::new(policy, &subject).unwrap(), &limit);
        let check = check.cost(units(random.between(1, limit.capacity())));
        let beside = Limit::builder(5, Duration::from_millis(100)).build().unwrap();
        let pair = [check, Check::new(Key::new("beside", &subject).unwrap(), &beside)];
        longest.entry("beside".to_owned()).or_insert(Duration::from_secs(3));
        match random.between(0, 9) {
            0..=4 => drop(limiter.check(check).await.unwrap()),
            5 => drop(limiter.check_all(&pair).await.unwrap()),
            6 => drop(limiter.peek(check).await.unwrap()),
            7 | 8 => {
                let decision = limiter.check(check).await.unwrap();
                let charged_at = decision.decided_at().filter(|_| random.chance(50));
                limiter.refund(&[receipt(check, charged_at)]).await.unwrap();
            }
            _ => drop(limiter.reset(check).await.unwrap()),
        }
        if call % 40 == 0 {
            bounded(server, &longest);
        }
    }
    longest
}

#[track_caller]
fn bounded(server: &Server, longest: &HashMap<String, Duration>) {
    for (key, left) in lifetimes(server) {
        let (policy, _) = tallygate::key::decode_policy(&key, "tallygate").unwrap();
        let most = i64::try_from(longest[policy].as_millis()).unwrap();
        assert!(left >= 0 && left <= most, "{key} lives for {left} ms, {most} is the most");
    }
}

/// After any traffic every key has a TTL, not much longer than its state counts, and then it is gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_key_has_a_ttl_and_expires() {
    for (flavour, seed) in flavours().into_iter().zip(1..) {
        let server = Server::of(flavour).start();
        let limiter = patient(&server.url()).await;
        let longest = traffic(&limiter, &server, seed, 3000).await;
        bounded(&server, &longest);
        assert!(every_key_expires(&server) > 0);
        until("all keys to expire", PATIENCE, || keys(&server).is_empty().then_some(()));
        assert_eq!(server.command(&["DBSIZE"]).int(), 0);
    }
}

/// Expiry removes nothing that still counts: the server answers like a store that never drops a state, whatever the
/// time between calls.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_expires_while_it_counts() {
    for (flavour, seed) in flavours().into_iter().zip(1..) {
        for &algorithm in Algorithm::OVER_TIME {
            forgets_nothing(flavour, algorithm, seed).await;
        }
    }
}

/// A log that was converted by a refund or a denied call got a TTL of one window, and later calls in the same window of
/// the wall clock did not extend it: they vanished too early.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_converted_log_lives_as_long_as_its_calls_count() {
    let server = Server::redis().skewed_clock().start();
    let limiter = patient(&server.url()).await;
    let (before, after) = (limit("10/500s sliding_log"), limit("10/1000s sliding_log"));
    let now = i64::try_from(crate::support::wall_micros()).unwrap();
    let boundary = 1_000_000_000 - now % 1_000_000_000;
    let check = |limit| Check::new(Key::new("log", "s").unwrap(), limit);
    let at = |seconds: i64| server.skew(boundary + seconds * 1_000_000);
    at(10);
    assert!(limiter.check(check(&before).cost(units(9))).await.unwrap().allowed());
    assert_eq!(limiter.refund(&[receipt(check(&after).cost(units(8)), None)]).await.unwrap(), [8]);
    at(900);
    assert!(limiter.check(check(&after).cost(units(9))).await.unwrap().allowed());
    // The one unit of second 10 has stopped counting, the nine of second 900 have not.
    at(1100);
    assert_eq!(used(&limiter, "log", b"s", &after).await, 9);
}

async fn forgets_nothing(flavour: Flavour, algorithm: Algorithm, seed: u64) {
    const SECOND: u64 = 1_000_000;
    let server = Server::of(flavour).skewed_clock().start();
    let redis = patient(&server.url()).await;
    let clock = ManualClock::new(Timestamp::from_micros(0));
    let memory = Limiter::new(MemoryStore::builder().clock(clock.clone()).without_sweep().build());
    let mut random = Random::new(seed);
    let mut offset = 0;
    let new_limit = |random: &mut Random| {
        let window = Duration::from_millis(random.between(1500, 60_000));
        Limit::builder(random.between(2, 20), window).algorithm(algorithm).build().unwrap()
    };
    let mut limit = new_limit(&mut random);
    let mut left = limit.capacity();
    let mut admitted = 0;
    for step in 0..250 {
        let window = u64::try_from(limit.window().as_micros()).unwrap();
        offset += match random.between(0, 9) {
            0..=3 => 0,
            4..=6 => random.between(0, window / 3),
            7 => random.between(0, 2 * window),
            // Close to the instants at which keys expire.
            8 => random.between(window - SECOND, window + 2 * SECOND),
            _ => random.between(2 * window - SECOND, 2 * window + 2 * SECOND),
        };
        server.skew(i64::try_from(offset).unwrap());
        if random.chance(8) {
            limit = new_limit(&mut random);
        }
        let check = Check::new(Key::new("p", "s").unwrap(), &limit);
        let check = check.cost(random.cost(&limit, left.min(limit.capacity())));
        if random.chance(2) {
            redis.reset(check).await.unwrap();
            memory.reset(check).await.unwrap();
        }
        let answer = redis.check(check).await.unwrap();
        clock.set(answer.decided_at().unwrap());
        let expected = memory.check_now(check).unwrap();
        assert_eq!(answer.binding(), expected.binding(), "{limit} on {flavour:?}, seed {seed}, step {step}");
        left = answer.binding().remaining();
        admitted += u64::from(answer.allowed());
    }
    assert!(admitted > 25 && admitted < 225, "{algorithm}: {admitted} of 250 admitted tries too little");
}
