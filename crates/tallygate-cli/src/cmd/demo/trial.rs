//! One algorithm against the traffic, on a clock that is moved from call to call.

use std::time::Duration;

use tallygate::{Algorithm, Check, Cost, Key, Limit, Limiter, ManualClock, MemoryStore, Timestamp};

use super::picture::short;
use super::traffic::Traffic;
use crate::duration;

#[derive(Debug)]
pub(crate) struct Trial {
    pub(crate) limit: Limit,
    /// When the admitted calls arrived.
    pub(crate) admitted: Vec<u64>,
    pub(crate) units: u64,
    pub(crate) worst: Worst,
}

/// The most that was admitted within any span of one window; of several such, the shortest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Worst {
    pub(crate) units: u64,
    /// The first and the last call in it.
    pub(crate) first: u64,
    pub(crate) last: u64,
}

impl Trial {
    pub(crate) fn run(limit: &Limit, traffic: &Traffic) -> anyhow::Result<Self> {
        // A multiple of the window, so that the windows of the wall clock are those of the traffic.
        let origin = 10 * traffic.window;
        let clock = ManualClock::new(Timestamp::from_micros(origin));
        let limiter = Limiter::new(MemoryStore::builder().capacity(1).clock(clock.clone()).build());
        let check = Check::new(Key::new("demo", "everyone")?, limit).cost(Cost::new(traffic.cost)?);
        let mut admitted = Vec::new();
        for &at in &traffic.calls {
            clock.set(Timestamp::from_micros(origin + at));
            if limiter.check_now(check)?.allowed() {
                admitted.push(at);
            }
        }
        let units = admitted.len() as u64 * traffic.cost;
        let worst = Worst::of(&admitted, traffic.cost, traffic.window);
        Ok(Self { limit: limit.clone(), admitted, units, worst })
    }

    /// Whether more than the amount passed within one window.
    pub(crate) fn over(&self) -> bool {
        self.worst.units > self.limit.amount()
    }

    pub(crate) fn verdict(&self) -> String {
        let amount = short(self.limit.amount());
        let twice = short(2 * self.limit.amount());
        let window = duration::render(self.limit.window());
        if self.over() {
            let seen = format!("{} in {}", short(self.worst.units), duration::render(self.worst.extent(&self.limit)));
            let why = match self.limit.algorithm() {
                Algorithm::FixedWindow | Algorithm::FixedWindowFromFirstCall => "a full limit each side",
                Algorithm::TokenBucket => "savings, then the refill",
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

impl Worst {
    fn of(admitted: &[u64], cost: u64, window: u64) -> Self {
        let mut worst = Self { units: 0, first: 0, last: 0 };
        let mut start = 0;
        for (end, &last) in admitted.iter().enumerate() {
            // A span of one window is half open: a call exactly one window later is in the next.
            while last - admitted[start] >= window {
                start += 1;
            }
            let found = Self { units: (end - start + 1) as u64 * cost, first: admitted[start], last };
            let shorter = found.last - found.first < worst.last - worst.first;
            if found.units > worst.units || (found.units == worst.units && shorter) {
                worst = found;
            }
        }
        worst
    }

    /// How long it took, rounded up to a hundredth of the window: finer would be noise.
    pub(crate) fn extent(&self, limit: &Limit) -> Duration {
        let step = u64::try_from(limit.window().as_micros() / 100).unwrap_or(0).max(1);
        Duration::from_micros((self.last - self.first).next_multiple_of(step))
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
    fn the_worst_span_is_half_open_and_the_shortest_of_equals() {
        let worst = Worst::of(&[0, 4, 10, 11, 12], 1, 10);
        assert_eq!(worst, Worst { units: 4, first: 4, last: 12 });
        assert_eq!(Worst::of(&[0, 9, 20, 21], 3, 10), Worst { units: 6, first: 20, last: 21 });
        assert_eq!(Worst::of(&[], 1, 10).units, 0);
    }

    #[test]
    fn a_fixed_window_admits_twice_its_limit_around_a_boundary_and_the_sliding_ones_never() {
        for (amount, window) in [(10, "10s"), (1, "s"), (100, "min"), (1000, "ms"), (1_000_000_000, "365d")] {
            let worst = |algorithm: &str| trial(&format!("{amount}/{window} {algorithm}")).worst.units;
            assert_eq!(worst("fixed_window"), 2 * amount, "{amount}/{window}");
            assert!(worst("sliding_log") <= amount, "{amount}/{window}");
            assert!(worst("sliding_window") <= amount, "{amount}/{window}");
            assert!(worst("token_bucket") <= 2 * amount, "{amount}/{window}");
        }
    }
}
