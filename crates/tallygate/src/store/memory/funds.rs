//! Costs with several payers, in the embedded store.
//!
//! Twin: the shell in `tallygate-redis/lua/call.lua`. The contract is section 19 of `docs/algorithms.md`.

use super::Shards;
use super::print::Print;
use super::shard::{Mode, Step};
use crate::call::{Settlement, fund};
use crate::check::{Check, Cost};
use crate::clock::Timestamp;

/// Whether the payers of each cost have enough together, once each was asked what it has.
pub(super) fn judge(checks: &[Check<'_>], steps: &mut [Step]) {
    for range in fund::each(checks, Check::pays_rest).filter(|range| range.len() > 1) {
        let (check, payers) = (&checks[range.start], &mut steps[range]);
        let has: u64 = payers.iter().map(|step| step.status.remaining()).sum();
        let fits = has >= check.cost.get() && !check.is_hopeless();
        for step in payers {
            step.status = step.status.of_fund(fits, 0);
        }
    }
}

/// What each check takes that fits: its cost or its part of what is granted, or as one of several payers its part of that.
pub(super) fn parts(checks: &[Check<'_>], steps: &[Step], granted: Option<u64>) -> Vec<u64> {
    let left = |at: usize| steps[at].status.remaining();
    let mut parts = Vec::with_capacity(checks.len());
    for range in fund::each(checks, Check::pays_rest) {
        let check = &checks[range.start];
        let cost = granted.map_or(check.cost.get(), |granted| {
            Settlement::part_of_grant(check.mode(), granted, range.clone().map(left).sum())
        });
        match range.len() {
            1 => parts.push(cost),
            _ => parts.extend(fund::parts(cost, range.map(left))),
        }
    }
    parts
}

impl Shards<'_, '_> {
    /// How long the payers of each cost that does not fit need to regain what is short, after what the call has taken.
    pub(super) fn await_funds(&mut self, checks: &[Check<'_>], prints: &[Print], now: u64, steps: &mut [Step]) {
        let denied = |steps: &[Step], at: usize| !steps[at].status.allowed();
        for range in fund::each(checks, Check::pays_rest).filter(|range| range.len() > 1) {
            if !denied(steps, range.start) {
                continue;
            }
            let has: u64 = steps[range.clone()].iter().map(|step| step.status.remaining()).sum();
            let short = checks[range.start].cost.get().saturating_sub(has);
            let mut regained = Vec::with_capacity(range.len());
            for at in range.clone() {
                let (check, left) = (&checks[at], steps[at].status.remaining());
                let units = short.min(check.limit.capacity() - left);
                let Ok(cost) = Cost::new(left + units) else { continue };
                if units > 0 {
                    let seen = self.step(prints[at], &check.cost(cost), now, Mode::Look, 0);
                    regained.push((units, seen.status.waits()));
                }
            }
            let wait = fund::wait(short, &mut regained);
            for step in &mut steps[range] {
                step.status = step.status.of_fund(false, wait);
            }
        }
    }

    /// Gives units back. Of the payers of one cost the last has them back first, as far as its state gives any.
    pub(super) fn refund(&mut self, checks: &[Check<'_>], prints: &[Print], now: u64) -> Vec<Step> {
        let mut steps: Vec<Step> = Vec::with_capacity(checks.len());
        let mut left = 0;
        for (at, check) in checks.iter().enumerate().rev() {
            let further = checks.get(at + 1).is_some_and(Check::pays_rest);
            left = if further { left } else { check.cost.get() };
            let charged_at = check.charged_at().map_or(now, Timestamp::as_micros);
            let given = self.of(prints[at]).refund_held(prints[at], check, now, (charged_at, left));
            left -= given;
            let seen = self.step(prints[at], &check.part_of_fund(), now, Mode::Look, 0);
            steps.push(Step { status: seen.status.into_refund(given), ..seen });
        }
        steps.reverse();
        steps
    }
}
