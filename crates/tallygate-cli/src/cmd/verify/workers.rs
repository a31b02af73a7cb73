//! The worker processes of one scenario: started, told to begin together, listened to, and never left behind.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, bail};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};

use super::Session;
use super::protocol::{Entry, Recording};
use super::worker::Task;

/// Beyond the length of the scenario, for connecting and for what is under way at its end.
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
        let Some(entry) = entry else {
            bail!("a worker ended before its time{}", last_words(&mut workers).await);
        };
        let entry = entry?;
        ready += usize::from(entry == Entry::Ready);
        done += usize::from(entry == Entry::Done);
        if entry == Entry::Ready && ready == workers.len() {
            begun = Instant::now();
            for worker in &mut workers {
                let stdin = worker.stdin.as_mut().context("its input is piped")?;
                stdin.write_all(b"begin\n").await.context("a worker is gone")?;
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

/// It is killed when it is dropped, and ends by itself when its input closes: however we end, it does not outlive us.
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
    tokio::spawn(async move {
        while let Ok(Some(line)) = lines.next_line().await {
            let entry = serde_json::from_str(&line).context("a worker said what means nothing");
            if entries.send(entry).await.is_err() {
                return;
            }
        }
    });
    Ok(child)
}

/// What the workers that ended said on stderr.
async fn last_words(workers: &mut [Child]) -> String {
    for worker in workers {
        let mut words = String::new();
        if let Some(stderr) = &mut worker.stderr {
            let _ = timeout(Duration::from_secs(1), stderr.read_to_string(&mut words)).await;
        }
        if !words.trim().is_empty() {
            return format!(": {}", words.trim().trim_start_matches("error: "));
        }
    }
    String::new()
}
