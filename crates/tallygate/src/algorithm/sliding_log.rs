//! Keeps each admitted call. Twin: `tallygate-redis/lua/sliding_log.lua`.
//!
//! Each entry carries the running sum of units before and after its call. The units of any part of the log are then one
//! subtraction, and any position is one binary search: no decision scans the log, whatever its length.

use std::collections::VecDeque;

use super::{EncodedState, State, VERSION};
use crate::history::{Admitted, Rule, Span, any_window};
use crate::limit::{Limit, LimitError, Numbers};

/// The admitted calls, oldest first.
#[derive(Debug, Clone)]
pub(crate) struct SlidingLog {
    calls: VecDeque<Call>,
    limit: Limit,
}

#[derive(Debug, Clone, Copy)]
struct Call {
    at: u64,
    /// The running sum of units before this call, modulo [`CYCLE`].
    before: u64,
    /// The running sum after this call.
    sum: u64,
}

/// Running sums wrap around here: far above any amount, and exact in a double.
pub(crate) const CYCLE: u64 = 1_000_000_000_000_000;
/// Expired calls dropped per admitted one. More than one, so that the log shrinks to the calls that count.
const TRIM: usize = 16;
/// The maximum number of calls that a refund scans.
const REFUND_CALLS: usize = 1000;

/// The units from one running sum to a later one.
fn units_between(earlier: u64, later: u64) -> u64 {
    (later + CYCLE - earlier) % CYCLE
}

impl SlidingLog {
    fn newest(&self) -> Option<&Call> {
        self.calls.back()
    }

    fn held(&self, now: u64) -> u64 {
        self.newest().map_or(now, |newest| newest.at.max(now))
    }

    /// The number of oldest calls that no longer count.
    fn expired(&self, n: &Numbers, held: u64) -> usize {
        self.calls.partition_point(|call| call.at + n.window <= held)
    }

    /// The running sums before the first call that counts and after the last.
    fn sums(&self, n: &Numbers, held: u64) -> (u64, u64) {
        match (self.calls.get(self.expired(n, held)), self.newest()) {
            (Some(first), Some(newest)) => (first.before, newest.sum),
            _ => (0, 0),
        }
    }

    fn total(&self, n: &Numbers, held: u64) -> u64 {
        let (before, after) = self.sums(n, held);
        units_between(before, after)
    }
}

impl State for SlidingLog {
    fn complete(plain: Numbers) -> Result<Numbers, LimitError> {
        Ok(plain)
    }

    fn script_numbers(n: &Numbers) -> Vec<u64> {
        vec![n.amount, n.window]
    }

    fn worst_spans(n: &Numbers, calls: &[Admitted]) -> Vec<Span> {
        any_window(n, calls, Rule::AnyWindow, n.amount)
    }

    fn fresh(limit: &Limit, _now: u64) -> Self {
        Self { calls: VecDeque::new(), limit: limit.clone() }
    }

    fn fits(&self, limit: &Limit, now: u64, _owed: u64) -> bool {
        let n = limit.numbers();
        // A log of which everything was given back has no window.
        self.calls.is_empty() || n.window == self.limit.numbers().window && self.held(now) <= now + n.full
    }

    fn adopt(&mut self, limit: &Limit, now: u64, owed: u64) {
        let units = self.total(self.limit.numbers(), self.held(now)).min(limit.numbers().amount + owed);
        *self = Self::fresh(limit, now);
        if units > 0 {
            self.calls.push_back(Call { at: now, before: 0, sum: units });
        }
    }

    fn free(&self, limit: &Limit, now: u64) -> u64 {
        let n = limit.numbers();
        n.amount.saturating_sub(self.total(n, self.held(now)))
    }

    fn debt(&self, limit: &Limit, now: u64) -> u64 {
        let n = limit.numbers();
        self.total(n, self.held(now)).saturating_sub(n.amount)
    }

    fn charge(&mut self, limit: &Limit, now: u64, cost: u64) {
        if self.calls.is_empty() && self.limit != *limit {
            self.limit = limit.clone();
        }
        let mut held = self.held(now);
        let (newest_before, before) = self.newest().map_or((0, 0), |newest| (newest.before, newest.sum));
        if before < newest_before {
            // In the sorted set, calls at one instant are ordered by the sums before them, so the first after a wrap around must
            // come later.
            held += u64::from(self.newest().is_some_and(|newest| newest.at == held));
        }
        let sum = (before + cost) % CYCLE;
        self.calls.push_back(Call { at: held, before, sum });
        self.calls.drain(..self.expired(limit.numbers(), held).min(TRIM));
    }

    /// Gives back the call itself if it is the newest, otherwise the oldest units: what is left then counts for
    /// longest, so a refund never exceeds a bound.
    fn refund(&mut self, limit: &Limit, now: u64, charged_at: u64, units: u64) -> u64 {
        let n = limit.numbers();
        let held = self.held(now);
        if charged_at.saturating_add(n.window) <= held {
            return 0;
        }
        if let Some(newest) = self.calls.back_mut()
            && newest.at == charged_at
            && units_between(newest.before, newest.sum) >= units
        {
            newest.sum = (newest.sum + CYCLE - units) % CYCLE;
            if newest.sum == newest.before {
                self.calls.pop_back();
            }
            return units;
        }
        let expired = self.expired(n, held);
        let (before, _) = self.sums(n, held);
        let walked = self.calls.iter().take(expired + REFUND_CALLS).skip(expired).next_back();
        let given = units.min(walked.map_or(0, |last| units_between(before, last.sum)));
        let gone = self.calls.range(expired..).take_while(|call| units_between(before, call.sum) <= given).count();
        self.calls.drain(expired..expired + gone);
        if let Some(first) = self.calls.get_mut(expired) {
            first.before = (before + given) % CYCLE;
        }
        given
    }

    fn retry_at(&self, limit: &Limit, now: u64, cost: u64) -> u64 {
        let n = limit.numbers();
        let held = self.held(now);
        let needed = self.total(n, held) + cost - n.amount;
        let (before, _) = self.sums(n, held);
        let (mut low, mut high) = (self.expired(n, held), self.calls.len() - 1);
        while low < high {
            let middle = low + (high - low) / 2;
            // Units refunded before the next call stop counting with this one.
            if units_between(before, self.calls[middle + 1].before) >= needed {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        self.calls[low].at + n.window
    }

    fn reset_at(&self, limit: &Limit, now: u64) -> u64 {
        let n = limit.numbers();
        match (self.newest(), self.total(n, self.held(now))) {
            (Some(newest), 1..) => newest.at + n.window,
            _ => now,
        }
    }

    fn limit(&self) -> &Limit {
        &self.limit
    }
    /// Big-endian, so that members at one instant are ordered by their sums.
    fn encode(&self) -> EncodedState {
        let window = self.limit.numbers().window / 1000;
        let member = |call: &Call| {
            let units = units_between(call.before, call.sum);
            let parts = [(call.at, 7), (call.before, 7), (units, 4), (window, 5), (u64::from(VERSION), 1)];
            let bytes = parts.iter().flat_map(|&(number, bytes)| number.to_be_bytes().into_iter().skip(8 - bytes));
            (call.at, bytes.collect())
        };
        EncodedState::SortedSet(self.calls.iter().map(member).collect())
    }

    fn decode(limit: &Limit, encoded: &[u8]) -> Option<Self> {
        let (members, rest) = encoded.as_chunks::<24>();
        let window = limit.numbers().window / 1000;
        let call = |member: &[u8; 24]| {
            let part =
                |from: usize, to: usize| member[from..to].iter().fold(0, |all, &byte| all << 8 | u64::from(byte));
            let (at, before, units) = (part(0, 7), part(7, 14), part(14, 18));
            let valid = before < CYCLE && part(18, 23) == window && member[23] == VERSION;
            valid.then(|| Call { at, before, sum: (before + units) % CYCLE })
        };
        let calls: VecDeque<Call> = members.iter().map(call).collect::<Option<_>>()?;
        let in_order = calls.iter().is_sorted_by_key(|call| call.at);
        (in_order && rest.is_empty()).then(|| Self { calls, limit: limit.clone() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: u64 = 1_000_000;

    fn limit() -> Limit {
        "9/s sliding_log".parse().unwrap()
    }

    /// A log in which `units` more reach the end of the cycle. Its only call has expired.
    fn near_the_end(units: u64) -> SlidingLog {
        let call = Call { at: 0, before: CYCLE - units - 1, sum: CYCLE - units };
        SlidingLog { calls: VecDeque::from([call]), limit: limit() }
    }

    /// Wherever the end of the cycle is, a log answers as one that is far from it. Its calls are later than those of the other by as many
    /// microseconds as it must keep apart.
    #[test]
    fn the_end_of_a_cycle_is_unnoticed() {
        let (limit, start) = (limit(), 10 * WINDOW);
        for end in 0..=12 {
            for refunded in 0..3_u64 {
                let (mut near, mut far) = (near_the_end(end), near_the_end(1_000_000));
                for step in 0..24_u64 {
                    let now = start + step * 150_000;
                    let cost = 1 + step % 4;
                    let story = format!("{end} units before the end, {refunded} given back, at step {step}");
                    let both = [&near, &far].map(|log| (log.free(&limit, now), log.reset_at(&limit, now)));
                    assert_eq!(both[0], both[1], "{story}");
                    if both[0].0 >= cost {
                        [&mut near, &mut far].into_iter().for_each(|log| log.charge(&limit, now, cost));
                        for charged_at in [now, now - 300_000] {
                            let given = [&mut near, &mut far].map(|log| log.refund(&limit, now, charged_at, refunded));
                            assert_eq!(given[0], given[1], "{story}");
                        }
                    } else {
                        let waits = [&near, &far].map(|log| log.retry_at(&limit, now, cost));
                        assert_eq!(waits[0], waits[1], "{story}");
                    }
                }
            }
        }
    }

    /// In the sorted set of the twin, calls at one instant are in the order of their sums.
    #[test]
    fn the_first_call_after_a_wrap_around_comes_a_microsecond_later() {
        let (limit, now) = (limit(), 10 * WINDOW);
        for (end, instants) in [(1, [0, 1, 1, 1]), (2, [0, 0, 1, 1]), (3, [0, 0, 0, 1]), (4, [0; 4])] {
            let mut log = near_the_end(end);
            (0..4).for_each(|_| log.charge(&limit, now, 1));
            let at: Vec<u64> = log.calls.iter().map(|call| call.at - now).collect();
            assert_eq!(at, instants, "{end} units before the end");
            // One that is later anyway stays where it is.
            log.charge(&limit, now + 5, 1);
            assert_eq!(log.newest().unwrap().at, now + 5);
        }
    }

    /// A call of no units would hold the log at its instant if the clock steps back.
    #[test]
    fn a_log_of_expired_calls_is_adopted_as_a_fresh_one() {
        let mut log = near_the_end(5);
        log.adopt(&"9/min sliding_log".parse().unwrap(), 10 * WINDOW, 0);
        assert!(log.calls.is_empty());
    }

    #[test]
    fn a_log_begins_with_no_units() {
        let (limit, mut log) = (limit(), SlidingLog::fresh(&limit(), 0));
        log.charge(&limit, 5, 3);
        let Call { at, before, sum } = log.calls[0];
        assert_eq!((at, before, sum), (5, 0, 3));
    }
}
