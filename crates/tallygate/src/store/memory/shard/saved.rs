//! How the entries of a shard are saved. The states are in the form of their twins, behind the text of their limits.

use super::{Number, Shard, Table};
use crate::algorithm::{Algorithm, State};
use crate::counter::CounterValue;
use crate::hold::HoldId;
use crate::limit::Limit;
use crate::store::memory::bytes::{Limits, Reader, Saved, put_number, put_text};
use crate::store::memory::print::Print;
use crate::store::memory::saved::{RestoreError, SAVED_KEY_BYTES, SavedEntry, SavedKey};
use crate::store::memory::table::Expires;

/// The version of the form of an entry.
pub(in crate::store::memory) const FORMAT: u8 = 1;

/// What an entry is: the first byte of its key. The kind of the state follows, if there is one, the print or the id, and for shared
/// states the number of the shard, since each shard has its own.
const STATE: u8 = b's';
const COUNTER: u8 = b'c';
const LEDGER: u8 = b'l';
const RECORD: u8 = b'h';
const ANSWER: u8 = b'r';
/// Instead of the kind of a state.
const NO_KIND: &str = "--";

fn key(what: u8, kind: &str, id: [u8; 16], shard: usize) -> SavedKey {
    let mut key = [0; SAVED_KEY_BYTES];
    key[0] = what;
    key[1..3].copy_from_slice(kind.as_bytes());
    key[3..19].copy_from_slice(&id);
    key[19..].copy_from_slice(&u16::try_from(shard).unwrap_or(u16::MAX).to_le_bytes());
    key
}

fn key_of(what: u8, kind: &str, print: Print, shard: usize) -> SavedKey {
    key(what, kind, print.to_bytes(), if print.is_shared() { shard } else { 0 })
}

fn id_of(key: &SavedKey) -> [u8; 16] {
    std::array::from_fn(|place| key[3 + place])
}

fn print_of(key: &SavedKey) -> Print {
    Print::from_bytes(id_of(key))
}

/// The shard of a saved entry. The record of a hold is in that of its first state, with which its value begins.
pub(in crate::store::memory) fn home(key: &SavedKey, value: &[u8], shards: usize) -> usize {
    let print = print_of(key);
    match key[0] {
        STATE if print.is_shared() => usize::from(u16::from_le_bytes([key[19], key[20]])) % shards,
        RECORD => {
            value.get(1..).and_then(<[u8]>::first_chunk).map_or(0, |first| Print::from_bytes(*first).shard(shards))
        }
        _ => print.shard(shards),
    }
}

/// One algorithm of each kind.
fn kinds() -> impl Iterator<Item = Algorithm> {
    let first = |algorithm: &Algorithm| Algorithm::ALL.iter().find(|other| other.kind() == algorithm.kind());
    Algorithm::ALL.iter().copied().filter(move |algorithm| first(algorithm) == Some(algorithm))
}

/// What is written of a shard, and where.
struct Writer<'e> {
    entries: &'e mut Vec<SavedEntry>,
    shard: usize,
    all: bool,
}

impl Writer<'_> {
    fn add<T>(&mut self, key: SavedKey, value: Option<&T>, write: impl FnOnce(&T, &mut Vec<u8>)) {
        let value = value.map(|value| {
            let mut written = vec![FORMAT];
            write(value, &mut written);
            written
        });
        self.entries.push(SavedEntry { key, value });
    }

    /// Returns false if what has changed is not known.
    fn table<T: Expires>(
        &mut self,
        table: &mut Table<T>,
        (what, kind): (u8, &str),
        mut write: impl FnMut(&T, &mut Vec<u8>),
    ) -> bool {
        let shard = self.shard;
        if self.all {
            table.take_all(|print, value| self.add(key_of(what, kind, print, shard), value, &mut write));
            return true;
        }
        table.take_changes(|print, value| self.add(key_of(what, kind, print, shard), value, &mut write))
    }

    fn states<S: State>(&mut self, table: &mut Table<S>, kind: &str) -> bool {
        // Most states that follow each other have one limit, and its text takes longer than its state.
        let mut last: Option<(Limit, String)> = None;
        self.table(table, (STATE, kind), |state, written| {
            let limit = state.limit();
            let (_, text) = match last.take().filter(|(known, _)| known.is_same(limit)) {
                Some(known) => last.insert(known),
                None => last.insert((limit.clone(), limit.to_string())),
            };
            put_text(written, text);
            written.extend(state.encode().into_bytes());
        })
    }
}

impl Shard {
    /// Begins to note what changes, or ends it.
    pub(in crate::store::memory) fn record(&mut self, records: bool) {
        for algorithm in kinds() {
            with_table!(self, algorithm, |table| table.record(records));
        }
        self.counters.record(records);
        self.holds.record_changes(records);
        self.requests.record(records);
    }

    /// Adds what has changed since the last time. Returns false if that is not known.
    pub(in crate::store::memory) fn changes(&mut self, index: usize, entries: &mut Vec<SavedEntry>) -> bool {
        self.write(&mut Writer { entries, shard: index, all: false })
    }

    /// Adds all entries, and begins to note what changes.
    pub(in crate::store::memory) fn everything(&mut self, index: usize, entries: &mut Vec<SavedEntry>) {
        self.write(&mut Writer { entries, shard: index, all: true });
    }

    fn write(&mut self, writer: &mut Writer<'_>) -> bool {
        let mut known =
            kinds().all(|algorithm| with_table!(self, algorithm, |table| writer.states(table, algorithm.kind())));
        known = known && writer.table(&mut self.counters, (COUNTER, NO_KIND), Number::write);
        let all = writer.all;
        known = known
            && self.holds.save_ledgers(all, |(print, kind), ledger| {
                writer.add(key_of(LEDGER, kind, *print, 0), ledger, Saved::write);
            });
        known = known
            && self.holds.save_records(all, |id, record| {
                writer.add(key(RECORD, NO_KIND, *id.as_bytes(), 0), record, Saved::write);
            });
        known
            && self
                .requests
                .save(all, |print, answer| writer.add(key_of(ANSWER, NO_KIND, *print, 0), answer, Saved::write))
    }

    /// Takes back an entry that was saved. Returns false if it no longer counts.
    pub(in crate::store::memory) fn restore(
        &mut self,
        key: &SavedKey,
        value: &[u8],
        now: u64,
        limits: &mut Limits,
    ) -> Result<bool, RestoreError> {
        let damaged = || RestoreError::Damaged { key: *key };
        let rest = match value.split_first() {
            Some((&FORMAT, rest)) => rest,
            Some((&found, _)) if found > FORMAT => return Err(RestoreError::Newer { found }),
            _ => return Err(damaged()),
        };
        self.read(key, &mut Reader { rest, limits }, now).ok_or_else(damaged)
    }

    fn read(&mut self, key: &SavedKey, from: &mut Reader<'_>, now: u64) -> Option<bool> {
        let (print, kind) = (print_of(key), &key[1..3]);
        let algorithm = || kinds().find(|algorithm| algorithm.kind().as_bytes() == kind);
        // A store that never sweeps has never forgotten anything.
        let now = self.bounds.sweep.then_some(now);
        match key[0] {
            STATE => {
                let limit = from.limit()?;
                if limit.algorithm().kind().as_bytes() != kind || limit.amount() == 0 {
                    return None;
                }
                with_table!(self, limit.algorithm(), |table| restore_state(table, print, &limit, from.rest, now))
            }
            COUNTER => {
                let number = Number::read(from).filter(|_| from.rest.is_empty())?;
                Some(restore(&mut self.counters, print, number, now))
            }
            LEDGER => self.holds.restore_ledger((print, algorithm()?.kind()), algorithm()?, from),
            RECORD => self.holds.restore_record(HoldId::from_bytes(id_of(key)), from, now),
            ANSWER => self.requests.restore(print, from, now),
            _ => None,
        }
    }
}

fn restore_state<S: State>(
    table: &mut Table<S>,
    print: Print,
    limit: &Limit,
    encoded: &[u8],
    now: Option<u64>,
) -> Option<bool> {
    Some(restore(table, print, S::decode(limit, encoded)?, now))
}

/// What is held of a state or owed is kept beside it, even if nothing of it counts: then the state is kept, too.
fn restore<T: Expires>(table: &mut Table<T>, print: Print, value: T, now: Option<u64>) -> bool {
    let counts = print.is_marked() || !now.is_some_and(|now| value.expired(now));
    if counts {
        table.load(print, value);
    }
    counts
}

impl Saved for Number {
    fn write(&self, to: &mut Vec<u8>) {
        let (tag, value) = match self.value {
            CounterValue::Integer(value) => (b'i', value.to_le_bytes()),
            CounterValue::Float(value) => (b'f', value.to_le_bytes()),
        };
        to.push(tag);
        to.extend_from_slice(&value);
        to.push(u8::from(self.expires_at.is_some()));
        put_number(to, self.expires_at.unwrap_or(0));
    }

    fn read(from: &mut Reader<'_>) -> Option<Self> {
        let value = match (from.byte()?, from.array()?) {
            (b'i', value) => CounterValue::Integer(i64::from_le_bytes(value)),
            (b'f', value) => CounterValue::Float(f64::from_le_bytes(value)),
            _ => return None,
        };
        let expires_at = match (from.byte()?, from.number()?) {
            (0, 0) => None,
            (1, at) => Some(at),
            _ => return None,
        };
        Some(Self { value, expires_at })
    }
}
