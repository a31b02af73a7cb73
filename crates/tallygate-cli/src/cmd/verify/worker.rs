//! One process of `verify`: some clients that share a store, and write what they were answered to stdout.

use std::io::{self, BufRead, Write};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tallygate::{CheckError, Limiter, StoreError};
use tallygate_redis::RedisStore;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::protocol::Entry;
use super::random::Random;
use super::scenario::{self, Scenario};
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

/// Bytes are written in pieces of this length.
const PIECE: usize = 4096;

pub(crate) async fn run(args: Args, out: &mut impl Write) -> anyhow::Result<Outcome> {
    let url = args.store.url().context("a worker needs a server")?;
    let scenario = Arc::new(Scenario::new(&args.scenario, Duration::from_millis(args.window_ms))?);
    let limiter = Limiter::new(store::redis(url, &args.store.prefix).await?);
    let begin = leash();
    say(out, &[Entry::Ready])?;
    if begin.await.is_err() {
        return Ok(Outcome::Denied);
    }
    let until = Instant::now() + Duration::from_millis(args.millis);
    let (pieces, mut spoken) = mpsc::channel::<Vec<u8>>(64);
    let clients: Vec<_> = (0..args.clients)
        .map(|number| {
            let client = Client {
                limiter: limiter.clone(),
                scenario: Arc::clone(&scenario),
                policies: scenario.policies(&args.name),
                random: Random::new(args.worker * 10_000 + number),
                pieces: pieces.clone(),
            };
            tokio::spawn(client.call_until(until))
        })
        .collect();
    drop(pieces);
    while let Some(piece) = spoken.recv().await {
        out.write_all(&piece)?;
    }
    for client in clients {
        client.await??;
    }
    say(out, &[Entry::Done])?;
    Ok(Outcome::Allowed)
}

fn say(out: &mut impl Write, entries: &[Entry]) -> io::Result<()> {
    let mut bytes = Vec::new();
    entries.iter().for_each(|entry| entry.write(&mut bytes));
    out.write_all(&bytes)?;
    out.flush()
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

struct Client {
    limiter: Limiter<RedisStore>,
    scenario: Arc<Scenario>,
    policies: Vec<String>,
    random: Random,
    pieces: mpsc::Sender<Vec<u8>>,
}

impl Client {
    async fn call_until(mut self, until: Instant) -> anyhow::Result<()> {
        let subjects: Vec<String> = (0..scenario::KEYS).map(scenario::subject).collect();
        let mut bytes = Vec::with_capacity(2 * PIECE);
        while Instant::now() < until {
            let (key, cost) = scenario::pick(&mut self.random)?;
            let checks = self.scenario.checks(&self.policies, &subjects[usize::from(key)], cost)?;
            let answer = match self.limiter.check_all(&checks).await {
                Ok(decision) => Entry::answer(key, cost, &decision),
                Err(CheckError::Store(StoreError::Ambiguous { .. })) => Entry::Unknown { key },
                Err(CheckError::Store(StoreError::Corrupt { reason })) => {
                    anyhow::bail!("the store holds something tallygate did not write: {reason}")
                }
                Err(error) => Entry::Failed { why: error.to_string() },
            };
            if matches!(answer, Entry::Failed { .. }) {
                // A store that refuses at once would otherwise be asked, and complained about, a million times.
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            answer.write(&mut bytes);
            if bytes.len() >= PIECE {
                self.pieces.send(std::mem::take(&mut bytes)).await?;
            }
        }
        Ok(self.pieces.send(bytes).await?)
    }
}
