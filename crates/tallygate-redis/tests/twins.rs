//! The twins: the embedded store and the Lua scripts answer every trace of calls alike.
//!
//! `cargo xtask twins --steps N` runs more of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tallygate::{Algorithm, Limiter, ManualClock, MemoryStore, Timestamp};
use tallygate_redis::RedisStore;
use tallygate_testkit::traces::Trace;
use tallygate_testkit::{Flavour, Server, valkey_available};

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
            let (next, url) = (Arc::clone(&next), server.url());
            connections.spawn(async move {
                let mut denied = 0;
                loop {
                    let stretch = next.fetch_add(1, Ordering::Relaxed);
                    if stretch >= stretches {
                        return denied;
                    }
                    denied += trace(&url, algorithm, stretch).await;
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

async fn trace(url: &str, algorithm: Algorithm, stretch: usize) -> usize {
    let clocks = [(); 2].map(|()| ManualClock::new(Timestamp::from_micros(1_700_000_000_000_000)));
    let memory = MemoryStore::builder().clock(clocks[0].clone()).without_sweep().build();
    let redis = RedisStore::builder(url).deadline(std::time::Duration::from_secs(10)).manual_clock(clocks[1].clone());
    let redis = redis.connect().await.expect("a server of our own");
    let seed = 0x7011_6a7e_0000_0000 + stretch as u64;
    let trace = Trace::new(algorithm, seed, STRETCH);
    let trace = if stretch.is_multiple_of(2) { trace.backward() } else { trace };
    let (memory, redis) = (Limiter::new(memory), Limiter::new(redis));
    match trace.run((&memory, &clocks[0]), (&redis, &clocks[1])).await {
        Ok(denied) => denied,
        Err(mismatch) => panic!("{mismatch}"),
    }
}
