//! A process that serves a file, with a clock that stands still.

use std::time::Duration;

use tallygate::clock::{ManualClock, Timestamp};
use tallygate::policy::{Ask, Descriptor, PolicySet, Stores, Verdict};
use tallygate::{Cost, MemoryStore};
use tallygate_config::Config;

/// Calls that are tried before a limit counts as none.
const MANY: usize = 3000;

pub struct Scene {
    pub policies: PolicySet,
    pub warnings: Vec<String>,
    stores: Stores<MemoryStore>,
    clock: ManualClock,
}

/// `user=1,path=/a` as a descriptor.
pub fn descriptor(text: &str) -> Descriptor {
    text.split(',').filter(|entry| !entry.is_empty()).map(|entry| entry.split_once('=').unwrap()).collect()
}

impl Scene {
    /// The clock stands at the start of a second, a minute, a day and a year as they are aligned here.
    pub fn new(text: &str) -> Self {
        Self::of(Config::from_texts(&[("file.yaml", text)]).unwrap_or_else(|findings| panic!("{findings}")))
    }

    pub fn of(config: Config) -> Self {
        let clock = ManualClock::new(Timestamp::from_micros(50 * 365 * 86_400 * 1_000_000));
        let store = MemoryStore::builder().clock(clock.clone()).build();
        let warnings = config.warnings.iter().map(ToString::to_string).collect();
        Self { policies: config.policies, warnings, stores: Stores::new(store), clock }
    }

    pub fn after(&self, seconds: u64) -> &Self {
        self.clock.advance(Duration::from_secs(seconds));
        self
    }

    pub fn verdict(&self, domain: &str, descriptors: &[&str], cost: u64) -> Verdict {
        let cost = Cost::new(cost).unwrap();
        let asks: Vec<Ask> = descriptors.iter().map(|text| Ask::check(descriptor(text), cost)).collect();
        let Some(domain) = self.policies.domain(domain) else { return Verdict::unlimited() };
        domain.evaluate(&asks).decide_now(&self.stores).expect("the embedded store never waits")
    }

    pub fn call(&self, domain: &str, descriptors: &[&str]) -> bool {
        self.verdict(domain, descriptors, 1).allowed()
    }

    /// How many calls pass at this instant; `None` if all do.
    pub fn passing(&self, domain: &str, descriptors: &[&str]) -> Option<usize> {
        (0..MANY).find(|_| !self.call(domain, descriptors))
    }

    /// The policies that the call falls under.
    pub fn policies_of(&self, domain: &str, descriptors: &[&str]) -> Vec<String> {
        let verdict = self.verdict(domain, descriptors, 1);
        verdict.rulings().iter().map(|ruling| ruling.policy().name().to_owned()).collect()
    }
}
