//! One process of `verify`: some clients that share a store, and write what they were answered to stdout.

use std::io::{self, BufRead, BufWriter, Write};
use std::time::Duration;

use anyhow::Context;
use tallygate::Limiter;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::client::Client;
use super::protocol::Entry;
use super::random::Random;
use super::scenario::Scenario;
use crate::output::Outcome;
use crate::store::{self, StoreArgs};

/// Started by `verify`, by nobody else
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// From the environment, so that no password shows in a list of processes.
    #[command(flatten)]
    store: StoreArgs,
    #[arg(long)]
    scenario: String,
    #[arg(long)]
    window_ms: u64,
    #[arg(long)]
    name: String,
    #[arg(long)]
    worker: u64,
    #[arg(long)]
    clients: u64,
    #[arg(long)]
    millis: u64,
}

pub(crate) async fn run(args: Args, out: &mut impl Write) -> anyhow::Result<Outcome> {
    let url = args.store.url().context("a worker needs a server")?;
    let scenario = Scenario::new(&args.scenario, Duration::from_millis(args.window_ms))?;
    let limiter = Limiter::new(store::redis(url, &args.store.prefix).await?);
    let begin = leash();
    say(out, &Entry::Ready)?;
    out.flush()?;
    if begin.await.is_err() {
        return Ok(Outcome::Denied);
    }
    let until = Instant::now() + Duration::from_millis(args.millis);
    let (entries, mut heard) = mpsc::channel(1024);
    let spawn = |number| {
        let (limiter, scenario, name, entries) =
            (limiter.clone(), scenario.clone(), args.name.clone(), entries.clone());
        let random = Random::new(args.worker * 10_000 + number);
        tokio::spawn(Client { limiter, scenario, name, random, pause: Duration::ZERO, entries }.call_until(until))
    };
    let clients: Vec<_> = (0..args.clients).map(spawn).collect();
    drop(entries);
    let mut out = BufWriter::new(out);
    while let Some(entry) = heard.recv().await {
        say(&mut out, &entry)?;
    }
    for client in clients {
        client.await??;
    }
    say(&mut out, &Entry::Done)?;
    out.flush()?;
    Ok(Outcome::Allowed)
}

fn say(out: &mut impl Write, entry: &Entry) -> anyhow::Result<()> {
    serde_json::to_writer(&mut *out, entry)?;
    Ok(out.write_all(b"\n")?)
}

/// The first line from the parent is the word to begin. When its end of the pipe closes the parent is gone, however it
/// ended, and so is this process.
fn leash() -> oneshot::Receiver<()> {
    let (word, begin) = oneshot::channel();
    std::thread::spawn(move || {
        let mut line = String::new();
        let mut stdin = io::stdin().lock();
        if stdin.read_line(&mut line).is_ok_and(|length| length > 0) {
            let _ = word.send(());
            line.clear();
            while stdin.read_line(&mut line).is_ok_and(|length| length > 0) {}
        }
        std::process::exit(2);
    });
    begin
}
