//! The same scenarios on the embedded store: as many threads as there would be clients.

use std::thread;
use std::time::Duration;

use tallygate::{Limiter, MemoryStore};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::client::Client;
use super::protocol::Recording;
use super::random::Random;
use super::scenario::Scenario;

/// Without pauses the records of a second would not fit in memory.
const PAUSE: Duration = Duration::from_millis(2);

pub(crate) async fn run(
    limiter: &Limiter<MemoryStore>,
    scenario: &Scenario,
    name: &str,
    threads: usize,
    length: Duration,
    show: &mut impl FnMut(Duration, u64),
) -> anyhow::Result<Recording> {
    let mut recording = Recording::new(scenario);
    let begun = Instant::now();
    let (entries, mut heard) = mpsc::channel(1024);
    let spawn = |number| {
        let (limiter, scenario, name, entries) = (limiter.clone(), scenario.clone(), name.to_owned(), entries.clone());
        let client = Client { limiter, scenario, name, random: Random::new(number), pause: PAUSE, entries };
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
            runtime.block_on(client.call_until(begun + length))
        })
    };
    let clients: Vec<_> = (0..threads as u64).map(spawn).collect();
    drop(entries);
    while let Some(entry) = heard.recv().await {
        recording.add(entry)?;
        show(begun.elapsed().min(length), recording.answers);
    }
    for client in clients {
        client.join().map_err(|_| anyhow::anyhow!("a client panicked"))??;
    }
    recording.took = begun.elapsed();
    Ok(recording)
}
