//! The same scenarios on the embedded store, with a thread for each client.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use tallygate::Limiter;
use tallygate_redis::AnyStore;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::Session;
use super::client::Client;
use super::protocol::Recording;

/// Without pauses the records of a second would not fit in memory.
const PAUSE: Duration = Duration::from_millis(2);

pub(crate) async fn run(
    limiter: &Limiter<AnyStore>,
    session: &Session<'_>,
    show: &mut impl FnMut(Duration, u64),
) -> anyhow::Result<Recording> {
    let mut recording = Recording::new(session.scenario);
    let begun = Instant::now();
    let (entries, mut heard) = mpsc::channel(1024);
    let (limiter, scenario, name) = (limiter.clone(), session.scenario.clone(), session.name.to_owned());
    let until = begun + session.length;
    let client = Arc::new(Client { limiter, scenario, name, pause: PAUSE, until, entries });
    let spawn = |number| {
        let client = Arc::clone(&client);
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
            runtime.block_on(client.run(number))
        })
    };
    let clients: Vec<_> =
        (0..session.args.clients * session.args.processes).map(|number| spawn(number as u64)).collect();
    drop(client);
    while let Some(entry) = heard.recv().await {
        recording.add(entry)?;
        show(begun.elapsed().min(session.length), recording.finding.decisions);
    }
    for client in clients {
        client.join().map_err(|_| anyhow::anyhow!("a client panicked"))??;
    }
    recording.finding.took = begun.elapsed();
    Ok(recording)
}
