//! The open holds of a shard, by age.

use std::cmp::Reverse;
use std::time::Duration;

use super::{End, Holds, Record};
use crate::clock::Timestamp;
use crate::hold::{HoldId, HoldQuery, HoldState, OpenHold, OpenPart};
use crate::key::write_part;

/// How many records are looked at for one page: far less than a millisecond with the shard locked.
const LOOKED_AT: usize = 5_000;

/// The place of a hold in the list of its shard.
type Place = (u64, u64);

impl Holds {
    /// Keeps the record of a new hold, or of one that was saved.
    pub(in crate::store::memory) fn begin(&mut self, id: HoldId, record: Record) {
        if let Some(known) = self.records.get(&id) {
            self.by_age.remove(&known.place());
        }
        self.numbers += 1;
        let record = Record { number: self.numbers, ..record };
        if record.state == HoldState::Open {
            self.by_age.insert(record.place(), id);
        }
        let forget_at = record.forget_at;
        if self.records.insert(id, record).is_none() {
            self.ends.push(Reverse((forget_at, End::Record(id))));
        }
    }

    /// Keeps what has become of a hold.
    pub(in crate::store::memory) fn remember(&mut self, id: HoldId, record: Record) {
        if record.state != HoldState::Open {
            self.by_age.remove(&record.place());
        }
        self.records.insert(id, record);
    }

    pub(super) fn forget(&mut self, id: HoldId) {
        if let Some(record) = self.records.remove(&id) {
            self.by_age.remove(&record.place());
        }
    }

    /// The oldest open holds from a place on, and where it stopped looking, if there are more.
    pub(in crate::store::memory) fn list(
        &self,
        query: &HoldQuery,
        from: Place,
        now: Timestamp,
    ) -> (Vec<(Place, OpenHold)>, Option<Place>) {
        let mut found = Vec::new();
        for (looked_at, (&place, id)) in self.by_age.range(from..).enumerate() {
            if looked_at == LOOKED_AT || found.len() == query.most() {
                return (found, Some(place));
            }
            let age = now.as_micros().saturating_sub(place.0);
            if !query.wants_age(Duration::from_micros(age)) {
                break;
            }
            let open = self.records.get(id).filter(|record| record.state_at(now.as_micros()) == HoldState::Open);
            found.extend(open.and_then(|record| record.listed(query, now)).map(|hold| (place, hold)));
        }
        (found, None)
    }
}

impl Record {
    /// Where it is in the list of open holds.
    fn place(&self) -> (u64, u64) {
        (self.charged_at, self.number)
    }

    /// The hold in a list; `None` if it has nothing that is asked for.
    fn listed(&self, query: &HoldQuery, now: Timestamp) -> Option<OpenHold> {
        let (policy, subject) = (query.written_policy(), query.written_subject());
        let parts = self.parts.iter().filter(|part| part.reserved > 0).filter_map(|part| {
            let own = write_part(part.policy.as_bytes());
            let wanted = policy.as_ref().is_none_or(|policy| *policy == own)
                && subject.as_ref().is_none_or(|subject| *subject == part.subject);
            wanted.then(|| OpenPart::of_written(&own, &part.subject, part.left))
        });
        let parts: Vec<OpenPart> = parts.collect();
        let [reserved_at, expires_at] = [self.charged_at, self.deadline].map(Timestamp::from_micros);
        (!parts.is_empty()).then(|| OpenHold::new(reserved_at, expires_at, now, parts))
    }
}
