//! What is special about a sliding log: running sums that wrap around, and refunds that scan a bounded part.

use std::time::Duration;

use tallygate::clock::Timestamp;
use tallygate::store::StoreErrorKind;
use tallygate::{Algorithm, Check, CheckError, Key, Limit};
use tallygate_testkit::random::Random;
use tallygate_testkit::{Reply, Server};

use crate::support::{Twins, receipt, units};

/// Where running sums wrap around.
const CYCLE: u64 = 1_000_000_000_000_000;

fn key(check: Check<'_>) -> String {
    check.key.encode("tallygate", Algorithm::SlidingLog.kind())
}

/// Adds to every running sum, so that the sum after the newest call is this far before the end of the cycle. Sums count only
/// relative to each other.
fn shift(server: &Server, check: Check<'_>, before_the_end: u64) {
    let key = key(check);
    let reply = server.command(&["ZRANGE", &key, "0", "-1"]);
    let members: Vec<Vec<u8>> = reply.items().iter().map(bytes).collect();
    let Some(newest) = members.last() else { return };
    let by = 2 * CYCLE - before_the_end - sum(newest) - number(&newest[14..18]);
    for member in &members {
        let mut shifted = member.clone();
        let before = (sum(member) + by) % CYCLE;
        shifted[7..14].copy_from_slice(&before.to_be_bytes()[1..]);
        let at = number(&member[..7]);
        server.command(&[b"ZREM".as_slice(), key.as_bytes(), member]).ok();
        server.command(&[b"ZADD".as_slice(), key.as_bytes(), at.to_string().as_bytes(), &shifted]).ok();
    }
    server.command(&["PEXPIRE", &key, "100000000"]).ok();
}

fn bytes(reply: &Reply) -> Vec<u8> {
    let Reply::Bulk(bytes) = reply else { panic!("not a member: {reply:?}") };
    bytes.clone()
}

/// Big-endian.
fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// The running sum before the call of a member.
fn sum(member: &[u8]) -> u64 {
    number(&member[7..14])
}

/// Wherever the running sums are, also where they wrap around, a log answers as one whose sums began at zero.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn running_sums_wrap_around_unnoticed() {
    let twins = Twins::start().await;
    let mut random = Random::new(0x10_6500);
    for chapter in 0..25 {
        let mut drawn = || {
            let limit = Limit::builder(random.between(1, 40), Duration::from_millis(random.between(1, 50)));
            limit.algorithm(Algorithm::SlidingLog).build().unwrap()
        };
        let limits = [drawn(), drawn()];
        let subject = format!("s{chapter}");
        let mut left = limits[0].capacity();
        for step in 0..60 {
            // A log is converted to the other limit now and then.
            let limit = &limits[usize::from(random.chance(15))];
            let amount = limit.capacity();
            let story = format!("chapter {chapter}, step {step}, {limit}");
            // Each call at an instant of its own: one whose sum wraps around at the instant of another is moved.
            twins.clock.advance(Duration::from_micros(random.spread(1, 40_000)));
            let check = Check::new(Key::new("p", &subject).unwrap(), limit);
            let check = check.cost(random.cost(limit, left.min(amount)));
            left = match random.between(0, 9) {
                0 => {
                    let before_the_end = random.between(1, amount + 2);
                    shift(&twins.server, check, before_the_end);
                    twins.check(check, &story).await
                }
                1 => {
                    twins.peek(check, &story).await;
                    left
                }
                2 | 3 => {
                    twins.refund(check, None, &story).await;
                    left
                }
                _ => twins.check(check, &story).await,
            };
        }
    }
}

/// The call whose sum wrapped around was moved by a microsecond, instead of the one after it. That one then was sorted before the
/// others of its instant: it was not the newest, and its units were lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_call_after_a_wrap_around_comes_last() {
    let twins = Twins::start().await;
    let limit: Limit = "10/min sliding_log".parse().unwrap();
    for (place, before_the_end) in (1..=6).enumerate() {
        let subject = format!("s{place}");
        let check = Check::new(Key::new("p", &subject).unwrap(), &limit);
        let name = key(check);
        assert!(twins.redis.check(check).await.unwrap().allowed());
        shift(&twins.server, check, before_the_end);
        let now = twins.clock.now().as_micros();
        let (mut left, mut wrapped) = (before_the_end, false);
        for cost in [1, 2, 3, 2] {
            assert!(twins.redis.check(check.cost(units(cost))).await.unwrap().allowed());
            let newest = bytes(&twins.server.command(&["ZRANGE", &name, "-1", "-1"]).items()[0]);
            assert_eq!(u64::from(newest[17]), cost, "the newest is the last call");
            let at = number(&newest[..7]);
            assert_eq!(at, now + u64::from(wrapped), "{cost} units, {before_the_end} before the end");
            wrapped |= left <= cost;
            left = left.saturating_sub(cost);
        }
        let used = twins.redis.peek(check).await.unwrap();
        assert_eq!(used.binding().remaining(), 1);
        let denied = twins.redis.check(check.cost(units(3))).await.unwrap();
        assert!(!denied.allowed());
        assert_eq!(twins.redis.refund(&[receipt(check.cost(units(9)), None)]).await.unwrap(), [9]);
        assert_eq!(twins.redis.peek(check).await.unwrap().binding().remaining(), 10);
    }
}

/// Three calls, with the end of the cycle at every place in and between them: every denial and every refund is as without.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_of_a_cycle_is_unnoticed_wherever_it_is() {
    let twins = Twins::start().await;
    let limit: Limit = "7/s sliding_log".parse().unwrap();
    for (place, given_back) in (0..=7).flat_map(|place| (1..=7).map(move |units| (place, units))) {
        let (subject, story) = (format!("{place} {given_back}"), format!("{place}, {given_back} given back"));
        let check = Check::new(Key::new("p", &subject).unwrap(), &limit);
        let mut charged = Vec::new();
        for cost in [2, 3, 2] {
            twins.clock.advance(Duration::from_millis(1));
            charged.push(twins.clock.now());
            twins.check(check.cost(units(cost)), &story).await;
        }
        shift(&twins.server, check, CYCLE - place);
        for cost in 1..=7 {
            twins.peek(check.cost(units(cost)), &story).await;
        }
        // As the newest call, and as an older one.
        let charged_at = charged[if place % 2 == 0 { 2 } else { 0 }];
        twins.refund(check.cost(units(given_back)), Some(charged_at), &story).await;
        for cost in 1..=7 {
            twins.peek(check.cost(units(cost)), &story).await;
        }
    }
}

/// Whichever member of a log is damaged, a call that reads it is refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_member_is_refused_wherever_it_is() {
    let twins = Twins::start().await;
    let limit: Limit = "7/s sliding_log".parse().unwrap();
    for (rank, expired) in (0..7_u64).flat_map(|rank| (0..3).map(move |expired| (rank, expired))) {
        for length in [23, 25] {
            let subject = format!("{rank} {expired} {length}");
            let check = Check::new(Key::new("p", &subject).unwrap(), &limit);
            let (name, start) = (key(check), twins.clock.now().as_micros());
            for _ in 0..7 {
                twins.clock.advance(Duration::from_micros(1));
                assert!(twins.redis.check(check).await.unwrap().allowed());
            }
            let place = rank.to_string();
            let member = bytes(&twins.server.command(&["ZRANGE", &name, &place, &place]).items()[0]);
            let at = number(&member[..7]).to_string();
            let damaged = &[member.as_slice(), &[1]].concat()[..length];
            twins.server.command(&[b"ZREM".as_slice(), name.as_bytes(), &member]).ok();
            twins.server.command(&[b"ZADD".as_slice(), name.as_bytes(), at.as_bytes(), damaged]).ok();
            if expired > 0 {
                twins.set(start + 1_000_000 + expired);
            }
            let story = format!("member {rank} of {length} bytes, {expired} expired");
            // The oldest, the newest and the first that counts are always read; the second oldest, if the oldest has expired.
            let always = [0, 6, expired, expired.min(1)].contains(&rank);
            // With `rank + 1` units it is the call to wait for; with seven, the fifth is on the way.
            for (cost, read) in [(rank + 1, rank >= expired), (7, rank == 4 && expired == 0)] {
                let answer = twins.redis.peek(check.cost(units(cost))).await.map(drop);
                assert!(is_corrupt(&answer) || !(always || read), "{story}, {cost} units: {answer:?}");
            }
            // As many units as to reach it.
            let charged_at = Some(Timestamp::from_micros(start + expired + 1));
            let receipts = [receipt(check.cost(units(6)), charged_at)];
            let answer = twins.redis.refund(&receipts).await.map(drop);
            let read = (expired..expired + 6).contains(&rank);
            assert!(is_corrupt(&answer) || !(always || read), "{story}: {answer:?}");
            twins.set(start + 10_000_000);
        }
    }
}

/// And no script has failed on it.
fn is_corrupt(answer: &Result<(), CheckError>) -> bool {
    let Err(CheckError::Store(error)) = answer else { return false };
    assert!(error.to_string().contains("unknown format"), "{error}");
    error.kind() == StoreErrorKind::Corrupt
}

/// A refund scans at most 1000 calls, and gives back what they hold.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refund_scans_a_thousand_calls() {
    let twins = Twins::start().await;
    let limit: Limit = "2000/day sliding_log".parse().unwrap();
    let check = Check::new(Key::new("p", "s").unwrap(), &limit);
    for call in 0..1002 {
        twins.clock.advance(Duration::from_micros(1));
        twins.check(check, &format!("call {call}")).await;
    }
    for (asked, given) in [(1500, 1000), (1500, 2), (1, 0)] {
        let all = twins.refund(check.cost(units(asked)), Some(twins.clock.now()), "alike").await;
        assert_eq!(all, given, "of {asked}");
    }
    let left = twins.check(check, "after all").await;
    assert_eq!(left, 1999);
}

/// A denied call converts a log to a changed limit without charging it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_converted_log_lives_as_long_as_its_new_limit_needs() {
    let twins = Twins::start().await;
    let subject = Key::new("p", "s").unwrap();
    let limit: Limit = "5/min sliding_log".parse().unwrap();
    twins.check(Check::new(subject, &limit).cost(units(5)), "the old limit").await;
    let changed: Limit = "5/day sliding_log".parse().unwrap();
    let check = Check::new(subject, &changed);
    assert_eq!(twins.check(check, "the new limit").await, 0);
    // Twice the window, and the hour that a manual clock may be behind.
    let most = 49 * 3_600_000;
    let left = twins.server.command(&["PTTL", &key(check)]).int();
    assert!((most - 60_000..=most).contains(&left), "{left} ms");
}

/// The first call of each window sets the TTL for the others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_ttl_of_a_log_is_set_once_in_each_window() {
    let twins = Twins::start().await;
    let limit: Limit = "100/min sliding_log".parse().unwrap();
    let check = Check::new(Key::new("p", "s").unwrap(), &limit);
    let name = key(check);
    let whole = 2 * 60_000 + 3_600_000;
    twins.set(1_700_000_040_000_000);
    for window in 0..4 {
        for call in 0..3 {
            assert!(twins.redis.check(check).await.unwrap().allowed());
            let left = twins.server.command(&["PTTL", &name]).int();
            let expected = if call == 0 { whole - 60_000..=whole } else { 1..=600_000 };
            assert!(expected.contains(&left), "call {call} of window {window}: {left} ms");
            twins.server.command(&["PEXPIRE", &name, "600000"]).ok();
            twins.clock.advance(Duration::from_secs(20));
        }
    }
}

/// Many small calls, so that more of them expire at once than one call drops, on a clock that also steps back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn logs_of_many_small_calls_answer_alike() {
    let twins = Twins::start().await;
    let mut random = Random::new(0x5_3a11);
    for chapter in 0..12 {
        let (amount, millis) = (random.between(20, 60), random.between(1, 1000));
        let limit = Limit::builder(amount, Duration::from_millis(millis)).algorithm(Algorithm::SlidingLog);
        let limit = limit.build().unwrap();
        let (subject, window) = (format!("s{chapter}"), 1000 * millis);
        let check = Check::new(Key::new("p", &subject).unwrap(), &limit);
        for step in 0..250 {
            let story = format!("chapter {chapter}, step {step}, {limit}");
            let now = twins.clock.now().as_micros();
            if random.chance(2) {
                // All calls have expired, one more drops some of them, and the others must not count again.
                twins.set(now + window);
                twins.check(check, &story).await;
                twins.set(now + window - random.between(0, window / 2));
            } else {
                twins.set(now + random.between(0, window / 64));
            }
            let check = check.cost(units(random.between(1, 2)));
            match random.between(0, 9) {
                0 => {
                    twins.peek(check, &story).await;
                }
                1 => {
                    twins.refund(check.cost(units(random.between(1, 9))), None, &story).await;
                }
                _ => {
                    twins.check(check, &story).await;
                }
            }
        }
    }
}
