//! Decisions by a Redis of our own: what its one thread spends on each, and how many it takes per second.

mod contender;
pub mod hot_key;
mod server;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::{Result, ensure};
use redis::aio::MultiplexedConnection;

use crate::Effort;
use crate::table::{Samples, render, times};
use crate::traffic;
use contender::Contender;
use server::Server;

/// Callers that wait for their answers at the same time; the one connection pipelines what they ask.
const CALLERS: usize = 256;
const MANY: usize = 100_000;

/// One question put to every contender.
struct Scenario {
    title: &'static str,
    calls: Arc<[u32]>,
    keys: usize,
}

#[derive(Clone, Default)]
struct Measured {
    /// Decisions per second, in thousands.
    speed: Samples,
    /// Microseconds of the server's main thread for each decision.
    cpu: Samples,
    /// What the server's memory grew by for each key.
    bytes: Samples,
}

pub fn run(effort: &Effort) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(measure(effort))
}

async fn measure(effort: &Effort) -> Result<()> {
    let server = Server::start().await?;
    let mut connection = server.connect().await?;
    let calls = if effort.quick { 20_000 } else { 50_000 };
    let scenarios = [
        Scenario { title: "one hot key", calls: traffic::hot(calls).into(), keys: 1 },
        Scenario { title: "100k random keys", calls: traffic::uniform(MANY, calls, 11).into(), keys: MANY },
    ];
    let mut contenders = Vec::new();
    for scenario in &scenarios {
        contenders.push(contender::all(&server, scenario.keys).await?);
    }
    let mut measured = vec![vec![Measured::default(); contenders[0].len()]; scenarios.len()];
    for round in 0..=effort.rounds {
        eprintln!("round {round} of {} …", effort.rounds);
        for ((scenario, contenders), measured) in scenarios.iter().zip(&contenders).zip(&mut measured) {
            for (contender, measured) in contenders.iter().zip(measured) {
                let sample = one(&mut connection, contender, scenario).await?;
                // The first round warms up.
                if round > 0 {
                    measured.speed.push(sample.speed);
                    measured.cpu.push(sample.cpu);
                    measured.bytes.push(sample.bytes);
                }
            }
        }
    }
    report(effort, &server.version, &contenders[0], &scenarios, &measured);
    Ok(())
}

struct Sample {
    speed: f64,
    cpu: f64,
    bytes: f64,
}

/// An empty server, one pass that makes the keys, one that is measured.
async fn one(connection: &mut MultiplexedConnection, contender: &Contender, scenario: &Scenario) -> Result<Sample> {
    redis::cmd("FLUSHALL").arg("SYNC").query_async::<()>(connection).await?;
    let empty = server::used_memory(connection).await?;
    load(contender, scenario).await?;
    let cpu_before = server::cpu_seconds(connection).await?;
    let start = Instant::now();
    load(contender, scenario).await?;
    let seconds = start.elapsed().as_secs_f64();
    let cpu = server::cpu_seconds(connection).await? - cpu_before;
    let keys: usize = redis::cmd("DBSIZE").query_async(connection).await?;
    let grown = server::used_memory(connection).await?.saturating_sub(empty);
    let calls = scenario.calls.len() as f64;
    Ok(Sample { speed: calls / seconds / 1e3, cpu: cpu * 1e6 / calls, bytes: grown as f64 / keys.max(1) as f64 })
}

/// All calls of the scenario, taken by the callers as they get free.
async fn load(contender: &Contender, scenario: &Scenario) -> Result<()> {
    let next = Arc::new(AtomicUsize::new(0));
    let callers = (0..CALLERS).map(|_| {
        let (next, calls, decide) = (Arc::clone(&next), Arc::clone(&scenario.calls), Arc::clone(&contender.decide));
        tokio::spawn(async move {
            let mut allowed = 0;
            while let Some(&call) = calls.get(next.fetch_add(1, Ordering::Relaxed)) {
                allowed += usize::from(decide(call).await?);
            }
            anyhow::Ok(allowed)
        })
    });
    let mut allowed = 0;
    for caller in callers.collect::<Vec<_>>() {
        allowed += caller.await??;
    }
    let calls = scenario.calls.len();
    ensure!(allowed == calls, "{} on {}: {allowed} of {calls} allowed", contender.name, scenario.title);
    Ok(())
}

fn report(effort: &Effort, version: &str, all: &[Contender], scenarios: &[Scenario], measured: &[Vec<Measured>]) {
    let baseline = all.iter().position(|contender| contender.name == contender::BASELINE).unwrap_or(0);
    println!("### Redis {version}, {CALLERS} callers over one pipelined connection\n");
    for (scenario, measured) in scenarios.iter().zip(measured) {
        println!(
            "{}; the ratio is server CPU to that of the hash token bucket (below 1 is cheaper):\n",
            scenario.title
        );
        let rows = all.iter().zip(measured).map(|(contender, it)| {
            vec![
                contender.name.to_owned(),
                it.cpu.spread(2),
                times(it.cpu.ratio_to(&measured[baseline].cpu)),
                it.speed.spread(0),
                if scenario.keys > 1 { it.bytes.spread(0) } else { "–".to_owned() },
            ]
        });
        let header = ["decision", "server CPU µs", "×", "thousand decisions/s", "bytes per key"];
        println!("{}", render(&header, &rows.collect::<Vec<_>>()));
    }
    println!("{}\n", contender::NOTES.trim());
    println!("Medians of {} rounds [least–most]; a ratio is the median of the rounds' ratios.", effort.rounds);
}
