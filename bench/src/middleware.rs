//! The middleware before a router that does next to nothing: what a request costs more than without.

mod guard;

use std::net::{Ipv4Addr, SocketAddr};

use anyhow::{Result, ensure};
use axum::Router;
use axum::body::Body;
use axum::extract::{ConnectInfo, Request};
use axum::http::StatusCode;
use cpu_time::ThreadTime;
use http_body_util::BodyExt as _;
use tokio::runtime::Runtime;
use tower::ServiceExt as _;

use crate::Effort;
use crate::table::{Samples, render, times};
use crate::traffic;
use guard::{Guard, Quota};

const MANY: usize = 100_000;
/// Requests are built in batches before the clock starts; so many are made in a turn.
const BATCH: usize = 500;
const TURN: usize = 20_000;
const POOL: usize = 1_000_000;

/// One question put to every contender.
struct Scenario {
    title: &'static str,
    quota: Quota,
    addresses: usize,
    /// Who calls.
    calls: Vec<u32>,
}

/// What the contenders got in one scenario, in the order of [`Guard::ALL`].
struct Measured {
    title: &'static str,
    /// Nanoseconds of a request.
    whole: Vec<Samples>,
    /// Nanoseconds more than the router alone.
    more: Vec<Samples>,
}

pub fn run(effort: &Effort) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let hot = |title, quota| Scenario { title, quota, addresses: 1, calls: traffic::hot(TURN) };
    let many = |title, quota| {
        let calls = traffic::uniform(MANY, POOL, 21);
        Scenario { title, quota, addresses: MANY, calls }
    };
    let scenarios = [
        hot("Allowed, one address", Quota::Ample),
        many("Allowed, 100k addresses", Quota::Ample),
        hot("Denied, one address", Quota::Tiny),
        many("Denied, 100k addresses", Quota::Tiny),
    ];
    if cfg!(feature = "allocations") {
        return count(&runtime, &scenarios);
    }
    let measured: Vec<Measured> =
        scenarios.iter().map(|scenario| measure(&runtime, scenario, effort)).collect::<Result<_>>()?;
    report(effort, &measured);
    Ok(())
}

/// The routers of a scenario. Every address is known, and has used up what there is if that is little.
fn routers(runtime: &Runtime, scenario: &Scenario) -> Result<Vec<Router>> {
    let routers: Vec<Router> = Guard::ALL.iter().map(|guard| guard.router(scenario.quota)).collect::<Result<_>>()?;
    let everybody = traffic::shuffled(scenario.addresses);
    for router in &routers[1..] {
        for _ in 0..if scenario.quota == Quota::Tiny { 10 } else { 1 } {
            serve(runtime, router, &everybody);
        }
    }
    Ok(routers)
}

fn measure(runtime: &Runtime, scenario: &Scenario, effort: &Effort) -> Result<Measured> {
    eprintln!("{} …", scenario.title);
    let routers = routers(runtime, scenario)?;
    let nobody = vec![Samples::default(); Guard::ALL.len()];
    let mut measured = Measured { title: scenario.title, whole: nobody.clone(), more: nobody };
    for round in 0..=effort.rounds {
        // Another stretch each round, or all rounds would meet the same addresses.
        let from = (round * TURN) % (scenario.calls.len() - TURN + 1);
        let calls = &scenario.calls[from..from + TURN];
        let mut alone = 0.0;
        for (index, guard) in Guard::ALL.into_iter().enumerate() {
            let (allowed, nanos) = serve(runtime, &routers[index], calls);
            let all = scenario.quota == Quota::Ample || guard == Guard::Nothing;
            let expected = if all { TURN } else { 0 };
            ensure!(allowed == expected, "{}: {allowed} of {TURN} allowed", guard.name());
            let whole = nanos / TURN as f64;
            if guard == Guard::Nothing {
                alone = whole;
            }
            // The first round warms up.
            if round > 0 {
                measured.whole[index].push(whole);
                measured.more[index].push(whole - alone);
            }
        }
    }
    Ok(measured)
}

/// How many were allowed, and the nanoseconds that took.
fn serve(runtime: &Runtime, router: &Router, calls: &[u32]) -> (usize, f64) {
    let (mut allowed, mut nanos) = (0, 0.0);
    for calls in calls.chunks(BATCH) {
        let requests: Vec<Request> = calls.iter().copied().map(request).collect();
        let start = ThreadTime::now();
        allowed += runtime.block_on(async {
            let mut allowed = 0;
            for request in requests {
                allowed += usize::from(answer(router, request).await == StatusCode::OK);
            }
            allowed
        });
        nanos += start.elapsed().as_nanos() as f64;
    }
    (allowed, nanos)
}

/// As a server does it: a router of its own for each request, and the body to its end.
async fn answer(router: &Router, request: Request) -> StatusCode {
    let Ok(response) = router.clone().oneshot(request).await;
    let (parts, mut body) = response.into_parts();
    while let Some(Ok(_)) = body.frame().await {}
    parts.status
}

fn request(caller: u32) -> Request {
    // The network for benchmarks, which has room for 131072.
    let address = Ipv4Addr::from_bits(Ipv4Addr::new(198, 18, 0, 0).to_bits() + caller);
    let request = Request::get("/items/42")
        .header("host", "api.example.com")
        .header("user-agent", "bench/1.0")
        .header("accept", "application/json")
        .extension(ConnectInfo(SocketAddr::from((address, 4711))));
    request.body(Body::empty()).expect("all of it is well-formed")
}

/// How often a request allocates, in a build that counts it.
fn count(runtime: &Runtime, scenarios: &[Scenario]) -> Result<()> {
    let mut rows: Vec<Vec<String>> = Guard::ALL.iter().map(|guard| vec![guard.name().to_owned()]).collect();
    for scenario in scenarios {
        for (row, router) in rows.iter_mut().zip(routers(runtime, scenario)?) {
            let caller = request(scenario.calls[0]);
            row.push(allocations(|| runtime.block_on(answer(&router, caller))).to_string());
        }
    }
    let titles = scenarios.iter().map(|scenario| scenario.title);
    let header: Vec<&str> = ["before the router"].into_iter().chain(titles).collect();
    println!("### Allocations of a request\n\n{}", render(&header, &rows));
    Ok(())
}

#[cfg(feature = "allocations")]
fn allocations(answer: impl FnOnce() -> StatusCode) -> u64 {
    allocation_counter::measure(|| {
        answer();
    })
    .count_total
}

#[cfg(not(feature = "allocations"))]
fn allocations(_: impl FnOnce() -> StatusCode) -> u64 {
    0
}

fn report(effort: &Effort, measured: &[Measured]) {
    let place = |guard: Guard| Guard::ALL.iter().position(|&other| other == guard).unwrap_or(0);
    for scenario in measured {
        println!("### {}\n", scenario.title);
        let header = [
            "before the router",
            "ns per request",
            "× the router alone",
            "ns more than it",
            "× what tower_governor adds",
        ];
        let rows = Guard::ALL.into_iter().enumerate().map(|(index, guard)| {
            let (whole, more) = (&scenario.whole[index], &scenario.more[index]);
            let ratio = (index > 1).then(|| more.ratio_to(&scenario.more[place(guard.rival())])).flatten();
            vec![
                guard.name().to_owned(),
                whole.spread(0),
                times(whole.ratio_to(&scenario.whole[0])),
                more.spread(0),
                times(ratio),
            ]
        });
        println!("{}", render(&header, &rows.collect::<Vec<_>>()));
    }
    println!("{}\n", NOTES.trim());
    println!("Medians of {} rounds [least–most]; a ratio is the median of the rounds' ratios.", effort.rounds);
}

const NOTES: &str = "
What each was asked:
- The same requests to an axum 0.8 `Router` of one route, in process, without a network; the response is read to its end.
  Requests are built before the clock starts. Time is that of the thread: who else runs on the machine is not counted.
- Each caller's address, found in `ConnectInfo`. Allowed: a hundred million at once, one more every 16 s; denied: ten at once,
  used up, one more an hour. Every address is known before the first round.
- A layer that does nothing: tower's `Identity`, or one that refuses everything with an empty 429. It is what axum takes for any
  layer. A refused request does not reach the route, so it can cost less than one to the router alone.
- tower_governor 0.8.0: `PeerIpKeyExtractor`. Without headers it tells an allowed caller nothing; with `use_headers`, the limit and
  what remains. It makes a new clock for every refusal, and with it asks the processor what it can (`cpuid`); in a virtual
  machine that traps. On this one seven eighths of the time of a refusal is that; elsewhere it may be next to nothing.
- tallygate-tower: `RateLimit::per_client` on the embedded store. By default it tells the policy, what remains and the wait, and refusals
  are problem+json. With `share_verdict` it also puts its verdict into the extensions of request and response, which
  tower_governor has nothing like.
- What tower_governor adds: rows with headers are compared with `use_headers`, rows without with its default.
";
