//! One key that everybody asks for, in two processes: what sharing runs and taking units in advance save the server and the
//! callers, and that exactly the limit is admitted.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use redis::aio::MultiplexedConnection;
use tallygate::store::{Allotments, DenyCache};
use tallygate::{Check, Key, Limit, Limiter};
use tallygate_redis::RedisStore;

use super::server::{self, Server};
use crate::Effort;
use crate::table::{Samples, render, times};

pub const VERB: &str = "hot-key-callers";

/// The processes, and the callers in each of them that wait for their answers at the same time.
const PROCESSES: usize = 2;
const CALLERS: usize = 128;

/// A measured server is a busy one: no call may be given up for that.
const PATIENCE: Duration = Duration::from_secs(10);

/// Half of the calls are allowed, the other half denied. So each process has as many calls as the limit: one that is first to end
/// has seen the limit reached, or has used all of it.
const SHARE: u64 = 2;

/// By the place of the contender in [`Contenders`].
const NAMES: [&str; 5] = [
    "raw INCR",
    "tallygate, one call per decision",
    "**tallygate, calls share runs** (default)",
    "**tallygate, allotments**",
    "tallygate, allotments, and denials repeated",
];

pub fn run(effort: &Effort) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(measure(effort))
}

#[derive(Clone, Default)]
struct Measured {
    /// Decisions per second, in thousands.
    speed: Samples,
    /// Microseconds of the server's main thread for each decision.
    cpu: Samples,
    /// Milliseconds, half of the calls and 99 of 100, of the process with the longer ones.
    latency: [Samples; 2],
}

async fn measure(effort: &Effort) -> Result<()> {
    let server = Server::start().await?;
    let mut connection = server.connect().await?;
    let calls: u64 = if effort.quick { 20_000 } else { 100_000 };
    let limit = calls / SHARE;
    let mut processes = (0..PROCESSES).map(|_| Process::start(&server.url)).collect::<Result<Vec<_>>>()?;
    let mut measured = vec![Measured::default(); NAMES.len()];
    for round in 0..=effort.rounds {
        eprintln!("round {round} of {} …", effort.rounds);
        for place in 0..NAMES.len() {
            // Each is first in one round of five.
            let place = (place + round) % NAMES.len();
            let name = NAMES[place];
            redis::cmd("FLUSHALL").arg("SYNC").query_async::<()>(&mut connection).await?;
            let cpu_before = server::cpu_seconds(&mut connection).await?;
            let start = Instant::now();
            for process in &mut processes {
                writeln!(process.to, "{place} {} {limit}", calls / PROCESSES as u64)?;
            }
            let loads = processes.iter_mut().map(Process::load).collect::<Result<Vec<_>>>()?;
            let seconds = start.elapsed().as_secs_f64();
            let cpu = server::cpu_seconds(&mut connection).await? - cpu_before;
            let admitted: u64 = loads.iter().map(|load| load.admitted).sum();
            ensure!(admitted == limit, "{name}: {admitted} of {calls} calls were admitted, the limit is {limit}");
            // The first round warms up.
            if round > 0 {
                let it = &mut measured[place];
                it.speed.push(calls as f64 / seconds / 1e3);
                it.cpu.push(cpu * 1e6 / calls as f64);
                for (at, samples) in it.latency.iter_mut().enumerate() {
                    samples.push(loads.iter().map(|load| load.nanos[at]).max().unwrap_or(0) as f64 / 1e6);
                }
            }
        }
    }
    let callers = PROCESSES * CALLERS;
    println!(
        "### One hot key: Redis {}, {callers} callers in two processes, {calls} calls, limit {limit}\n",
        server.version
    );
    let [alone, shared] = [&measured[1], &measured[2]];
    let rows = NAMES.iter().zip(&measured).map(|(name, it)| {
        vec![
            (*name).to_owned(),
            it.speed.spread(0),
            times(it.speed.ratio_to(&alone.speed)),
            times(it.speed.ratio_to(&shared.speed)),
            it.cpu.spread(2),
            times(it.cpu.ratio_to(&alone.cpu)),
            it.latency[0].spread(3),
            it.latency[1].spread(2),
        ]
    });
    let header = [
        "contender",
        "thousand decisions/s",
        "× one call",
        "× shared",
        "server CPU µs",
        "× one call",
        "p50 ms",
        "p99 ms",
    ];
    println!("{}", render(&header, &rows.collect::<Vec<_>>()));
    println!("Every contender admitted exactly the limit in every round. A ratio is of the same round.");
    println!(
        "Medians of {} rounds [least–most]. The server's CPU is that of its main thread, from `INFO cpu`.",
        effort.rounds
    );
    Ok(())
}

/// A process with its callers. It lives as long as the measurement, so its connections are warm.
struct Process {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

/// What the callers of one process got.
struct Load {
    admitted: u64,
    /// Half of the calls and 99 of 100 took no longer.
    nanos: [u64; 2],
}

impl Process {
    fn start(url: &str) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        let mut child = command.args([VERB, url]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let to = child.stdin.take().context("no stdin")?;
        let mut from = BufReader::new(child.stdout.take().context("no stdout")?);
        // Connected.
        ensure!(from.read_line(&mut String::new())? > 0, "the process with the callers has ended");
        Ok(Self { child, to, from })
    }

    fn load(&mut self) -> Result<Load> {
        let mut line = String::new();
        self.from.read_line(&mut line)?;
        let numbers = line.split_whitespace().map(str::parse).collect::<Result<Vec<u64>, _>>()?;
        let [admitted, half, most] = numbers[..] else { anyhow::bail!("the callers answered `{line}`") };
        Ok(Load { admitted, nanos: [half, most] })
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// In that process: reads `<contender> <calls> <limit>` again and again, and writes what its callers got.
pub fn call_here(args: &[String]) -> Result<()> {
    let url = args.first().context("expected the URL of the store")?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let contenders = runtime.block_on(Contenders::connect(url))?;
    println!("connected");
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let numbers = line.split_whitespace().map(str::parse).collect::<Result<Vec<u64>, _>>()?;
        let [place, calls, limit] = numbers[..] else { anyhow::bail!("expected three numbers, not `{line}`") };
        let asked = contenders.asked(place, &format!("{limit}/day fixed_window").parse()?);
        let (admitted, mut took) = runtime.block_on(load(&asked, calls, limit))?;
        took.sort_unstable();
        let hundredth = |of: usize| took.get(took.len() * of / 100).copied().unwrap_or(0);
        println!("{admitted} {} {}", hundredth(50), hundredth(99));
    }
    Ok(())
}

struct Contenders {
    raw: MultiplexedConnection,
    alone: Arc<RedisStore>,
    shared: Arc<RedisStore>,
}

/// A way to ask about the key.
#[derive(Clone)]
enum Asked {
    Incr(MultiplexedConnection),
    Store(Limiter<Arc<RedisStore>>, Limit),
    Allotments(Limiter<Allotments<DenyCache<Arc<RedisStore>>>>, Limit),
}

impl Contenders {
    async fn connect(url: &str) -> Result<Self> {
        let raw = redis::Client::open(url)?.get_multiplexed_async_connection().await?;
        let store = |coalesce: bool| RedisStore::builder(url).deadline(PATIENCE).coalesce(coalesce).connect();
        Ok(Self { raw, alone: Arc::new(store(false).await?), shared: Arc::new(store(true).await?) })
    }

    /// Fresh, but for the connections: nothing is held from the round before.
    fn asked(&self, place: u64, limit: &Limit) -> Asked {
        let store = |store: &Arc<RedisStore>| Asked::Store(Limiter::new(Arc::clone(store)), limit.clone());
        let allotments = |denials: Duration| {
            let cached = DenyCache::new(Arc::clone(&self.shared)).at_most(denials);
            Asked::Allotments(Limiter::new(Allotments::new(cached)), limit.clone())
        };
        match place {
            0 => Asked::Incr(self.raw.clone()),
            1 => store(&self.alone),
            2 => store(&self.shared),
            3 => allotments(Duration::ZERO),
            _ => allotments(Duration::from_secs(1)),
        }
    }
}

impl Asked {
    /// Whether the call was allowed. `INCR` decides nothing: its caller compares the count.
    async fn decide(&mut self, key: &str, limit: u64) -> Result<bool> {
        let key = Key::new("bench", key)?;
        Ok(match self {
            Self::Incr(connection) => {
                redis::cmd("INCR").arg(key.subject()).query_async::<u64>(connection).await? <= limit
            }
            Self::Store(limiter, limit) => limiter.check(Check::new(key, limit)).await?.allowed(),
            Self::Allotments(limiter, limit) => {
                limiter.check(Check::new(key, limit).with_allotment(true)).await?.allowed()
            }
        })
    }
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
