//! One of the processes that share a limit: it runs one job per line of input.

use std::io::Write;
use std::time::Duration;

use tallygate::history::Record;
use tallygate::{Check, Key, Limit};
use tokio::task::JoinSet;

use super::{CALLS, TASKS};
use crate::support::{limit, patient, units};

/// The environment variable with the store of a worker.
pub const URL: &str = "TALLYGATE_TEST_WORKER_STORE";

/// The main loop of a worker process.
pub async fn run(url: &str) {
    let limiter = patient(url).await;
    // The test harness may have begun a line. Written directly, because `println!` would be captured.
    let mut out = std::io::stdout();
    writeln!(out, "\nready").unwrap();
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let mut tasks = JoinSet::new();
        for task in 0..TASKS {
            let (limiter, line) = (limiter.clone(), line.clone());
            tasks.spawn(async move {
                let words: Vec<&str> = line.split('|').collect();
                let limits: Vec<Limit> = words[1..].iter().map(|text| limit(text)).collect();
                let subject = words[0];
                let checks: Vec<Check<'_>> = ["first", "second"]
                    .iter()
                    .zip(&limits)
                    .map(|(policy, limit)| Check::new(Key::new(policy, subject).unwrap(), limit))
                    .collect();
                let mut said = Vec::new();
                for call in 0..CALLS {
                    // With two limits, every other task checks only the second.
                    let asked = if task % 2 == 1 { &checks[checks.len() - 1..] } else { &checks[..] };
                    let cost = if limits[0].window() < Duration::from_secs(1) { 1 + (task + call) % 3 } else { 1 };
                    let asked: Vec<Check<'_>> = asked.iter().map(|check| check.cost(units(cost))).collect();
                    let decision = limiter.check_all(&asked).await.unwrap();
                    assert!(!decision.split());
                    let record = Record::new(units(cost), &decision);
                    said.push(write(asked.len(), &record));
                }
                said
            });
        }
        let mut out = std::io::stdout().lock();
        for said in tasks.join_all().await.into_iter().flatten() {
            writeln!(out, "{said}").unwrap();
        }
        writeln!(out, "done").unwrap();
    }
}

/// The number of checks in the call, and its answer.
fn write(checks: usize, record: &Record) -> String {
    let micros = |wait: Option<Duration>| wait.unwrap().as_micros();
    let (at, cost, allowed) = (record.decided_at.as_micros(), record.cost, u8::from(record.allowed));
    let (retry, reset) = (micros(record.retry_after), micros(record.reset_after));
    format!("{checks} {at} {cost} {allowed} {} {retry} {reset}", record.remaining.unwrap())
}
