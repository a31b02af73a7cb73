//! One process of `verify`: clients that share a store, and write their answers to stdout.

use std::io::{self, BufRead, BufWriter, Write};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use serde::{Deserialize, Serialize};
use tallygate::Limiter;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::client::Client;
use super::protocol::Entry;
use super::scenario::Scenario;
use crate::output::Outcome;
use crate::store::StoreArgs;

/// Started by `verify` only
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// From the environment, so that no password is in a list of processes.
    #[command(flatten)]
    store: StoreArgs,
    #[arg(value_parser = |text: &str| serde_json::from_str::<Task>(text))]
    task: Task,
}

/// The task of a worker, as JSON.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Task {
    pub(crate) scenario: String,
    pub(crate) window: Duration,
    pub(crate) name: String,
    pub(crate) worker: usize,
    pub(crate) clients: usize,
    pub(crate) length: Duration,
}

pub(crate) async fn run(args: Args, out: &mut impl Write) -> anyhow::Result<Outcome> {
    args.store.url().context("a worker needs a server")?;
    let task = args.task;
    let scenario = Scenario::new(&task.scenario, task.window)?;
    let limiter = Limiter::new(args.store.open().await?);
    let begin = begin_or_end_with_parent();
    write(out, &Entry::Ready)?;
    out.flush()?;
    if begin.await.is_err() {
        return Ok(Outcome::Denied);
    }
    let until = Instant::now() + task.length;
    let (entries, mut heard) = mpsc::channel(1024);
    let client = Arc::new(Client { limiter, scenario, name: task.name, pause: Duration::ZERO, until, entries });
    let seeds = (task.worker as u64 * 10_000..).take(task.clients);
    let clients: Vec<_> = seeds.map(|seed| tokio::spawn(Arc::clone(&client).run(seed))).collect();
    drop(client);
    let mut out = BufWriter::new(out);
    while let Some(entry) = heard.recv().await {
        write(&mut out, &entry)?;
    }
    for client in clients {
        client.await??;
    }
    write(&mut out, &Entry::Done)?;
    out.flush()?;
    Ok(Outcome::Allowed)
}

fn write(out: &mut impl Write, entry: &Entry) -> anyhow::Result<()> {
    serde_json::to_writer(&mut *out, entry)?;
    Ok(out.write_all(b"\n")?)
}

/// The first line from the parent starts the run. When the pipe closes, the parent has ended, and so does this process.
fn begin_or_end_with_parent() -> oneshot::Receiver<()> {
    let (signal, begin) = oneshot::channel();
    std::thread::spawn(move || {
        let mut line = String::new();
        let mut stdin = io::stdin().lock();
        if stdin.read_line(&mut line).is_ok_and(|length| length > 0) {
            let _ = signal.send(());
            line.clear();
            while stdin.read_line(&mut line).is_ok_and(|length| length > 0) {}
        }
        std::process::exit(2);
    });
    begin
}
