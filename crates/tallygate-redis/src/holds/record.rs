//! The records of holds and the entries of open holds, as the scripts write them: read for lists and audits only.

use std::time::Duration;

use redis::Value;
use tallygate::clock::Timestamp;
use tallygate::hold::{HoldQuery, OpenHold, OpenPart};
use tallygate::key::decode;

use crate::wire::Reader;

/// The record of an open hold. Its layout is described at the top of `resolve.lua`.
pub(crate) struct OpenRecord {
    pub(crate) charged_at: Timestamp,
    pub(crate) deadline: Timestamp,
    /// The key of each state, and the units that are held of it.
    pub(crate) parts: Vec<(String, u64)>,
}

impl OpenRecord {
    /// `None` if the hold is not open as of `now`, or if this is no such record.
    pub(crate) fn read(reply: &Value, now: Timestamp) -> Option<Self> {
        let mut reader = Reader::of_stored(reply)?;
        let &[1, b'o'] = reader.take(2).ok()? else { return None };
        let mut number = || reader.number().ok();
        let [charged_at, deadline, _, _] = [number()?, number()?, number()?, number()?];
        let &[count] = reader.take(1).ok()? else { return None };
        let mut parts = Vec::with_capacity(usize::from(count));
        for _ in 0..count {
            reader.take(4).ok()?;
            let mut number = || reader.number().ok();
            let [reserved, left, ..] = [number()?, number()?, number()?, number()?, number()?];
            let &[numbers, low, high] = reader.take(3).ok()? else { return None };
            reader.take(usize::from(numbers)).ok()?;
            let key = reader.take(usize::from(u16::from_le_bytes([low, high]))).ok()?;
            if reserved > 0 {
                parts.push((String::from_utf8(key.to_vec()).ok()?, left));
            }
        }
        // Whose turn it is to renew it, and until when that helps.
        reader.take(16).ok()?;
        reader.end().ok()?;
        let deadline = Timestamp::from_micros(deadline);
        (now < deadline).then_some(Self { charged_at: Timestamp::from_micros(charged_at), deadline, parts })
    }

    /// The hold in a list; `None` if it has nothing that is asked for.
    pub(crate) fn listed(&self, prefix: &str, query: &HoldQuery, now: Timestamp) -> Option<OpenHold> {
        let (policy, subject) = (query.written_policy(), query.written_subject());
        let part = |(key, units): &(String, u64)| {
            let (own_subject, own_policy, _) = decode(key, prefix)?;
            let wanted = policy.as_ref().is_none_or(|policy| policy == own_policy)
                && subject.as_ref().is_none_or(|subject| subject == own_subject);
            wanted.then(|| OpenPart::of_written(own_policy, own_subject, *units))
        };
        let parts: Vec<OpenPart> = self.parts.iter().filter_map(part).collect();
        let hold = OpenHold::new(self.charged_at, self.deadline, now, parts);
        (!hold.parts.is_empty() && query.wants_age(hold.age)).then_some(hold)
    }
}

/// The units left and the instant of the charge in an entry of the open holds of a state, described at the top of `holds.lua`.
pub(crate) fn read_entry(member: &Value) -> Option<(u64, Timestamp)> {
    let mut reader = Reader::of_stored(member)?;
    reader.take(16).ok()?;
    let (left, charged_at) = (reader.number().ok()?, reader.number().ok()?);
    reader.take(1).ok()?;
    reader.end().ok()?;
    Some((left, Timestamp::from_micros(charged_at)))
}

/// How long ago something was, by the clock of a server.
pub(crate) fn age(now: Timestamp, then: Timestamp) -> Duration {
    Duration::from_micros(now.as_micros().saturating_sub(then.as_micros()))
}
