//! How remembered answers are saved.

use super::{Print, Remembered, Requests};
use crate::clock::Timestamp;
use crate::decision::{Source, Status};
use crate::hold::HoldId;
use crate::store::memory::bytes::{Reader, Saved, put_list, put_number, put_text};

impl Requests {
    /// Begins to note what changes, or ends it.
    pub(in crate::store::memory::shard) fn record(&mut self, records: bool) {
        self.answers.record(records);
    }

    /// Says all answers, or what has changed. Returns false if that is not known.
    pub(in crate::store::memory::shard) fn save(
        &mut self,
        all: bool,
        each: impl FnMut(&Print, Option<&Remembered>),
    ) -> bool {
        if all {
            self.answers.take_all(each);
            return true;
        }
        self.answers.take_changes(each)
    }

    /// Takes back an answer that was saved. Returns false if it is no longer remembered.
    pub(in crate::store::memory::shard) fn restore(
        &mut self,
        print: Print,
        from: &mut Reader<'_>,
        now: Option<u64>,
    ) -> Option<bool> {
        let answer = Remembered::read(from).filter(|_| from.rest.is_empty())?;
        let counts = now.is_none_or(|now| now < answer.forget_at);
        if counts {
            self.remember(print, answer);
        }
        Some(counts)
    }
}

impl Saved for Remembered {
    fn write(&self, to: &mut Vec<u8>) {
        put_number(to, self.forget_at);
        to.extend_from_slice(&self.fingerprint);
        to.push(u8::from(self.looked));
        put_list(to, self.hold.iter(), |to, hold| to.extend_from_slice(hold.as_bytes()));
        put_number(to, self.decided_at.as_micros());
        put_text(to, self.source.name());
        put_list(to, self.statuses.iter(), |to, status| {
            status.to_numbers().into_iter().for_each(|number| put_number(to, number));
        });
    }

    fn read(from: &mut Reader<'_>) -> Option<Self> {
        let (forget_at, fingerprint) = (from.number()?, from.array()?);
        let looked = from.byte()? == 1;
        let hold = from.list(|from| from.array().map(HoldId::from_bytes))?.pop();
        let decided_at = Timestamp::from_micros(from.number()?);
        let source = from.text()?;
        let source = Source::ALL.iter().copied().find(|known| known.name() == source)?;
        let status = |from: &mut Reader<'_>| {
            let mut numbers = [0; 6];
            for number in &mut numbers {
                *number = from.number()?;
            }
            Status::of_numbers(numbers)
        };
        let statuses = from.list(status)?;
        Some(Self { forget_at, fingerprint, looked, hold, decided_at, source, statuses })
    }
}
