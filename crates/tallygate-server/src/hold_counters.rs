//! What became of the holds of a policy, for the metrics.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use tallygate::hold::{HoldPart, HoldState, Resolved};
use tallygate::words::words;

words! {
    /// What happened to a hold.
    pub(crate) enum HoldOutcome {
        Reserved = "reserved",
        Settled = "settled",
        Cancelled = "cancelled",
        /// Somebody wanted to resolve it, and came too late.
        Expired = "expired",
    }
}

words! {
    /// What happened to units of a hold.
    pub(crate) enum HeldUnits {
        Reserved = "reserved",
        Settled = "settled",
        Refunded = "refunded",
        Unpaid = "unpaid",
    }
}

#[derive(Debug, Default)]
pub(crate) struct HoldCounters {
    holds: [AtomicU64; HoldOutcome::ALL.len()],
    units: [AtomicU64; HeldUnits::ALL.len()],
}

impl HoldCounters {
    /// Counts a reservation.
    pub(crate) fn begin(&self, units: u64) {
        self.holds[HoldOutcome::Reserved as usize].fetch_add(1, Relaxed);
        self.units[HeldUnits::Reserved as usize].fetch_add(units, Relaxed);
    }

    /// Counts what a call did to a hold. The units of partial settlements are counted when the hold ends.
    pub(crate) fn end(&self, resolved: &Resolved, part: &HoldPart) {
        let outcome = match (resolved.done, resolved.state) {
            (true, HoldState::Settled) => HoldOutcome::Settled,
            (true, HoldState::Cancelled) => HoldOutcome::Cancelled,
            (false, HoldState::Expired) => HoldOutcome::Expired,
            _ => return,
        };
        self.holds[outcome as usize].fetch_add(1, Relaxed);
        // Of an expired hold, any number of calls may learn.
        if resolved.done {
            for (units, count) in [
                (HeldUnits::Settled, part.settled),
                (HeldUnits::Refunded, part.refunded),
                (HeldUnits::Unpaid, part.unpaid),
            ] {
                self.units[units as usize].fetch_add(count, Relaxed);
            }
        }
    }

    /// Holds by outcome: of a policy that grants holds, or once there was one.
    pub(crate) fn holds(&self, grants: bool) -> impl Iterator<Item = (&'static str, u64)> {
        let counts = self.holds.iter().map(|count| count.load(Relaxed));
        HoldOutcome::ALL.iter().map(|outcome| outcome.name()).zip(counts).filter(move |_| grants || self.is_used())
    }

    /// Their units, likewise.
    pub(crate) fn units(&self, grants: bool) -> impl Iterator<Item = (&'static str, u64)> {
        let counts = self.units.iter().map(|count| count.load(Relaxed));
        HeldUnits::ALL.iter().map(|outcome| outcome.name()).zip(counts).filter(move |_| grants || self.is_used())
    }

    fn is_used(&self) -> bool {
        self.holds.iter().any(|count| count.load(Relaxed) > 0)
    }
}
