//! The set of overrides as a store keeps it: one text of bytes.

use super::{Override, OverrideSet, Target};
use crate::clock::Timestamp;
use crate::limit::Limit;

/// The format that this version reads and writes, the first byte.
const VERSION: u8 = 1;
/// Stands for an override that does not end.
const NEVER: u64 = u64::MAX;
/// Stands for no limit.
const UNLIMITED: &str = "unlimited";

/// Why the set in a store cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// A newer version of Tallygate wrote it.
    #[error(
        "the overrides in the store were written by a newer version (format {0}, this one reads {VERSION}): upgrade this instance"
    )]
    Newer(u8),
    /// Nobody can read it.
    #[error(
        "the overrides in the store are damaged ({0}): delete their keys, which `tallygate audit` lists, and set them again"
    )]
    Damaged(String),
}

/// The text of a limit, or of none.
pub(super) fn written(limit: Option<&Limit>) -> String {
    limit.map_or_else(|| UNLIMITED.to_owned(), ToString::to_string)
}

pub(super) fn encode(overrides: &[Override]) -> Vec<u8> {
    let mut bytes = vec![VERSION];
    for one in overrides {
        let target = &one.target;
        for text in [&target.domain, &target.policy, &written(one.limit.as_ref()), &one.reason, &one.author] {
            text_to(&mut bytes, text);
        }
        let expires_at = one.expires_at.map_or(NEVER, Timestamp::as_micros);
        for number in [one.set_at.as_micros(), one.begins_at.as_micros(), expires_at] {
            bytes.extend(number.to_le_bytes());
        }
        bytes.push(u8::try_from(target.entries.len()).unwrap_or(u8::MAX));
        for (key, value) in &target.entries {
            text_to(&mut bytes, key);
            text_to(&mut bytes, value);
        }
    }
    bytes
}

fn text_to(bytes: &mut Vec<u8>, text: &str) {
    bytes.extend(u16::try_from(text.len()).unwrap_or(u16::MAX).to_le_bytes());
    bytes.extend(text.as_bytes());
}

/// Reads what [`encode`] has written. Nothing at all is no override.
pub(super) fn decode(bytes: &[u8]) -> Result<Vec<Override>, RecordError> {
    let Some((&version, rest)) = bytes.split_first() else { return Ok(Vec::new()) };
    if version != VERSION {
        return Err(RecordError::Newer(version));
    }
    let mut reader = Reader(rest);
    let mut overrides = Vec::new();
    while !reader.0.is_empty() {
        if overrides.len() == OverrideSet::MOST {
            return Err(RecordError::Damaged("there are too many of them".to_owned()));
        }
        overrides.push(reader.one()?);
    }
    Ok(overrides)
}

struct Reader<'r>(&'r [u8]);

impl Reader<'_> {
    fn one(&mut self) -> Result<Override, RecordError> {
        let (domain, policy, limit) = (self.text()?, self.text()?, self.text()?);
        let limit = match limit.as_str() {
            UNLIMITED => None,
            text => Some(text.parse().map_err(|_| RecordError::Damaged("a limit is invalid".to_owned()))?),
        };
        let (reason, author) = (self.text()?, self.text()?);
        let [set_at, begins_at, expires_at] = [self.number()?, self.number()?, self.number()?];
        let expires_at = (expires_at != NEVER).then(|| Timestamp::from_micros(expires_at));
        let [set_at, begins_at] = [set_at, begins_at].map(Timestamp::from_micros);
        let count = self.take(1)?[0];
        let entries = (0..count).map(|_| Ok((self.text()?, self.text()?))).collect::<Result<Vec<_>, RecordError>>()?;
        let target = Target::new(domain, policy, entries);
        Ok(Override { target, limit, reason, author, set_at, begins_at, expires_at })
    }

    fn take(&mut self, count: usize) -> Result<&[u8], RecordError> {
        let short = || RecordError::Damaged("it ends too early".to_owned());
        let (taken, rest) = self.0.split_at_checked(count).ok_or_else(short)?;
        self.0 = rest;
        Ok(taken)
    }

    fn number(&mut self) -> Result<u64, RecordError> {
        Ok(u64::from_le_bytes(self.take(8)?.try_into().unwrap_or_default()))
    }

    fn text(&mut self) -> Result<String, RecordError> {
        let length = u16::from_le_bytes(self.take(2)?.try_into().unwrap_or_default());
        let text = std::str::from_utf8(self.take(usize::from(length))?);
        text.map(str::to_owned).map_err(|_| RecordError::Damaged("a text is not UTF-8".to_owned()))
    }
}
