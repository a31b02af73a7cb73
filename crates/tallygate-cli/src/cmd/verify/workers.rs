//! The worker processes of one scenario. They begin together, and never outlive this process.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, anyhow};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};

use super::Session;
use super::protocol::{Entry, Recording};
use super::worker::Task;

/// Beyond the length of the scenario, for connecting and for open calls at its end.
const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) async fn run(
    url: &str,
    session: &Session<'_>,
    show: &mut impl FnMut(Duration, u64),
) -> anyhow::Result<Recording> {
    let length = session.length;
    let (entries, mut heard) = mpsc::channel(1024);
    let mut workers = Vec::new();
    for number in 0..session.args.processes {
        workers.push(start(url, session, number, entries.clone())?);
    }
    drop(entries);
    let (mut ready, mut done) = (0, 0);
    let mut recording = Recording::new(session.scenario);
    let mut begun = Instant::now();
    while done < workers.len() {
        let entry = timeout(PATIENCE + length, heard.recv()).await.context("the workers do not answer")?;
        let entry = entry.context("the workers ended early")??;
        ready += usize::from(entry == Entry::Ready);
        done += usize::from(entry == Entry::Done);
        if entry == Entry::Ready && ready == workers.len() {
            begun = Instant::now();
            for worker in &mut workers {
                let stdin = worker.stdin.as_mut().context("its input is piped")?;
                // One that has ended is reported by its reader.
                let _ = stdin.write_all(b"begin\n").await;
            }
        }
        recording.add(entry)?;
        show(begun.elapsed().min(length), recording.finding.decisions);
    }
    recording.finding.took = begun.elapsed();
    for worker in &mut workers {
        worker.wait().await?;
    }
    Ok(recording)
}

/// Killed when it is dropped, and ends itself when its input closes: it never outlives this process.
fn start(
    url: &str,
    session: &Session<'_>,
    worker: usize,
    entries: mpsc::Sender<anyhow::Result<Entry>>,
) -> anyhow::Result<Child> {
    let Session { args, scenario, name, length } = *session;
    let (window, clients) = (scenario.window(), args.clients);
    let task = Task { scenario: scenario.slug.to_owned(), window, name: name.to_owned(), worker, clients, length };
    let program = std::env::current_exe().context("cannot find this program to start it again")?;
    let mut child = Command::new(program)
        .args(["verify-worker", "--prefix", &args.store.prefix, &serde_json::to_string(&task)?])
        // Not an argument: others on this machine can read those.
        .env("TALLYGATE_STORE", url)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .context("cannot start a worker")?;
    let mut lines = BufReader::new(child.stdout.take().context("its output is piped")?).lines();
    let mut stderr = child.stderr.take().context("its errors are piped")?;
    tokio::spawn(async move {
        while let Ok(Some(line)) = lines.next_line().await {
            let entry = serde_json::from_str(&line).context("a worker printed an unknown message");
            let done = matches!(entry, Ok(Entry::Done));
            if entries.send(entry).await.is_err() || done {
                return;
            }
        }
        // It ended without being done: its message is reported at once, while the others still run.
        let mut message = String::new();
        let _ = timeout(Duration::from_secs(1), stderr.read_to_string(&mut message)).await;
        let message = message.trim().trim_start_matches("error: ");
        let _ = entries.send(Err(anyhow!("a worker ended early: {message}"))).await;
    });
    Ok(child)
}
