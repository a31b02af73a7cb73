//! The traffic of the demo: quiet, a burst on either side of a window boundary, a pause, then hammering.

use std::time::Duration;

/// How many windows the traffic lasts.
pub(crate) const WINDOWS: usize = 5;
/// How many columns of the picture one window takes.
pub(crate) const SLOTS: usize = 8;

/// A stretch of evenly spread calls.
struct Phase {
    /// From this slot on, and up to that one.
    slots: (u64, u64),
    /// The units asked for in it, in percent of the limit.
    percent: u64,
}

const PHASES: [Phase; 4] = [
    Phase { slots: (0, 8), percent: 40 },
    Phase { slots: (14, 16), percent: 100 },
    Phase { slots: (16, 18), percent: 100 },
    Phase { slots: (24, 40), percent: 320 },
];

/// Above this limit the calls cost more instead of being more: the picture is the same, and drawn faster.
const MOST_CALLS_PER_WINDOW: u64 = 1000;

/// When calls arrive, and what each costs. Times are microseconds from the start of a window.
#[derive(Debug)]
pub(crate) struct Traffic {
    pub(crate) window: u64,
    pub(crate) cost: u64,
    pub(crate) calls: Vec<u64>,
}

impl Traffic {
    /// Traffic for a limit of `amount` per `window`.
    pub(crate) fn for_limit(amount: u64, window: Duration) -> Self {
        let window = u64::try_from(window.as_micros()).expect("a window is at most 365 days");
        let cost = amount.div_ceil(MOST_CALLS_PER_WINDOW);
        let calls = PHASES.iter().flat_map(|phase| {
            let count = (amount / cost * phase.percent / 100).max(1);
            let (from, to) = phase.slots;
            // Each call is in the middle of its share of the phase, so that none is on a boundary.
            let place = move |call: u64| 2 * count * from + (2 * call + 1) * (to - from);
            (0..count).map(move |call| place(call) * window / (2 * count * SLOTS as u64))
        });
        Self { window, cost, calls: calls.collect() }
    }

    /// The column of the picture an instant falls in.
    pub(crate) fn slot_of(&self, at: u64) -> usize {
        let slot = at * SLOTS as u64 / self.window;
        usize::try_from(slot).map_or(usize::MAX, |slot| slot.min(WINDOWS * SLOTS - 1))
    }

    pub(crate) fn per_slot(&self, instants: &[u64]) -> Vec<u64> {
        let mut counts = vec![0; WINDOWS * SLOTS];
        for &at in instants {
            counts[self.slot_of(at)] += 1;
        }
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_come_in_order_and_stay_inside() {
        for (amount, millis) in [(1, 1), (10, 10_000), (1_000_000_000, 365 * 86_400_000), (7, 60_000)] {
            let traffic = Traffic::for_limit(amount, Duration::from_millis(millis));
            assert!(traffic.calls.is_sorted(), "{amount} per {millis} ms");
            let end = traffic.window * WINDOWS as u64;
            assert!(traffic.calls.iter().all(|&at| at < end), "{amount} per {millis} ms");
            assert!(traffic.calls.len() <= 9000);
        }
    }
}
