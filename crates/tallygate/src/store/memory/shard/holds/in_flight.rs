//! What is in flight: what of holds only concerns limits of concurrency.

use super::{HoldId, Ledger, Look, Part, Print, Record, Shard, place};
use crate::check::Check;
use crate::decision::Status;

impl Ledger {
    /// No deadline is earlier than this one, and one is this one.
    pub(super) fn knows_when_due(&mut self) {
        if let Some((&(deadline, _), _)) = self.open.first_key_value() {
            self.head.due = deadline;
        }
    }
}

impl Shard {
    /// If one unit is missing, the next hold that ends makes room.
    pub(super) fn with_next_end(&mut self, print: Print, check: &Check<'_>, now: u64, status: Status) -> Status {
        let Look { fits, remaining, debt, .. } = self.look(print, check.limit, now);
        let head = self.head(print, check.limit).filter(|head| fits && head.count > 0 && head.due > now);
        match head.filter(|_| check.cost.get() + debt == remaining + 1) {
            Some(head) => status.with_retry_after(head.due - now),
            None => status,
        }
    }

    /// Whether a part of a hold that is not resolved still has its units.
    pub(in crate::store::memory) fn is_open(&self, id: HoldId, record: &Record, part: &Part) -> bool {
        let ledger = self.holds.ledgers.get(&place(part.print, &part.limit));
        ledger.is_some_and(|ledger| ledger.open.contains_key(&(record.deadline, id)))
    }
}
