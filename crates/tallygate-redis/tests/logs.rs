//! What is special about a sliding log: running sums that wrap around, and refunds that scan a bounded part.

use std::time::Duration;

use tallygate::clock::{ManualClock, Timestamp};
use tallygate::{Algorithm, Check, Cost, Key, Limit, Limiter, MemoryStore};
use tallygate_redis::RedisStore;
use tallygate_testkit::random::Random;
use tallygate_testkit::wait::PATIENCE;
use tallygate_testkit::{Reply, Server};

use crate::support::{RedisLimiter, receipt, units};

/// Where running sums wrap around.
const CYCLE: u64 = 1_000_000_000_000_000;

struct Twins {
    server: Server,
    clock: ManualClock,
    redis: RedisLimiter,
    memory: Limiter<MemoryStore>,
}

impl Twins {
    async fn start() -> Self {
        let server = Server::redis().start();
        let clock = ManualClock::new(Timestamp::from_micros(1_700_000_000_000_000));
        let redis = RedisStore::builder(&server.url()).deadline(PATIENCE).manual_clock(clock.clone());
        let redis = Limiter::new(redis.connect().await.unwrap());
        let memory = Limiter::new(MemoryStore::builder().clock(clock.clone()).without_sweep().build());
        Self { server, clock, redis, memory }
    }

    fn key(check: Check<'_>) -> String {
        check.key.encode("tallygate", Algorithm::SlidingLog.kind())
    }

    /// Adds to every running sum, so that the sum after the newest call is this far before the end of the cycle. Sums count only
    /// relative to each other.
    fn shift(&self, check: Check<'_>, before_the_end: u64) {
        let key = Self::key(check);
        let reply = self.server.command(&["ZRANGE", &key, "0", "-1"]);
        let members: Vec<Vec<u8>> = reply.items().iter().map(bytes).collect();
        let Some(newest) = members.last() else { return };
        let by = 2 * CYCLE - before_the_end - sum(newest) - number(&newest[14..18]);
        for member in &members {
            let mut shifted = member.clone();
            let before = (sum(member) + by) % CYCLE;
            shifted[7..14].copy_from_slice(&before.to_be_bytes()[1..]);
            let at = number(&member[..7]);
            self.server.command(&[b"ZREM".as_slice(), key.as_bytes(), member]).ok();
            self.server.command(&[b"ZADD".as_slice(), key.as_bytes(), at.to_string().as_bytes(), &shifted]).ok();
        }
        self.server.command(&["PEXPIRE", &key, "100000000"]).ok();
    }

    /// Both answer alike. Returns what is left.
    async fn check(&self, check: Check<'_>, story: &str) -> u64 {
        let (one, two) = (self.redis.check(check).await.unwrap(), self.memory.check_now(check).unwrap());
        assert_eq!(one.binding(), two.binding(), "{story}");
        one.binding().remaining()
    }
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
        let amount = random.between(1, 40);
        let limit = Limit::builder(amount, Duration::from_millis(random.between(1, 50)));
        let limit = limit.algorithm(Algorithm::SlidingLog).build().unwrap();
        let subject = format!("s{chapter}");
        let check = Check::new(Key::new("p", &subject).unwrap(), &limit);
        let mut left = amount;
        for step in 0..60 {
            let story = format!("chapter {chapter}, step {step}, {limit}");
            // Each call at an instant of its own: one whose sum wraps around at the instant of another is moved.
            twins.clock.advance(Duration::from_micros(random.spread(1, 40_000)));
            let check = check.cost(random.cost(&limit, left));
            left = match random.between(0, 9) {
                0 => {
                    let before_the_end = random.between(1, amount + 2);
                    twins.shift(check, before_the_end);
                    twins.check(check, &story).await
                }
                1 => {
                    let peeked = twins.redis.peek(check).await.unwrap();
                    assert_eq!(peeked.binding(), twins.memory.peek(check).await.unwrap().binding(), "{story}");
                    left
                }
                2 | 3 => {
                    let receipts = [receipt(check, None)];
                    let given = twins.redis.refund(&receipts).await.unwrap();
                    assert_eq!(given, twins.memory.refund(&receipts).await.unwrap(), "{story}");
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
        let key = Twins::key(check);
        assert!(twins.redis.check(check).await.unwrap().allowed());
        twins.shift(check, before_the_end);
        let now = twins.clock.now().as_micros();
        let (mut left, mut wrapped) = (before_the_end, false);
        for cost in [1, 2, 3, 2] {
            assert!(twins.redis.check(check.cost(units(cost))).await.unwrap().allowed());
            let newest = bytes(&twins.server.command(&["ZRANGE", &key, "-1", "-1"]).items()[0]);
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
    let cost = |cost| Cost::new(cost).unwrap();
    for (asked, given) in [(1500, 1000), (1500, 2), (1, 0)] {
        let receipts = [receipt(check.cost(cost(asked)), Some(twins.clock.now()))];
        assert_eq!(twins.memory.refund(&receipts).await.unwrap(), [given], "of {asked}, in memory");
        assert_eq!(twins.redis.refund(&receipts).await.unwrap(), [given], "of {asked}");
    }
    let left = twins.check(check, "after all").await;
    assert_eq!(left, 1999);
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
            let set = |to: u64| twins.clock.set(Timestamp::from_micros(to));
            if random.chance(2) {
                // All calls have expired, one more drops some of them, and the others must not count again.
                set(now + window);
                twins.check(check, &story).await;
                set(now + window - random.between(0, window / 2));
            } else {
                set(now + random.between(0, window / 64));
            }
            let check = check.cost(units(random.between(1, 2)));
            match random.between(0, 9) {
                0 => {
                    let peeked = twins.redis.peek(check).await.unwrap();
                    assert_eq!(peeked.binding(), twins.memory.peek(check).await.unwrap().binding(), "{story}");
                }
                1 => {
                    let receipts = [receipt(check.cost(units(random.between(1, 9))), None)];
                    let given = twins.redis.refund(&receipts).await.unwrap();
                    assert_eq!(given, twins.memory.refund(&receipts).await.unwrap(), "{story}");
                }
                _ => {
                    twins.check(check, &story).await;
                }
            }
        }
    }
}
