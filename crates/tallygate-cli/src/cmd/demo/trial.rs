//! One algorithm under the traffic, on a manual clock.

use std::cmp::Reverse;
use std::time::Duration;

use anyhow::Context;
use tallygate::clock::{ManualClock, Timestamp};
use tallygate::history::{self, Record, Span};
use tallygate::{Algorithm, Check, Cost, Key, Limit, Limiter, MemoryStore};

use super::picture::short;
use super::traffic::Traffic;
use crate::duration;

#[derive(Debug)]
pub(crate) struct Trial {
    pub(crate) limit: Limit,
    /// When the admitted calls arrived.
    pub(crate) admitted: Vec<u64>,
    pub(crate) units: u64,
    /// The most that was admitted within any span of one window; of several above the limit, the shortest.
    pub(crate) worst: Span,
}

impl Trial {
    pub(crate) fn run(limit: &Limit, traffic: &Traffic) -> anyhow::Result<Self> {
        // A multiple of the window, so that aligned windows are those of the traffic.
        let origin = 10 * traffic.window;
        let clock = ManualClock::new(Timestamp::from_micros(origin));
        let limiter = Limiter::new(MemoryStore::builder().capacity(1).clock(clock.clone()).build());
        let check = Check::new(Key::new("demo", "everyone")?, limit).cost(Cost::new(traffic.cost)?);
        let (mut admitted, mut records) = (Vec::new(), Vec::new());
        for &at in &traffic.calls {
            clock.set(Timestamp::from_micros(origin + at));
            if limiter.check_now(check)?.allowed() {
                admitted.push(at);
                records.push(Record::bare(Timestamp::from_micros(at), traffic.cost, true));
            }
        }
        let units = admitted.len() as u64 * traffic.cost;
        // Compared with the bound of the exact algorithm.
        let exact = Limit::builder(limit.amount(), limit.window()).algorithm(Algorithm::SlidingLog).build()?;
        let bound = history::bound(&exact, &records);
        let shortest_peak = |span: &&Span| (span.admitted, Reverse(span.to.as_micros() - span.from.as_micros()));
        let worst = bound.violations.iter().rev().max_by_key(shortest_peak).copied().or(bound.worst);
        let worst = worst.context("the first call is always admitted")?;
        Ok(Self { limit: limit.clone(), admitted, units, worst })
    }

    /// Whether more than the amount passed within one window.
    pub(crate) fn over(&self) -> bool {
        self.worst.admitted > self.limit.amount()
    }

    /// The length of the worst span, rounded up to a hundredth of the window.
    pub(crate) fn extent(&self) -> Duration {
        let step = u64::try_from(self.limit.window().as_micros() / 100).unwrap_or(0).max(1);
        Duration::from_micros((self.worst.to.as_micros() - self.worst.from.as_micros()).next_multiple_of(step))
    }

    pub(crate) fn verdict(&self) -> String {
        let amount = short(self.limit.amount());
        let twice = short(2 * self.limit.amount());
        let window = duration::render(self.limit.window());
        if self.over() {
            let seen = format!("{} in {}", short(self.worst.admitted), duration::render(self.extent()));
            let why = match self.limit.algorithm() {
                Algorithm::FixedWindow | Algorithm::FixedWindowFromFirstCall => "a full limit each side",
                Algorithm::TokenBucket => "the burst, then the refill",
                _ => "it assumes an even pace",
            };
            return format!("{seen}: {why}");
        }
        match self.limit.algorithm() {
            Algorithm::FixedWindow => format!("held here; can reach {} around a boundary", twice),
            Algorithm::FixedWindowFromFirstCall => {
                format!("held here; can reach {} where one of its windows ends", twice)
            }
            Algorithm::TokenBucket => {
                format!("held here; can reach {}", short(self.limit.capacity() + self.limit.amount()))
            }
            Algorithm::SlidingCounter => format!("held here; an estimate, can come near {}", twice),
            Algorithm::SlidingLog => format!("never above {amount} in any {window}, and no call refused early"),
            _ => format!("never above {amount} in any {window}; may refuse a little early"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trial(text: &str) -> Trial {
        let limit: Limit = text.parse().unwrap();
        Trial::run(&limit, &Traffic::for_limit(limit.amount(), limit.window())).unwrap()
    }

    #[test]
    fn the_worst_span_is_the_shortest_of_equals() {
        // 2 pass in 250 ms around the second boundary, and later 2 in 667 ms.
        let worst = trial("1/s fixed_window").worst;
        assert_eq!((worst.admitted, worst.from.as_micros(), worst.to.as_micros()), (2, 1_875_000, 2_125_000));
    }

    #[test]
    fn a_fixed_window_admits_twice_its_limit_around_a_boundary_and_the_sliding_ones_never() {
        for (amount, window) in [(10, "10s"), (1, "s"), (100, "min"), (1000, "ms"), (1_000_000_000, "365d")] {
            let worst = |algorithm: &str| trial(&format!("{amount}/{window} {algorithm}")).worst.admitted;
            assert_eq!(worst("fixed_window"), 2 * amount, "{amount}/{window}");
            assert!(worst("sliding_log") <= amount, "{amount}/{window}");
            assert!(worst("sliding_window") <= amount, "{amount}/{window}");
            assert!(worst("token_bucket") <= 2 * amount, "{amount}/{window}");
        }
    }
}
