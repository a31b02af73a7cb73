//! What was answered, as a stream of bytes from a worker to its parent, and gathered by key.

use std::time::Duration;

use anyhow::{Context, bail};
use tallygate::history::Record;
use tallygate::{Cost, Decision, Timestamp};

use super::scenario::{KEYS, Scenario};

/// One thing a worker says. All numbers are little-endian.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Entry {
    /// Connected, and waiting for the word to begin.
    Ready,
    /// `key: u16, cost: u32, decided_at: u64, allowed: u8`, then for each limit `remaining, retry_after, reset_after: u64`.
    Answer { key: u16, records: Vec<Record> },
    /// The call may have been charged or not.
    Unknown { key: u16 },
    /// The call was not answered, and nothing was charged.
    Failed { why: String },
    /// This worker has nothing more to say.
    Done,
}

const READY: u8 = 0;
const ANSWER: u8 = 1;
const UNKNOWN: u8 = 2;
const FAILED: u8 = 3;
const DONE: u8 = 4;
const NO_WAIT_WILL_DO: u64 = u64::MAX;

impl Entry {
    /// The answer to a call: one record for each limit. Which of them was charged is told by the whole decision.
    pub(crate) fn answer(key: u16, cost: Cost, decision: &Decision) -> Self {
        let record = |status| Record::of(cost, decision, status);
        Self::Answer { key, records: decision.statuses().iter().map(record).collect() }
    }

    pub(crate) fn write(&self, bytes: &mut Vec<u8>) {
        match self {
            Self::Ready => bytes.push(READY),
            Self::Done => bytes.push(DONE),
            Self::Unknown { key } => {
                bytes.push(UNKNOWN);
                bytes.extend(key.to_le_bytes());
            }
            Self::Failed { why } => {
                let why: Vec<u8> = why.bytes().take(1000).collect();
                bytes.push(FAILED);
                bytes.extend(u16::try_from(why.len()).unwrap_or(0).to_le_bytes());
                bytes.extend(why);
            }
            Self::Answer { key, records } => {
                let Some(first) = records.first() else { return };
                bytes.push(ANSWER);
                bytes.extend(key.to_le_bytes());
                bytes.extend(u32::try_from(first.cost).unwrap_or(u32::MAX).to_le_bytes());
                bytes.extend(first.decided_at.as_micros().to_le_bytes());
                bytes.push(u8::from(first.allowed));
                for record in records {
                    let micros = |wait: Duration| u64::try_from(wait.as_micros()).unwrap_or(NO_WAIT_WILL_DO);
                    bytes.extend(record.remaining.unwrap_or(0).to_le_bytes());
                    bytes.extend(record.retry_after.map_or(NO_WAIT_WILL_DO, micros).to_le_bytes());
                    bytes.extend(record.reset_after.map_or(0, micros).to_le_bytes());
                }
            }
        }
    }
}

/// Cuts a stream into entries, wherever its pieces end.
#[derive(Debug)]
pub(crate) struct Reader {
    limits: usize,
    rest: Vec<u8>,
}

impl Reader {
    pub(crate) fn new(limits: usize) -> Self {
        Self { limits, rest: Vec::new() }
    }

    pub(crate) fn read(&mut self, piece: &[u8], mut heard: impl FnMut(Entry)) -> anyhow::Result<()> {
        self.rest.extend_from_slice(piece);
        let mut at = 0;
        while let Some((entry, length)) = self.entry(&self.rest[at..])? {
            heard(entry);
            at += length;
        }
        self.rest.drain(..at);
        Ok(())
    }

    fn entry(&self, bytes: &[u8]) -> anyhow::Result<Option<(Entry, usize)>> {
        let Some(kind) = bytes.first() else { return Ok(None) };
        let mut cut = Cut { bytes, at: 1 };
        let entry = match *kind {
            READY => Some(Entry::Ready),
            DONE => Some(Entry::Done),
            UNKNOWN => cut.take().map(|key| Entry::Unknown { key: u16::from_le_bytes(key) }),
            FAILED => cut.take().map(u16::from_le_bytes).and_then(|length| {
                let why = cut.bytes(usize::from(length))?;
                Some(Entry::Failed { why: String::from_utf8_lossy(why).into_owned() })
            }),
            ANSWER => cut.answer(self.limits),
            other => bail!("a worker said {other}, which means nothing"),
        };
        Ok(entry.map(|entry| (entry, cut.at)))
    }
}

struct Cut<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cut<'a> {
    fn bytes(&mut self, length: usize) -> Option<&'a [u8]> {
        let bytes = self.bytes.get(self.at..self.at + length)?;
        self.at += length;
        Some(bytes)
    }

    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.bytes(N)?.try_into().ok()
    }

    fn answer(&mut self, limits: usize) -> Option<Entry> {
        let key = u16::from_le_bytes(self.take()?);
        let cost = u64::from(u32::from_le_bytes(self.take()?));
        let decided_at = Timestamp::from_micros(u64::from_le_bytes(self.take()?));
        let allowed = self.take::<1>()? == [1];
        let mut records = Vec::with_capacity(limits);
        for _ in 0..limits {
            let [remaining, retry, reset] = [self.take()?, self.take()?, self.take()?].map(u64::from_le_bytes);
            records.push(Record {
                decided_at,
                cost,
                allowed,
                remaining: Some(remaining),
                retry_after: (retry != NO_WAIT_WILL_DO).then(|| Duration::from_micros(retry)),
                reset_after: Some(Duration::from_micros(reset)),
            });
        }
        Some(Entry::Answer { key, records })
    }
}

/// All that was said in a scenario.
#[derive(Debug)]
pub(crate) struct Recording {
    /// For each limit, for each key.
    pub(crate) records: Vec<Vec<Vec<Record>>>,
    /// For each key, calls that may have been charged or not.
    pub(crate) unknown: Vec<u64>,
    pub(crate) failed: u64,
    pub(crate) failure: Option<String>,
    pub(crate) answers: u64,
    /// From the word to begin to the last answer.
    pub(crate) took: Duration,
}

impl Recording {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        let keys = usize::from(KEYS);
        Self {
            records: vec![vec![Vec::new(); keys]; scenario.limits().len()],
            unknown: vec![0; keys],
            failed: 0,
            failure: None,
            answers: 0,
            took: Duration::ZERO,
        }
    }

    pub(crate) fn add(&mut self, entry: Entry) -> anyhow::Result<()> {
        match entry {
            Entry::Answer { key, records } => {
                self.answers += 1;
                for (by_key, record) in self.records.iter_mut().zip(records) {
                    by_key.get_mut(usize::from(key)).context("a worker named a key that is not there")?.push(record);
                }
            }
            Entry::Unknown { key } => {
                *self.unknown.get_mut(usize::from(key)).context("a worker named a key that is not there")? += 1;
            }
            Entry::Failed { why } => {
                self.failed += 1;
                self.failure.get_or_insert(why);
            }
            Entry::Ready | Entry::Done => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read_wherever_the_stream_is_cut() {
        let record = |remaining, retry: Option<u64>| Record {
            decided_at: Timestamp::from_micros(1_700_000_000_123_456),
            cost: 7,
            allowed: false,
            remaining: Some(remaining),
            retry_after: retry.map(Duration::from_micros),
            reset_after: Some(Duration::from_micros(250_001)),
        };
        let said = vec![
            Entry::Ready,
            Entry::Answer { key: 65, records: vec![record(3, Some(17)), record(999_993, None)] },
            Entry::Unknown { key: 2 },
            Entry::Failed { why: "the store is unavailable: zoë".into() },
            Entry::Done,
        ];
        let mut bytes = Vec::new();
        said.iter().for_each(|entry| entry.write(&mut bytes));
        for size in 1..bytes.len() {
            let mut reader = Reader::new(2);
            let mut heard = Vec::new();
            for piece in bytes.chunks(size) {
                reader.read(piece, |entry| heard.push(entry)).unwrap();
            }
            assert_eq!(heard, said, "pieces of {size}");
        }
        assert!(Reader::new(1).read(&[99], |_| {}).is_err());
    }
}
