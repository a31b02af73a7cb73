//! A scenario: a limit under one algorithm, or two limits at once, on two hot keys and many others.

use std::time::Duration;

use anyhow::{Context, ensure};
use tallygate::{Algorithm, Check, Cost, Key, Limit};

/// Keys that get half of the calls.
const HOT: u64 = 2;
pub(crate) const KEYS: u16 = 66;
/// Six calls of eight cost one unit.
const COSTS: [u64; 8] = [1, 1, 1, 1, 1, 1, 3, 7];
/// So that every cost fits.
const LEAST_AMOUNT: u64 = 10;

/// One limit, or a tight one and one that never denies.
#[derive(Debug, Clone)]
pub(crate) struct Scenario {
    pub(crate) slug: &'static str,
    pub(crate) limits: Vec<Limit>,
}

const TWO_LIMITS: &str = "two_limits";

impl Scenario {
    /// The scenarios of a run in which each lasts for `length`, with windows that are much shorter.
    pub(crate) fn all(algorithm: Option<Algorithm>, length: Duration) -> anyhow::Result<Vec<Self>> {
        ensure!(
            algorithm != Some(Algorithm::Concurrency),
            "what is in flight is only reserved, and verify makes checks: choose an algorithm that counts over time"
        );
        let every = || Algorithm::OVER_TIME.iter().map(|algorithm| algorithm.name()).chain([TWO_LIMITS]).collect();
        let slugs: Vec<&str> = algorithm.map_or_else(every, |algorithm| vec![algorithm.name()]);
        slugs.into_iter().map(|slug| Self::new(slug, window_for(length))).collect()
    }

    pub(crate) fn new(slug: &str, window: Duration) -> anyhow::Result<Self> {
        // 200 units a second for each key: some calls pass on every key, most are denied on a hot one.
        let amount = u64::try_from(window.as_millis() / 5)?.max(LEAST_AMOUNT);
        let limit = |algorithm| Limit::builder(amount, window).algorithm(algorithm);
        if slug == TWO_LIMITS {
            let loose = Limit::per_minute(1_000_000).algorithm(Algorithm::FixedWindowFromFirstCall);
            let limits = vec![limit(Algorithm::SlidingLog).build()?, loose.build()?];
            return Ok(Self { slug: TWO_LIMITS, limits });
        }
        let algorithm: Algorithm = slug.parse().context("a scenario")?;
        let limit = match algorithm {
            Algorithm::TokenBucket => limit(algorithm).burst(2 * amount),
            _ => limit(algorithm),
        };
        Ok(Self { slug: algorithm.name(), limits: vec![limit.build()?] })
    }

    pub(crate) fn title(&self) -> &'static str {
        if self.slug == TWO_LIMITS { "two limits, all or none" } else { self.slug }
    }

    /// The limit that denies, without its algorithm.
    pub(crate) fn written(&self) -> String {
        let limit = &self.limits[0];
        limit.to_string().replace(limit.algorithm().name(), "").trim_end().to_owned()
    }

    pub(crate) fn window(&self) -> Duration {
        self.limits[0].window()
    }

    /// The policy of each limit: `name`, and one beside it.
    pub(crate) fn policies(&self, name: &str) -> Vec<String> {
        let names = [name.to_owned(), format!("{name}-loose")];
        names.into_iter().take(self.limits.len()).collect()
    }

    pub(crate) fn checks<'a>(
        &'a self,
        policies: &'a [String],
        subject: &'a str,
        cost: Cost,
    ) -> anyhow::Result<Vec<Check<'a>>> {
        let check =
            |(policy, limit): (&'a String, &'a Limit)| Ok(Check::new(Key::new(policy, subject)?, limit).cost(cost));
        policies.iter().zip(&self.limits).map(check).collect()
    }
}

/// A sixth of the scenario, in steps that divide a second well.
fn window_for(length: Duration) -> Duration {
    let steps = [250, 200, 100, 50, 20].map(Duration::from_millis);
    steps.into_iter().find(|window| *window * 6 <= length).unwrap_or(steps[4])
}

pub(crate) fn subject(key: u16) -> String {
    if u64::from(key) < HOT { format!("hot-{key}") } else { format!("key-{key}") }
}

pub(crate) fn pick(random: &mut Random) -> anyhow::Result<(u16, Cost)> {
    let hot = random.below(2) == 0;
    let key = if hot { random.below(HOT) } else { HOT + random.below(u64::from(KEYS) - HOT) };
    let cost = COSTS[usize::try_from(random.below(COSTS.len() as u64))?];
    Ok((u16::try_from(key)?, Cost::new(cost)?))
}

/// Fast, and good enough to mix keys and costs (xorshift64*).
#[derive(Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self((seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % end
    }
}
