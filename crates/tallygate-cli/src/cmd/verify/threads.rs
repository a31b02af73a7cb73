//! The same scenarios on the embedded store: as many threads as there would be clients.

use std::sync::mpsc;
use std::time::Duration;

use tallygate::{Limiter, MemoryStore};
use tokio::time::Instant;

use super::protocol::{Entry, Recording};
use super::random::Random;
use super::scenario::{self, Scenario};

/// Calls made back to back before a pause. Without pauses the records of a second would not fit in memory.
const BURST: usize = 16;
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
    let (entries, heard) = mpsc::sync_channel::<Vec<Entry>>(64);
    let policies = scenario.policies(name);
    let added = std::thread::scope(|scope| {
        let mut clients = Vec::new();
        for number in 0..threads {
            let (entries, policies) = (entries.clone(), policies.as_slice());
            clients.push(scope.spawn(move || -> anyhow::Result<()> {
                let runtime = tokio::runtime::Builder::new_current_thread().build()?;
                let mut random = Random::new(number as u64);
                let subjects: Vec<String> = (0..scenario::KEYS).map(scenario::subject).collect();
                while begun.elapsed() < length {
                    let mut burst = Vec::with_capacity(BURST);
                    for _ in 0..BURST {
                        let (key, cost) = scenario::pick(&mut random)?;
                        let checks = scenario.checks(policies, &subjects[usize::from(key)], cost)?;
                        let decision = match checks.as_slice() {
                            [check] => limiter.check_now(*check)?,
                            several => runtime.block_on(limiter.check_all(several))?,
                        };
                        burst.push(Entry::answer(key, cost, &decision));
                    }
                    entries.send(burst)?;
                    std::thread::sleep(PAUSE);
                }
                Ok(())
            }));
        }
        drop(entries);
        for burst in heard {
            burst.into_iter().try_for_each(|entry| recording.add(entry))?;
            show(begun.elapsed().min(length), recording.answers);
        }
        for client in clients {
            client.join().map_err(|_| anyhow::anyhow!("a client panicked"))??;
        }
        Ok(())
    });
    recording.took = begun.elapsed();
    added.map(|()| recording)
}
