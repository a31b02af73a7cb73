//! One key that everybody asks for: what sharing runs saves the server, and that it admits exactly the limit.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use redis::aio::MultiplexedConnection;
use tallygate::{Check, Key, Limit, Limiter};
use tallygate_redis::RedisStore;

use super::server::{self, Server};
use crate::Effort;
use crate::table::{Samples, render, times};

/// Callers that wait for their answers at the same time.
const CALLERS: usize = 256;

/// A measured server is a busy one: no call may be given up for that.
const PATIENCE: Duration = Duration::from_secs(10);

/// Half of the calls are allowed, the other half denied.
const SHARE: u64 = 2;

pub fn run(effort: &Effort) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(measure(effort))
}

/// A way to ask about the key.
#[derive(Clone)]
enum Asked {
    Incr(MultiplexedConnection),
    Tallygate(Limiter<RedisStore>, Limit),
}

impl Asked {
    /// Whether the call was allowed. `INCR` decides nothing: its caller compares the count.
    async fn decide(&mut self, key: &str, limit: u64) -> Result<bool> {
        Ok(match self {
            Self::Incr(connection) => redis::cmd("INCR").arg(key).query_async::<u64>(connection).await? <= limit,
            Self::Tallygate(limiter, limit) => {
                limiter.check(Check::new(Key::new("bench", key)?, limit)).await?.allowed()
            }
        })
    }
}

#[derive(Clone, Default)]
struct Measured {
    /// Decisions per second, in thousands.
    speed: Samples,
    /// Microseconds of the server's main thread for each decision.
    cpu: Samples,
    /// Milliseconds, half of the calls and 99 of 100.
    latency: [Samples; 2],
}

async fn measure(effort: &Effort) -> Result<()> {
    let server = Server::start().await?;
    let mut connection = server.connect().await?;
    let calls: u64 = if effort.quick { 20_000 } else { 100_000 };
    let limit = calls / SHARE;
    let ours: Limit = format!("{limit}/day sliding_window").parse()?;
    let store = |coalesce: bool| RedisStore::builder(&server.url).deadline(PATIENCE).coalesce(coalesce).connect();
    let contenders = [
        ("raw INCR", Asked::Incr(server.connect().await?)),
        ("tallygate, one call per decision", Asked::Tallygate(Limiter::new(store(false).await?), ours.clone())),
        ("**tallygate, calls share runs** (default)", Asked::Tallygate(Limiter::new(store(true).await?), ours)),
    ];
    let mut measured = vec![Measured::default(); contenders.len()];
    for round in 0..=effort.rounds {
        eprintln!("round {round} of {} …", effort.rounds);
        for place in 0..contenders.len() {
            // Each is first in one round of three.
            let place = (place + round) % contenders.len();
            let (name, asked) = &contenders[place];
            redis::cmd("FLUSHALL").arg("SYNC").query_async::<()>(&mut connection).await?;
            let cpu_before = server::cpu_seconds(&mut connection).await?;
            let start = Instant::now();
            let (admitted, mut took) = load(asked, calls, limit).await?;
            let seconds = start.elapsed().as_secs_f64();
            let cpu = server::cpu_seconds(&mut connection).await? - cpu_before;
            ensure!(admitted == limit, "{name}: {admitted} of {calls} calls were admitted, the limit is {limit}");
            // The first round warms up.
            if round > 0 {
                took.sort_unstable();
                let it = &mut measured[place];
                it.speed.push(calls as f64 / seconds / 1e3);
                it.cpu.push(cpu * 1e6 / calls as f64);
                for (samples, hundredth) in it.latency.iter_mut().zip([50, 99]) {
                    samples.push(took[took.len() * hundredth / 100] as f64 / 1e6);
                }
            }
        }
    }
    println!("### One hot key: Redis {}, {CALLERS} callers, {calls} calls, limit {limit}\n", server.version);
    let alone = &measured[1];
    let rows = contenders.iter().zip(&measured).map(|((name, _), it)| {
        vec![
            (*name).to_owned(),
            it.speed.spread(0),
            times(it.speed.ratio_to(&alone.speed)),
            it.cpu.spread(2),
            times(it.cpu.ratio_to(&alone.cpu)),
            it.latency[0].spread(2),
            it.latency[1].spread(2),
        ]
    });
    let header = ["contender", "thousand decisions/s", "×", "server CPU µs", "×", "p50 ms", "p99 ms"];
    println!("{}", render(&header, &rows.collect::<Vec<_>>()));
    println!(
        "Every contender admitted exactly the limit in every round. A ratio is to one call per decision, in the same round."
    );
    println!(
        "Medians of {} rounds [least–most]. The server's CPU is that of its main thread, from `INFO cpu`.",
        effort.rounds
    );
    Ok(())
}

/// All calls, taken by the callers as they get free: how many were admitted, and how long each took in nanoseconds.
async fn load(asked: &Asked, calls: u64, limit: u64) -> Result<(u64, Vec<u64>)> {
    let next = Arc::new(AtomicU64::new(0));
    let callers = (0..CALLERS).map(|_| {
        let (next, mut asked) = (Arc::clone(&next), asked.clone());
        tokio::spawn(async move {
            let (mut admitted, mut took) = (0, Vec::new());
            while next.fetch_add(1, Ordering::Relaxed) < calls {
                let start = Instant::now();
                admitted += u64::from(asked.decide("global", limit).await?);
                took.push(u64::try_from(start.elapsed().as_nanos())?);
            }
            anyhow::Ok((admitted, took))
        })
    });
    let (mut admitted, mut took) = (0, Vec::new());
    for caller in callers.collect::<Vec<_>>() {
        let (his, times) = caller.await??;
        admitted += his;
        took.extend(times);
    }
    Ok((admitted, took))
}
