//! A call over several slots that has an id. Each part of it is remembered in its slot, by itself, and forgotten when it is given back: so a
//! repeat charges every limit at most once, whatever has become of the other parts.

use tallygate::Decision;
use tallygate::call::Verb;
use tallygate::request::Request;

use super::{Part, Split, Terms};
use crate::wire::all_at;

impl Split {
    /// What a part of an earlier call has reserved, and the rest, must be one hold: looks for its id before anything is reserved.
    pub(super) async fn look_for_a_hold(&mut self) {
        if self.call.reservation.is_none() || self.call.request().is_none() {
            return;
        }
        let mut parts = vec![None; self.call.asked.len()];
        let terms = Terms { verb: Verb::Peek, denied: false, at_most: None };
        self.collect_in_time(&mut self.start(terms, |_| true), &mut parts).await;
        let hold = parts.iter().flatten().find_map(|part| part.hold);
        if let (Some(reservation), Some(id)) = (&mut self.call.reservation, hold) {
            **reservation = reservation.with_id(id);
        }
    }

    /// The answer if the id belongs to another call.
    pub(super) fn conflict(&self, parts: &[Option<Part>]) -> Option<Decision> {
        let now = parts.iter().flatten().filter(|part| part.conflicts).map(|part| part.decided_at).min()?;
        let asked = all_at(&self.call.asked, now, self.call.verb);
        let conflict = Decision::of_conflict_over(asked.iter().map(|asked| &asked.limit), now);
        Some(conflict.with_granted(self.call.at_most.map(|_| 0)).into_split())
    }

    /// Whether a part of which so many units are kept is not given back at all: what is remembered of it would be wrong, or it would have
    /// to be forgotten, and be charged again.
    pub(super) fn keeps_all(&self, kept: u64) -> bool {
        kept > 0 && self.call.request().is_some()
    }

    /// Marks an answer of which every part was given before.
    pub(super) fn repeated(&self, decision: Decision, parts: &[Option<Part>]) -> Decision {
        let hold =
            parts.iter().flatten().find_map(|part| part.hold).or(self.call.reservation.as_ref().map(|of| of.id()));
        let decision = if self.call.request().is_some() { decision.with_first_hold(hold) } else { decision };
        let all = parts.iter().all(|part| part.as_ref().is_some_and(|part| part.replayed));
        if all { decision.replay() } else { decision }
    }

    /// What a part is remembered by. Each has a memory of its own, so that it can be forgotten when it is given back.
    pub(super) fn request_of(&self, place: usize) -> Option<Box<Request>> {
        let request = self.call.request()?;
        let first = self.payers(place).start;
        Some(Box::new(request.of_part(self.call.asked[first].key.as_bytes())))
    }
}
