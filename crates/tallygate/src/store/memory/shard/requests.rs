//! The answers of a shard to calls with an id, for as long as they are remembered.
//!
//! Twin: `tallygate-redis/lua/requests.lua`. The contract is "Calls with an id" in `docs/algorithms.md`.

mod saved;

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::{Print, Shard};
use crate::algorithm::double;
use crate::call::{Call, Settlement, fund};
use crate::check::Check;
use crate::clock::Timestamp;
use crate::decision::{Decision, Source, Status};
use crate::hold::HoldId;
use crate::request::Request;
use crate::store::memory::recorded::Recorded;

/// The answers by the print of their names.
#[derive(Debug, Clone, Default)]
pub(in crate::store::memory) struct Requests {
    answers: Recorded<Print, Remembered>,
    /// For each answer, once, when to look whether it can be dropped.
    ends: BinaryHeap<Reverse<(u64, Print)>>,
}

/// An allowed answer.
#[derive(Debug, Clone)]
pub(in crate::store::memory) struct Remembered {
    pub(in crate::store::memory) forget_at: u64,
    pub(in crate::store::memory) fingerprint: [u8; 16],
    /// Whether the call looked at what is held of its states.
    pub(in crate::store::memory) looked: bool,
    pub(in crate::store::memory) hold: Option<HoldId>,
    pub(in crate::store::memory) decided_at: Timestamp,
    pub(in crate::store::memory) source: Source,
    /// As judged by the limits, whatever the cost was before it was cut.
    pub(in crate::store::memory) statuses: Vec<Status>,
}

impl Requests {
    /// The number of entries that take the place of keys.
    pub(in crate::store::memory) fn len(&self) -> usize {
        self.answers.len()
    }

    /// The answer to a call that was made before, or whose id belongs to another.
    pub(in crate::store::memory) fn recall(&self, print: Print, call: &Call<'_>, now: Timestamp) -> Option<Decision> {
        let request = call.request()?;
        let known = self.answers.get(&print).filter(|known| now.as_micros() < known.forget_at)?;
        Some(match known.fingerprint == *request.fingerprint() {
            // Of a limit that changes, as it was then.
            true => known.answer(&call.at(known.decided_at)),
            false => Decision::of_conflict(&call.at(now), now),
        })
    }

    pub(in crate::store::memory) fn remember(&mut self, print: Print, answer: Remembered) {
        let forget_at = answer.forget_at;
        if self.answers.insert(print, answer).is_none() {
            self.ends.push(Reverse((forget_at, print)));
        }
    }

    /// Forgets an answer that is given back.
    pub(in crate::store::memory) fn forget(&mut self, print: Print, request: &Request) {
        if self.answers.get(&print).is_some_and(|known| known.fingerprint == *request.fingerprint()) {
            self.answers.remove(&print);
        }
    }

    /// An answer as a shared store would keep it.
    pub(in crate::store::memory) fn encoded(&self, print: Print) -> Option<Vec<u8>> {
        self.answers.get(&print).map(Remembered::encode)
    }

    /// Drops answers that are no longer remembered, a few at a time.
    pub(super) fn drop_ended(&mut self, now: u64) {
        for _ in 0..4 {
            let Some(&Reverse((_, print))) = self.ends.peek().filter(|Reverse((at, _))| *at <= now) else { return };
            self.ends.pop();
            match self.answers.get(&print).map(|known| known.forget_at) {
                Some(later) if later > now => self.ends.push(Reverse((later, print))),
                _ => _ = self.answers.remove(&print),
            }
        }
    }
}

impl Shard {
    /// Whether there is room for another answer to a call of so many states, each of which may be new.
    pub(in crate::store::memory) fn has_room_for_an_answer(&mut self, now: u64, states: usize) -> bool {
        if self.bounds.sweep {
            self.requests.drop_ended(now);
        }
        self.own() + 1 + states <= self.bounds.keys
    }
}

impl Remembered {
    fn answer(&self, call: &Call<'_>) -> Decision {
        let checks = call.checks();
        let units = |(check, status): (&Check<'_>, &Status)| (check.mode(), check.pays_rest(), status.units());
        let units = fund::sums(checks.iter().zip(&self.statuses).map(units));
        let granted = call.takes_at_most().map(|most| Settlement::granted(most.get(), units));
        let status = |(status, check): (&Status, &Check<'_>)| status.seen_by(check.pays_rest(), check.is_hopeless());
        let statuses = self.statuses.iter().zip(checks).map(status).collect();
        Decision::new(true, statuses, self.source, self.decided_at)
            .with_granted(granted)
            .with_first_hold(self.hold)
            .replay()
    }

    fn encode(&self) -> Vec<u8> {
        let mut encoded = vec![1];
        encoded.extend(double(self.forget_at));
        encoded.extend(self.fingerprint);
        encoded.push(if self.looked { b'h' } else { b'-' });
        encoded.extend(self.hold.map_or([0; 16], |hold| *hold.as_bytes()));
        encoded.extend(self.statuses.iter().flat_map(|status| double(status.limit())));
        encoded.push(1);
        encoded.extend(double(self.decided_at.as_micros()));
        for status in &self.statuses {
            encoded.push(if status.holds_full() { 3 } else { u8::from(status.allowed()) });
            let waits = [status.retry_after().unwrap_or_default(), status.reset_after()];
            let [retry_after, reset_after] = waits.map(|wait| u64::try_from(wait.as_micros()).unwrap_or(u64::MAX));
            let held = [status.held(), status.debt()];
            let numbers = [status.remaining(), retry_after, reset_after, status.units()];
            let looked = held.into_iter().filter(|_| self.looked);
            encoded.extend(numbers.into_iter().chain(looked).flat_map(double));
        }
        encoded
    }
}
