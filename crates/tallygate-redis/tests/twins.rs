//! The twins: the embedded store and the Lua scripts give the same answers to every trace of calls.
//!
//! `cargo xtask twins --steps N` runs more of them.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tallygate::algorithm::EncodedState;
use tallygate::call::{Call, Verb};
use tallygate::clock::{ManualClock, Timestamp};
use tallygate::hold::{Hold, Holds, Resolution, Resolved, Work};
use tallygate::key::of_request;
use tallygate::request::Request;
use tallygate::{Algorithm, Check, Decision, Key, Limit, MemoryStore, Store, StoreError};
use tallygate_redis::RedisStore;
use tallygate_testkit::traces::{Inspected, Stored, Trace};
use tallygate_testkit::{Connection, Flavour, Reply, Server, valkey_available};

use crate::support::{Twins, limit, units};

/// Steps in a row over one connection.
const STRETCH: usize = 5_000;
const CONNECTIONS: usize = 8;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_and_redis_answer_alike() {
    compare(Flavour::Redis, steps(30_000)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_and_valkey_answer_alike() {
    if valkey_available() {
        compare(Flavour::Valkey, steps(10_000)).await;
    }
}

/// A state counts as it is until the clock is further behind it than it could be.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_and_redis_agree_on_a_clock_some_windows_behind() {
    let twins = Twins::start().await;
    let start = twins.clock.now().as_micros();
    let of_each =
        Algorithm::OVER_TIME.iter().map(|&algorithm| Limit::builder(5, Duration::from_secs(1)).algorithm(algorithm));
    // The last is full again after a fraction of a microsecond, rounded up.
    for limit in of_each.map(|limit| limit.build().unwrap()).chain([limit("7/s burst 2")]) {
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap();
        for behind in
            [1, 2, 3].map(|windows| windows * micros(limit.window())).into_iter().chain([micros(limit.full_after())])
        {
            for now in start - behind - 1..=start - behind + 1 {
                let subject = format!("{limit} {now}");
                let check = Check::new(Key::new("p", &subject).unwrap(), &limit);
                let story = format!("{limit}, {behind} us behind, at {now} after {start}");
                twins.set(start);
                twins.check(check.cost(units(limit.capacity().min(3))), &story).await;
                twins.set(now);
                twins.peek(check, &story).await;
                twins.check(check, &story).await;
            }
        }
    }
}

/// A charge that no longer counts gives nothing back, although others do; under a changed limit it still converts the state.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_and_redis_agree_on_refunds_of_old_charges() {
    let twins = Twins::start().await;
    let (start, window) = (twins.clock.now().as_micros(), 1_000_000);
    for &algorithm in Algorithm::OVER_TIME {
        let limit = |millis| Limit::builder(20, Duration::from_millis(millis)).algorithm(algorithm).build().unwrap();
        let (limit, changed) = (limit(1000), limit(1700));
        for later in [1, 2, 3].into_iter().flat_map(|windows| windows * window - 1..=windows * window + 1) {
            for asked in [&limit, &changed] {
                let (subject, story) = (format!("{later} {asked}"), format!("{asked}, {later} us later"));
                let key = Key::new("p", &subject).unwrap();
                for charged in (0..=later).step_by(window as usize / 2) {
                    twins.set(start + charged);
                    twins.check(Check::new(key, &limit).cost(units(2)), &story).await;
                }
                twins.set(start + later);
                let given = twins.refund(Check::new(key, asked), Some(Timestamp::from_micros(start)), &story).await;
                if algorithm == Algorithm::SlidingLog && asked == &limit {
                    assert_eq!(given, u64::from(later < window), "{story}");
                }
                for wait in [0, 300_000, 900_000] {
                    twins.set(start + later + wait);
                    twins.peek(Check::new(key, asked), &story).await;
                }
            }
        }
    }
}

/// A part of a unit more or less: when a bucket is converted, and when some of a charge has been regained.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_and_redis_agree_on_parts_of_units() {
    let twins = Twins::start().await;
    let start = twins.clock.now().as_micros();
    // A unit is regained in 200 ms.
    let of_five = limit("5/s burst 5");
    for asked in ["5/s burst 4", "3/s burst 4", "1000000/s burst 5"].map(limit) {
        for later in (0..=5).flat_map(|units| [199_999, 200_000, 200_001].map(|part| units * 200_000 + part - 199_999))
        {
            let (subject, story) = (format!("{asked} {later}"), format!("{asked}, {later} us after {of_five}"));
            let key = Key::new("converted", &subject).unwrap();
            twins.set(start);
            twins.check(Check::new(key, &of_five).cost(units(5)), &story).await;
            twins.set(start + later);
            twins.peek(Check::new(key, &asked), &story).await;
            twins.check(Check::new(key, &asked), &story).await;
            twins.peek(Check::new(key, &asked), &story).await;
        }
    }
    // The second regains two units in each microsecond, the third a few hundred in each tick of some 40 ms.
    for limit in ["5/s burst 20", "2000000/s", "999999937/d"].map(limit) {
        for charged in [0, 1, 9_999, 60_000] {
            for later in [0, 1, 2, 3, 30_000, 50_000, 80_000, 199_999, 200_000, 200_001, 400_000] {
                let (subject, story) = (format!("{limit} {charged} {later}"), format!("{limit}, {later} us later"));
                let check = Check::new(Key::new("refunded", &subject).unwrap(), &limit);
                let cost = units(limit.capacity().min(5_000) / 2);
                twins.set(start);
                twins.check(check.cost(cost), &story).await;
                twins.check(check.cost(cost), &story).await;
                twins.set(start + later);
                // Charged in the future, for some: by a clock that has stepped back since.
                let charged_at = Some(Timestamp::from_micros(start + charged));
                let given = twins.refund(check.cost(cost), charged_at, &story).await;
                assert!(given <= cost.get(), "{story}: {given} given back of {cost:?}");
                twins.peek(check, &story).await;
            }
        }
    }
}

fn steps(default: usize) -> usize {
    std::env::var("TALLYGATE_TWINS_STEPS").map_or(default, |steps| steps.parse().expect("a number of steps"))
}

/// Half of the traces let the clock step back. Each connection has its own server, so that its monitor sees only these
/// calls.
async fn compare(flavour: Flavour, steps: usize) {
    let stretches = steps.div_ceil(STRETCH);
    let servers: Vec<_> = (0..CONNECTIONS.min(stretches)).map(|_| Arc::new(Server::of(flavour).start())).collect();
    let only = std::env::var("TALLYGATE_TWINS_ALGORITHM").ok();
    for algorithm in
        Algorithm::ALL.iter().copied().filter(|algorithm| only.as_deref().is_none_or(|only| only == algorithm.name()))
    {
        let next = Arc::new(AtomicUsize::new(0));
        let mut connections = tokio::task::JoinSet::new();
        for server in &servers {
            let (next, server) = (Arc::clone(&next), Arc::clone(server));
            connections.spawn(async move {
                let mut denied = 0;
                loop {
                    let stretch = next.fetch_add(1, Ordering::Relaxed);
                    if stretch >= stretches {
                        return denied;
                    }
                    denied += trace(&server, algorithm, stretch).await;
                }
            });
        }
        let denied: usize = connections.join_all().await.into_iter().sum();
        let calls = stretches * STRETCH;
        println!("{algorithm} on {flavour:?}: {calls} calls alike, {denied} of them denied");
        assert!(denied > calls / 100, "only {denied} of {calls} calls were denied: the traces test too little");
    }
}

async fn trace(server: &Server, algorithm: Algorithm, stretch: usize) -> usize {
    let clocks = [(); 2].map(|()| ManualClock::new(Timestamp::from_micros(1_700_000_000_000_000)));
    let memory = MemoryStore::builder().clock(clocks[0].clone()).without_sweep().build();
    let redis = RedisStore::builder(&server.url()).deadline(Duration::from_secs(10)).manual_clock(clocks[1].clone());
    let store = redis.connect().await.expect("a server of our own");
    let [connection, mut monitor] = [(); 2].map(|()| server.connect().expect("a server of our own"));
    monitor.call(&["MONITOR"]).expect("a private server").ok();
    let redis = Keys { store, connection: Mutex::new(connection), monitor: Mutex::new(monitor) };
    let seed = 0x7011_6a7e_0000_0000 + stretch as u64;
    let trace = Trace::new(algorithm, seed, STRETCH);
    let trace = if stretch.is_multiple_of(2) { trace.backward() } else { trace };
    let denied = match trace.run((&memory, &clocks[0]), (&redis, &clocks[1])).await {
        Ok(denied) => denied,
        Err(mismatch) => panic!("{mismatch}"),
    };
    redis.command(&["FLUSHALL"]).ok();
    denied
}

/// A store whose keys are inspected over a separate connection, and whose commands are monitored.
struct Keys {
    store: RedisStore,
    connection: Mutex<Connection>,
    monitor: Mutex<Connection>,
}

/// Milliseconds that keys live longer than their states count, under a manual clock.
const SLACK: u64 = 3_600_000;

impl Store for Keys {
    /// The TTL of what a call has just written is exactly as long as it counts. That of a log is twice its window,
    /// unless an earlier call of that window has set it. TTLs are compared as scripts set them: the clock of Valkey 9.1
    /// sometimes steps back, and a key then has a millisecond more left than it was given. States of which units are held live longer.
    async fn call(&self, call: &Call<'_>) -> Result<Decision, StoreError> {
        // Whether units are held of a log before the call, and nothing of what was written to it until then.
        let mut held = Vec::new();
        for check in call.checks().iter().filter(|check| check.limit.algorithm() == Algorithm::SlidingLog) {
            let (key, is_held) = (key(check), self.is_marked(check).await);
            self.command(&["PTTL", &key]);
            self.hear_until(&format!(r#""PTTL" "{key}""#), &mut Vec::new());
            held.extend(is_held.then_some(key));
        }
        let decision = self.store.call(call).await?;
        if decision.replayed() {
            return Ok(decision);
        }
        let mut heard = Vec::new();
        for (check, status) in call.checks().iter().zip(decision.statuses()).filter(|(_, status)| status.units() > 0) {
            if call.verb() != Verb::Check {
                continue;
            }
            let key = key(check);
            let left = u64::try_from(self.command(&["PTTL", &key]).int()).expect("every key has a time to live");
            let counts = u64::try_from(status.reset_after().as_micros().div_ceil(1000)).unwrap() + SLACK;
            // A minute of tolerance for a slow machine.
            assert!(left + 60_000 >= counts, "{check:?} lives for {left} ms, {status:?}");
            self.hear_until(&format!(r#""PTTL" "{key}""#), &mut heard);
            let given = lifetime_given(&key, &heard);
            if self.is_marked(check).await {
                // It lives as long as its holds.
                assert!(given.is_none_or(|given| given >= counts), "{check:?} was given {given:?} ms, {status:?}");
            } else if check.limit.algorithm() == Algorithm::SlidingLog {
                // That by which it was decided, if the limit changes.
                let limit = check.changes().zip(decision.decided_at()).map(|(changes, at)| changes.limit_at(at));
                let window = limit.unwrap_or(check.limit).window();
                let windows = 2 * u64::try_from(window.as_millis()).unwrap() + SLACK;
                // Or longer, if units were held of it until this call.
                let fits = |given| given == windows || given > windows && held.contains(&key);
                assert!(given.is_none_or(fits), "{check:?} was given {given:?} ms, {status:?}");
            } else {
                assert_eq!(given, Some(counts), "{check:?}, {status:?}");
            }
        }
        if let Some(request) = call.request().filter(|_| decision.allowed()) {
            let key = of_request(&key(&call.checks()[0]), &request.name());
            let left = u64::try_from(self.command(&["PTTL", &key]).int()).expect("every key has a time to live");
            self.hear_until(&format!(r#""PTTL" "{key}""#), &mut heard);
            let kept = request.kept_micros().div_ceil(1000) + SLACK;
            assert!(lifetime_given(&key, &heard) == Some(kept) && left + 60_000 >= kept, "{left} ms of {kept}");
        }
        Ok(decision)
    }
}

impl Holds for Keys {
    async fn resolve(&self, resolution: &Resolution<'_>) -> Result<Resolved, StoreError> {
        self.store.resolve(resolution).await
    }

    fn cancel_soon(&self, hold: Hold) {
        self.store.cancel_soon(hold);
    }

    fn finish(&self, work: Work) {
        self.store.finish(work);
    }
}

impl Keys {
    fn command(&self, command: &[&str]) -> Reply {
        self.connection.lock().unwrap().call(command).expect("a private server")
    }

    /// The members of a sorted set with their scores.
    fn sorted_set(&self, key: &str) -> Vec<(u64, Vec<u8>)> {
        let reply = self.command(&["ZRANGE", key, "0", "-1", "WITHSCORES"]);
        let members = reply.items().chunks(2).map(|pair| match pair {
            [Reply::Bulk(member), score] if score.text() == "inf" => (u64::MAX, member.clone()),
            [Reply::Bulk(member), score] => (score.text().parse().expect("a whole score"), member.clone()),
            other => panic!("not a member and its score: {other:?}"),
        });
        members.collect()
    }

    /// Whether units of the state are held or owed.
    async fn is_marked(&self, check: &Check<'_>) -> bool {
        match self.inspect(check).await.flatten() {
            Some(EncodedState::Packed(packed)) => packed[0] == 2,
            Some(EncodedState::SortedSet(members)) => members.iter().any(|(score, _)| *score == u64::MAX),
            _ => false,
        }
    }

    /// Every command that the server has run, up to the one that ends in `last`.
    fn hear_until(&self, last: &str, heard: &mut Vec<String>) {
        let mut monitor = self.monitor.lock().unwrap();
        while !heard.last().is_some_and(|line| line.ends_with(last)) {
            heard.push(monitor.receive().expect("a private server").text());
        }
    }
}

/// The last TTL in milliseconds that a script set on a key.
fn lifetime_given(key: &str, heard: &[String]) -> Option<u64> {
    let (set, prolonged) = (format!(r#"lua] "SET" "{key}" "#), format!(r#"lua] "PEXPIRE" "{key}" "#));
    let line = heard.iter().rfind(|line| line.contains(&set) || line.contains(&prolonged))?;
    let last = line.rsplit('"').nth(1).expect("an argument in quotes");
    Some(last.parse().expect("a number of milliseconds"))
}

impl Inspected for Keys {
    async fn inspect(&self, check: &Check<'_>) -> Option<Stored> {
        let key = key(check);
        if check.limit.algorithm() != Algorithm::SlidingLog {
            return Some(match self.command(&["GET", &key]) {
                Reply::Bulk(bytes) => Some(EncodedState::Packed(bytes)),
                _ => None,
            });
        }
        Some(Some(EncodedState::SortedSet(self.sorted_set(&key))))
    }

    async fn inspect_holds(&self, check: &Check<'_>) -> Option<Vec<(u64, Vec<u8>)>> {
        Some(self.sorted_set(&format!("{}-open", key(check))))
    }

    async fn inspect_answer(&self, request: &Request, first: &Check<'_>) -> Option<Option<Vec<u8>>> {
        Some(match self.command(&["GET", &of_request(&key(first), &request.name())]) {
            Reply::Bulk(bytes) => Some(bytes),
            _ => None,
        })
    }
}

fn key(check: &Check<'_>) -> String {
    check.key.encode("tallygate", check.limit.algorithm().kind())
}
