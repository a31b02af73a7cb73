//! As many policies as a server takes, all with patterns: calls that are slow to match must not starve health checks.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tallygate_testkit::Server;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::Sheet;
use super::figures::Times;
use crate::served::{HttpClient, Served};

/// Clients at the same time.
const CLIENTS: usize = 40;

pub fn run(seconds: u64) -> Sheet {
    let mut sheet = Sheet::default();
    let store = Server::redis().start();
    for policies in [500, 2000, 10_000] {
        let served = Served::with_policies(&store.url(), &file(policies), Duration::from_millis(15));
        for descriptors in [1, 32] {
            sheet.part(format!("{policies} policies, {CLIENTS} clients, descriptors of each call: {descriptors}"));
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
            let time = Duration::from_secs(seconds);
            let seen = runtime.expect("threads can be started").block_on(load(served.addr(), descriptors, time));
            let calls = Times::new(seen.calls);
            sheet.figure("calls a second", calls.count() / seconds, "");
            sheet.figure("p50 / p99 / max", calls.spread(), "");
            let sources = seen.by_source.iter().map(|(source, count)| format!("{source} {count}"));
            sheet.figure("answered by", sources.collect::<Vec<_>>().join(", "), "");
            let probes = Times::new(seen.probes);
            let what = format!("/livez: p50 / p99 / max of {}", probes.count());
            sheet.figure(what, probes.spread(), "a kubelet waits 2 s");
            sheet.at_most("/livez: not answered", seen.failed, 0);
        }
    }
    sheet
}

fn file(policies: usize) -> String {
    let mut text = "policies:\n".to_owned();
    for index in 0..policies {
        writeln!(
            text,
            "  - {{name: p{index}, domain: t, match: {{path: \"*/p{index}/*\"}}, partition: [ip], limit: 1000000/h}}"
        )
        .expect("a string");
    }
    text
}

/// Times in microseconds.
#[derive(Debug, Default)]
struct Seen {
    calls: Vec<u64>,
    by_source: BTreeMap<String, u64>,
    probes: Vec<u64>,
    failed: u64,
}

async fn load(addr: SocketAddr, descriptors: usize, time: Duration) -> Seen {
    let seen = Arc::new(Mutex::new(Seen::default()));
    let until = Instant::now() + time;
    let mut tasks = JoinSet::new();
    for client in 0..CLIENTS {
        let (seen, body) = (Arc::clone(&seen), body(client, descriptors));
        tasks.spawn(async move {
            let mut kept = HttpClient::open(addr).await.expect("the server accepts");
            while Instant::now() < until {
                let start = Instant::now();
                let (status, answer) = kept.post("/v1/check", &body).await.expect("the server answers");
                let answer: Value = serde_json::from_slice(&answer).unwrap_or_default();
                let source = answer["source"].as_str().map_or_else(|| format!("status {status}"), str::to_owned);
                let mut seen = seen.lock().expect("no caller panics");
                seen.calls.push(micros(start));
                *seen.by_source.entry(source).or_default() += 1;
            }
        });
    }
    let probes = Arc::clone(&seen);
    tasks.spawn(async move {
        while Instant::now() < until {
            let start = Instant::now();
            let probe = async { HttpClient::open(addr).await?.get("/livez").await };
            let alive = probe.await.is_ok_and(|(status, _)| status == 200);
            {
                let mut seen = probes.lock().expect("no caller panics");
                seen.probes.push(micros(start));
                seen.failed += u64::from(!alive);
            }
            sleep(Duration::from_millis(20)).await;
        }
    });
    tasks.join_all().await;
    std::mem::take(&mut *seen.lock().expect("no caller panics"))
}

/// Values of 800 bytes, which match one policy at their end.
fn body(client: usize, descriptors: usize) -> String {
    let descriptors: Vec<Value> = (0..descriptors)
        .map(|number| json!({"path": format!("{}/p7/x", "/a".repeat(397)), "ip": format!("{client}-{number}")}))
        .collect();
    json!({"domain": "t", "descriptors": descriptors}).to_string()
}

fn micros(start: Instant) -> u64 {
    u64::try_from(start.elapsed().as_micros()).unwrap_or(u64::MAX)
}
