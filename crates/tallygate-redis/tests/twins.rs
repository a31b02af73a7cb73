//! The twins: the embedded store and the Lua scripts answer every trace of calls alike.
//!
//! `cargo xtask twins --steps N` runs more of them.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tallygate::{
    Algorithm, Call, Check, Decision, EncodedState, ManualClock, MemoryStore, Store, StoreError, Timestamp, Verb,
};
use tallygate_redis::RedisStore;
use tallygate_testkit::traces::{Inspected, Stored, Trace};
use tallygate_testkit::{Connection, Flavour, Reply, Server, valkey_available};

/// Steps asked by one connection in a row.
const STRETCH: usize = 5_000;
const CONNECTIONS: usize = 8;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_and_redis_answer_alike() {
    compare(Flavour::Redis, steps(100_000)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_and_valkey_answer_alike() {
    if valkey_available() {
        compare(Flavour::Valkey, steps(20_000)).await;
    }
}

fn steps(default: usize) -> usize {
    std::env::var("TALLYGATE_TWINS_STEPS").map_or(default, |steps| steps.parse().expect("a number of steps"))
}

/// Half of the traces let the clock step back.
async fn compare(flavour: Flavour, steps: usize) {
    let server = Server::of(flavour).start();
    let only = std::env::var("TALLYGATE_TWINS_ALGORITHM").ok();
    for algorithm in
        Algorithm::ALL.into_iter().filter(|algorithm| only.as_deref().is_none_or(|only| only == algorithm.name()))
    {
        let stretches = steps.div_ceil(STRETCH);
        let next = Arc::new(AtomicUsize::new(0));
        let mut connections = tokio::task::JoinSet::new();
        for _ in 0..CONNECTIONS {
            let (next, url, connection) = (Arc::clone(&next), server.url(), server.connect().unwrap());
            connections.spawn(async move {
                let connection = Arc::new(Mutex::new(connection));
                let mut denied = 0;
                loop {
                    let stretch = next.fetch_add(1, Ordering::Relaxed);
                    if stretch >= stretches {
                        return denied;
                    }
                    denied += trace(&url, &connection, algorithm, stretch).await;
                }
            });
        }
        let denied: usize = connections.join_all().await.into_iter().sum();
        let calls = stretches * STRETCH;
        println!("{algorithm} on {flavour:?}: {calls} calls alike, {denied} of them denied");
        assert!(denied > calls / 100, "only {denied} of {calls} calls were denied: the traces test too little");
        let left = server.command(&["FLUSHALL"]);
        assert!(!left.is_error());
    }
}

async fn trace(url: &str, connection: &Arc<Mutex<Connection>>, algorithm: Algorithm, stretch: usize) -> usize {
    let clocks = [(); 2].map(|()| ManualClock::new(Timestamp::from_micros(1_700_000_000_000_000)));
    let memory = MemoryStore::builder().clock(clocks[0].clone()).without_sweep().build();
    let redis = RedisStore::builder(url).deadline(std::time::Duration::from_secs(10)).manual_clock(clocks[1].clone());
    let store = redis.connect().await.expect("a server of our own");
    let redis = Keys { store, connection: Arc::clone(connection) };
    let seed = 0x7011_6a7e_0000_0000 + stretch as u64;
    let trace = Trace::new(algorithm, seed, STRETCH);
    let trace = if stretch.is_multiple_of(2) { trace.backward() } else { trace };
    match trace.run((&memory, &clocks[0]), (&redis, &clocks[1])).await {
        Ok(denied) => denied,
        Err(mismatch) => panic!("{mismatch}"),
    }
}

/// A store whose keys are looked at over a connection of their own.
struct Keys {
    store: RedisStore,
    connection: Arc<Mutex<Connection>>,
}

/// Milliseconds that keys live longer than their states count, under a clock that tests move.
const SLACK: u64 = 3_600_000;

impl Store for Keys {
    /// What a call has just written lives as long as it counts: to the millisecond for a packed state, and at most twice a window
    /// for a log.
    async fn call(&self, call: &Call<'_>) -> Result<Decision, StoreError> {
        let decision = self.store.call(call).await?;
        for (check, status) in call.checks().iter().zip(decision.statuses()).filter(|(_, status)| status.units() > 0) {
            if call.verb() != Verb::Check {
                continue;
            }
            let left = u64::try_from(self.command(&["PTTL", &key(check)]).int()).expect("every key has a time to live");
            let counts = u64::try_from(status.reset_after().as_micros().div_ceil(1000)).unwrap();
            let most = match check.limit.algorithm() {
                Algorithm::SlidingLog => 2 * u64::try_from(check.limit.window().as_millis()).unwrap(),
                _ => counts,
            };
            // A minute for the machine to be slow.
            assert!(
                (counts + SLACK - 60_000..=most + SLACK).contains(&left),
                "{check:?} lives for {left} ms, {status:?}"
            );
        }
        Ok(decision)
    }
}

impl Keys {
    fn command(&self, command: &[&str]) -> Reply {
        self.connection.lock().unwrap().call(command).expect("a server of our own")
    }
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
        let reply = self.command(&["ZRANGE", &key, "0", "-1", "WITHSCORES"]);
        let members = reply.items().chunks(2).map(|pair| match pair {
            [Reply::Bulk(member), score] => (score.text().parse().expect("a whole score"), member.clone()),
            other => panic!("not a member and its score: {other:?}"),
        });
        Some(Some(EncodedState::SortedSet(members.collect())))
    }
}

fn key(check: &Check<'_>) -> String {
    check.key.encode("tallygate", check.limit.algorithm().kind())
}
