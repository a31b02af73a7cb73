//! One client: makes calls one after the other, and reports the answers.

use std::sync::Arc;
use std::time::Duration;

use tallygate::store::StoreErrorKind;
use tallygate::{CheckError, Limiter};
use tallygate_redis::AnyStore;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};

use super::protocol::Entry;
use super::scenario::{self, Random, Scenario};

/// Calls made back to back before a pause.
const BURST: u64 = 16;

/// What the clients of a process share.
pub(crate) struct Client {
    pub(crate) limiter: Limiter<AnyStore>,
    pub(crate) scenario: Scenario,
    /// The policy of the first limit.
    pub(crate) name: String,
    /// Between bursts.
    pub(crate) pause: Duration,
    pub(crate) until: Instant,
    pub(crate) entries: mpsc::Sender<Entry>,
}

impl Client {
    pub(crate) async fn run(self: Arc<Self>, seed: u64) -> anyhow::Result<()> {
        let mut random = Random::new(seed);
        let subjects: Vec<String> = (0..scenario::KEYS).map(scenario::subject).collect();
        let policies = self.scenario.policies(&self.name);
        for number in 1.. {
            if Instant::now() >= self.until {
                break;
            }
            let (key, cost) = scenario::pick(&mut random)?;
            let checks = self.scenario.checks(&policies, &subjects[usize::from(key)], cost)?;
            let answer = match self.limiter.check_all(&checks).await {
                Ok(decision) => Entry::answer(key, cost, &decision),
                Err(CheckError::Store(error)) if error.kind() == StoreErrorKind::Ambiguous => Entry::Unknown { key },
                Err(CheckError::Store(error)) if error.kind() == StoreErrorKind::Corrupt => return Err(error.into()),
                Err(error) => Entry::Failed { why: error.to_string() },
            };
            if matches!(answer, Entry::Failed { .. }) {
                // Otherwise a store that fails at once would be asked a million times.
                sleep(Duration::from_millis(10)).await;
            }
            self.entries.send(answer).await?;
            if number % BURST == 0 && !self.pause.is_zero() {
                sleep(self.pause).await;
            }
        }
        Ok(())
    }
}
