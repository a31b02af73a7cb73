//! How holds, and what is held of states, are saved.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::{End, Entry, Head, Holds, Ledger, Part, Place, Record};
use crate::algorithm::Algorithm;
use crate::hold::{HoldId, HoldState, HoldTerms, OnAbandon, Turn};
use crate::store::memory::bytes::{Reader, Saved, put_list, put_number, put_text};
use crate::store::memory::print::Print;

impl Holds {
    /// Begins to note what changes, or ends it.
    pub(in crate::store::memory::shard) fn record_changes(&mut self, records: bool) {
        self.ledgers.record(records);
        self.records.record(records);
    }

    /// Says what is held of all states, or what has changed. Returns false if that is not known.
    pub(in crate::store::memory::shard) fn save_ledgers(
        &mut self,
        all: bool,
        each: impl FnMut(&Place, Option<&Ledger>),
    ) -> bool {
        if all {
            self.ledgers.take_all(each);
            return true;
        }
        self.ledgers.take_changes(each)
    }

    /// Says all holds, or what has changed. Returns false if that is not known.
    pub(in crate::store::memory::shard) fn save_records(
        &mut self,
        all: bool,
        each: impl FnMut(&HoldId, Option<&Record>),
    ) -> bool {
        if all {
            self.records.take_all(each);
            return true;
        }
        self.records.take_changes(each)
    }

    /// Takes back what is held of a state. Whether anything of it still counts is seen when its end comes.
    pub(in crate::store::memory::shard) fn restore_ledger(
        &mut self,
        place: Place,
        algorithm: Algorithm,
        from: &mut Reader<'_>,
    ) -> Option<bool> {
        let ledger = Ledger::read(from).filter(|_| from.rest.is_empty())?;
        self.ends.push(Reverse((ledger.head.last, End::Ledger(place, algorithm))));
        self.ledgers.insert(place, Ledger { ends: true, ..ledger });
        Some(true)
    }

    /// Takes back a hold. Returns false if it is no longer known.
    pub(in crate::store::memory::shard) fn restore_record(
        &mut self,
        id: HoldId,
        from: &mut Reader<'_>,
        now: Option<u64>,
    ) -> Option<bool> {
        let record = Record::read(from).filter(|_| from.rest.is_empty())?;
        let counts = now.is_none_or(|now| now < record.forget_at);
        if counts {
            self.begin(id, record);
        }
        Some(counts)
    }
}

impl Saved for Ledger {
    fn write(&self, to: &mut Vec<u8>) {
        let Head { held, count, due, last, debt } = self.head;
        [held, count, due, last, debt].into_iter().for_each(|number| put_number(to, number));
        put_list(to, self.open.iter(), |to, (&(deadline, id), entry)| {
            put_number(to, deadline);
            to.extend_from_slice(id.as_bytes());
            put_number(to, entry.left);
            put_number(to, entry.charged_at);
            put_text(to, entry.on_abandon.name());
        });
    }

    fn read(from: &mut Reader<'_>) -> Option<Self> {
        let (held, count, due) = (from.number()?, from.number()?, from.number()?);
        let head = Head { held, count, due, last: from.number()?, debt: from.number()? };
        let entry = |from: &mut Reader<'_>| {
            let at = (from.number()?, HoldId::from_bytes(from.array()?));
            let (left, charged_at) = (from.number()?, from.number()?);
            let on_abandon: OnAbandon = from.text()?.parse().ok()?;
            Some((at, Entry { left, charged_at, on_abandon }))
        };
        let open: BTreeMap<_, _> = from.list(entry)?.into_iter().collect();
        // Each open hold lowers the count when it ends.
        (open.len() as u64 <= head.count).then_some(Self { head, open, ends: false })
    }
}

impl Saved for Record {
    /// Begins with the print by which its shard is found.
    fn write(&self, to: &mut Vec<u8>) {
        to.extend_from_slice(&self.parts.first().map_or([0; 16], |part| part.print.to_bytes()));
        put_text(to, self.state.name());
        [self.charged_at, self.deadline, self.forget_at, self.attempt]
            .into_iter()
            .for_each(|number| put_number(to, number));
        to.extend_from_slice(self.turn.as_bytes());
        put_number(to, self.ends_at);
        put_list(to, self.parts.iter(), |to, part| part.write(to));
    }

    fn read(from: &mut Reader<'_>) -> Option<Self> {
        let first: [u8; 16] = from.array()?;
        let state: HoldState = HoldState::ALL.iter().copied().find(known(from.text()?))?;
        let (charged_at, deadline, forget_at, attempt) =
            (from.number()?, from.number()?, from.number()?, from.number()?);
        let (turn, ends_at) = (Turn::from_bytes(from.array()?), from.number()?);
        let parts = from.list(Part::read)?;
        let same = parts.first().is_some_and(|part| part.print.to_bytes() == first);
        (same && charged_at <= deadline).then_some(Self {
            state,
            charged_at,
            deadline,
            forget_at,
            attempt,
            turn,
            ends_at,
            number: 0,
            parts,
        })
    }
}

fn known(name: &str) -> impl FnMut(&HoldState) -> bool {
    move |state| state.name() == name
}

impl Saved for Part {
    fn write(&self, to: &mut Vec<u8>) {
        put_text(to, &self.policy);
        put_text(to, &self.subject);
        to.extend_from_slice(&self.print.to_bytes());
        put_text(to, &self.limit.to_string());
        self.terms.write(to);
        let Self { reserved, left, settled, refunded, unpaid, .. } = *self;
        [reserved, left, settled, refunded, unpaid].into_iter().for_each(|number| put_number(to, number));
    }

    fn read(from: &mut Reader<'_>) -> Option<Self> {
        let (policy, subject) = (from.text()?.to_owned(), from.text()?.to_owned());
        let print = Print::from_bytes(from.array()?);
        let (limit, terms) = (from.limit()?, HoldTerms::read(from)?);
        let (reserved, left, settled) = (from.number()?, from.number()?, from.number()?);
        let (refunded, unpaid) = (from.number()?, from.number()?);
        Some(Self { policy, subject, print, limit, terms, reserved, left, settled, refunded, unpaid })
    }
}
