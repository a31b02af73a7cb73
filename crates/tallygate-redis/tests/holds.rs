//! Holds on real servers: many processes, several slots, lost keys.

mod leases;
mod listing;
mod mails;
mod pitfalls;
mod slots;

use std::time::Duration;

use tallygate::hold::{Hold, HoldState, HoldTerms, Holds, OnAbandon, Resolution, Resolve, Units};
use tallygate::limiter::HoldGuard;
use tallygate::{Algorithm, Check, Key, Limit, Status};
use tallygate_testkit::Server;
use tallygate_testkit::random::Random;
use tokio::task::JoinSet;

use crate::support::{RedisLimiter, Twins, every_key_expires, flavours, limit, patient, units, yearly};

async fn status(limiter: &RedisLimiter, check: Check<'_>) -> Status {
    limiter.peek(check).await.unwrap().binding()
}

async fn reserve(limiter: &RedisLimiter, checks: &[Check<'_>], ttl: Duration) -> Option<Hold> {
    limiter.reserve(checks, ttl).await.unwrap().hold.map(HoldGuard::into_hold)
}

/// Requests and tokens together, streamed: neither is ever exceeded, and what is left is what was not used.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_and_tokens_under_concurrent_streams_are_exact() {
    for flavour in flavours() {
        let server = Server::of(flavour).start();
        let limiter = patient(&server.url()).await;
        for &algorithm in Algorithm::OVER_TIME {
            let (requests, tokens) = (yearly(algorithm, 40), yearly(algorithm, 5_000));
            let mut streams = JoinSet::new();
            for stream in 0..64 {
                let (limiter, requests, tokens) = (limiter.clone(), requests.clone(), tokens.clone());
                streams.spawn(async move {
                    let mut random = Random::new(stream);
                    let estimate = random.between(50, 300);
                    let checks = [
                        Check::new(Key::new("requests", "alice").unwrap(), &requests),
                        Check::new(Key::new("tokens", "alice").unwrap(), &tokens).cost(units(estimate)),
                    ];
                    let hold = reserve(&limiter, &checks, Duration::from_secs(60)).await?;
                    let each = |units| Units::Each(vec![("tokens".to_owned(), units)]);
                    let mut used = 0;
                    for _ in 0..random.between(0, 4) {
                        let part = random.between(0, estimate / 5);
                        let open = limiter.settle_partial(&hold, each(part)).await.unwrap();
                        used += part;
                        assert_eq!((open.state, open.parts[1].held), (HoldState::Open, estimate - used));
                        let seen = open.parts[1].status;
                        assert!(seen.held() + seen.remaining() <= 5_000 && seen.debt() == 0, "{seen:?}");
                    }
                    let last = random.between(0, estimate - used);
                    let settled = limiter.settle(&hold, each(last)).await.unwrap();
                    assert_eq!(settled.parts[1].settled, used + last);
                    Some(used + last)
                });
            }
            let used: Vec<u64> = streams.join_all().await.into_iter().flatten().collect();
            let check = |policy, limit| Check::new(Key::new(policy, "alice").unwrap(), limit);
            let (one, two) = (
                status(&limiter, check("requests", &requests)).await,
                status(&limiter, check("tokens", &tokens)).await,
            );
            assert!(!used.is_empty() && used.len() <= 40, "{algorithm}");
            assert_eq!(one.remaining(), 40 - used.len() as u64, "{algorithm}");
            assert_eq!(
                (two.remaining(), two.held(), two.debt()),
                (5_000 - used.iter().sum::<u64>(), 0, 0),
                "{algorithm}"
            );
            for (policy, limit) in [("requests", &requests), ("tokens", &tokens)] {
                limiter.reset(check(policy, limit)).await.unwrap();
            }
        }
        assert!(every_key_expires(&server) > 0);
    }
}

/// A record that was evicted leaves its units charged; a state that was evicted leaves nothing to give back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_keys_give_nothing_back_twice() {
    let server = Server::redis().start();
    let limiter = patient(&server.url()).await;
    for &algorithm in Algorithm::OVER_TIME {
        let limit = yearly(algorithm, 10);
        let check = Check::new(Key::new("p", "s").unwrap(), &limit);
        let state = check.key.encode("tallygate", algorithm.kind());
        for (lost, done, left) in [("record", false, 2), ("open", true, 2), ("state", true, 10)] {
            let hold = reserve(&limiter, &[check.cost(units(8))], Duration::from_secs(60)).await.unwrap();
            let key = match lost {
                "record" => format!("{state}-{}", hold.id().to_hex()),
                "open" => format!("{state}-open"),
                _ => state.clone(),
            };
            assert_eq!(server.command(&["DEL", &key]).int(), 1, "{key}");
            let settled = limiter.settle(&hold, Units::Same(1)).await.unwrap();
            assert_eq!(settled.done, done, "{algorithm}, {lost}: {settled:?}");
            assert_eq!(status(&limiter, check).await.remaining(), left, "{algorithm}, {lost}");
            let again = limiter.settle(&hold, Units::Same(1)).await.unwrap();
            assert!(!again.done, "{algorithm}, {lost}");
            assert_eq!(status(&limiter, check).await.remaining(), left, "{algorithm}, {lost}");
            limiter.reset(check).await.unwrap();
        }
    }
    assert!(every_key_expires(&server) > 0);
}

/// Units of a debt that is paid still count, with less and less weight: the state is not one of another limit. A hold goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paid_debt_of_a_sliding_counter_is_no_changed_limit() {
    let (twins, limit) = (Twins::start().await, limit("10/h sliding_counter"));
    let check = Check::new(Key::new("p", "s").unwrap(), &limit);
    let (minute, minutes) = (60_000_000, Duration::from_secs(60));
    let start = twins.clock.now().as_micros().next_multiple_of(60 * minute);
    twins.set(start);
    let debtor = reserve(&twins.redis, &[check], minutes).await.unwrap();
    let debtors_twin = twins.memory.reserve(&[check], minutes).await.unwrap().hold.unwrap().into_hold();
    twins.redis.settle(&debtor, Units::Same(20)).await.unwrap();
    twins.memory.settle(&debtors_twin, Units::Same(20)).await.unwrap();
    assert_eq!(twins.peek(check, "owes").await, 0);
    twins.set(start + 96 * minute);
    assert_eq!(twins.peek(check, "eight of twenty count").await, 2);
    let hold = reserve(&twins.redis, &[check], 30 * minutes).await.unwrap();
    let twin = twins.memory.reserve(&[check], 30 * minutes).await.unwrap().hold.unwrap().into_hold();
    twins.set(start + 102 * minute);
    assert_eq!(twins.check(check, "six of twenty count").await, 2);
    let (ended, twins_end) = (
        twins.redis.settle(&hold, Units::Same(0)).await.unwrap(),
        twins.memory.settle(&twin, Units::Same(0)).await.unwrap(),
    );
    assert_eq!((ended.done, ended.parts[0].refunded), (true, 1));
    assert_eq!(ended.parts[0].status, twins_end.parts[0].status);
    twins.set(start + 108 * minute);
    assert_eq!(twins.check(check, "four of twenty count").await, 4);
    twins.set(start + 120 * minute);
    assert_eq!(twins.check(check, "none of twenty counts").await, 7);
}

/// As of the embedded store: an extension between a partial settlement and its repeat does not make that another one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_part_is_settled_once_though_the_hold_is_extended_before_the_repeat() {
    let server = Server::redis().start();
    let limiter = patient(&server.url()).await;
    let limit = yearly(Algorithm::FixedWindow, 10);
    let check = Check::new(Key::new("p", "s").unwrap(), &limit);
    let hold = reserve(&limiter, &[check.cost(units(8))], Duration::from_secs(60)).await.unwrap();
    let part = Resolution::new(&hold, Resolve::SettlePart(Units::Same(3)));
    let extension = Resolution::new(&hold, Resolve::Extend(Duration::from_secs(90)));
    for resolution in [&part, &extension, &part] {
        assert!(limiter.store().resolve(resolution).await.unwrap().done);
    }
    let settled = limiter.settle(&hold, Units::Same(0)).await.unwrap();
    assert_eq!((settled.parts[0].settled, settled.parts[0].refunded), (3, 5));
}

/// Open holds that were evicted are missing from the head of their state, which still says that they are kept.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_after_lost_open_holds_expires() {
    let server = Server::redis().start();
    let limiter = patient(&server.url()).await;
    for &algorithm in Algorithm::OVER_TIME {
        let limit = yearly(algorithm, 10);
        let check = Check::new(Key::new("p", algorithm.name()).unwrap(), &limit);
        let open = format!("{}-open", check.key.encode("tallygate", algorithm.kind()));
        reserve(&limiter, &[check], Duration::from_secs(60)).await.unwrap();
        assert_eq!(server.command(&["DEL", &open]).int(), 1, "{algorithm}");
        reserve(&limiter, &[check], Duration::from_secs(60)).await.unwrap();
        every_key_expires(&server);
    }
}

/// A settlement removes the open hold first, which needs no memory. So what is not used comes back although nothing can be reserved.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_server_settles_what_it_holds() {
    for flavour in flavours() {
        let server = Server::of(flavour).arg("--maxmemory-policy", "noeviction").start();
        let limiter = patient(&server.url()).await;
        for algorithm in Algorithm::OVER_TIME.iter().copied().filter(|&algorithm| algorithm != Algorithm::SlidingLog) {
            let limit = yearly(algorithm, 10);
            let check = Check::new(Key::new("p", algorithm.name()).unwrap(), &limit).cost(units(8));
            let hold = reserve(&limiter, &[check], Duration::from_secs(60)).await.unwrap();
            server.command(&["CONFIG", "SET", "maxmemory", "1"]).ok();
            assert!(limiter.reserve(&[check.cost(units(1))], Duration::from_secs(60)).await.is_err(), "{algorithm}");
            let settled = limiter.settle(&hold, Units::Same(3)).await.unwrap();
            assert_eq!((settled.parts[0].settled, settled.parts[0].refunded), (3, 5), "{algorithm}");
            server.command(&["CONFIG", "SET", "maxmemory", "0"]).ok();
            let left = status(&limiter, check).await;
            assert_eq!((left.remaining(), left.held(), left.debt()), (7, 0, 0), "{algorithm}");
        }
        every_key_expires(&server);
    }
}

/// The guard has no runtime of its own: the store finishes what it began.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_guard_cancels_its_hold() {
    let server = Server::redis().start();
    let limiter = patient(&server.url()).await;
    let mails = limiter.limit("mails", "10/h").unwrap();
    let reserved = mails.reserve("alice", 8, Duration::from_secs(60)).await.unwrap();
    assert_eq!(mails.peek("alice").await.unwrap().binding().held(), 8);
    drop(reserved);
    while mails.peek("alice").await.unwrap().binding().remaining() < 10 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(mails.peek("alice").await.unwrap().binding().held(), 0);
}

/// Plain checks of limits that nobody reserves from are one run of the small script, and one more only while units are held.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_without_holds_pays_nothing() {
    let server = Server::redis().start();
    let limiter = patient(&server.url()).await;
    let (limit, terms) = (limit("1000/h"), HoldTerms::DEFAULT);
    let check = Check::new(Key::new("p", "s").unwrap(), &limit);
    let runs = || crate::support::calls_of(&server, "evalsha");
    limiter.check(check).await.unwrap();
    let mut before = runs();
    let mut cost = async |check| {
        limiter.check(check).await.unwrap();
        let now = runs();
        std::mem::replace(&mut before, now).abs_diff(now)
    };
    assert_eq!(cost(check).await, 1);
    let hold = reserve(&limiter, &[check], Duration::from_secs(60)).await.unwrap();
    let _ = cost(check.with_holds(Some(&terms))).await;
    assert_eq!([cost(check).await, cost(check.with_holds(Some(&terms))).await], [2, 1]);
    limiter.settle(&hold, Units::AsReserved).await.unwrap();
    let _ = cost(check.with_holds(Some(&terms))).await;
    assert_eq!(cost(check).await, 1);
}
