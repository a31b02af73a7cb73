//! The open holds of a store, page by page.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::clock::Timestamp;
use crate::key::{Key, KeyError, write_part};

/// Which open holds to list, and from where.
///
/// A page is bounded work for the store, and it may be empty although more follow: go on with [`HoldPage::next`] until there is none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HoldQuery {
    policy: Option<String>,
    subject: Option<Vec<u8>>,
    older_than: Duration,
    most: usize,
    after: Option<HoldCursor>,
}

/// Where a page ended. As a text it can be passed on; it tells nothing about a hold, and only the store that made it can use it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HoldCursor(pub(crate) [u64; 3]);

/// The error of a text that is not a cursor.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("this is not a cursor of a list of holds: pass on the one of the last page, or begin again without one")]
#[non_exhaustive]
pub struct InvalidCursor;

/// A part of the list of open holds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HoldPage {
    /// The oldest first.
    pub holds: Vec<OpenHold>,
    /// Where the next page begins, if there is one.
    pub next: Option<HoldCursor>,
}

/// An open hold in a list. Neither its token nor its id is listed: they would be enough to resolve it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct OpenHold {
    /// When it was reserved, on the store's clock.
    pub reserved_at: Timestamp,
    /// When it is abandoned, unless it is extended.
    pub expires_at: Timestamp,
    /// How long ago it was reserved.
    pub age: Duration,
    /// What it holds under each limit that was asked for.
    pub parts: Vec<OpenPart>,
}

/// What an open hold holds under one limit.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct OpenPart {
    /// The policy of its key.
    pub policy: String,
    /// The subject of its key. A long one is known by its digest only: `#` and 32 digits.
    pub subject: String,
    /// The units that are held, without those that were settled in part.
    pub units: u64,
}

impl HoldQuery {
    /// How many holds a page may be asked for.
    pub const MOST: usize = 1000;

    /// All open holds, a hundred in a page.
    pub const fn new() -> Self {
        Self { policy: None, subject: None, older_than: Duration::ZERO, most: 100, after: None }
    }

    /// Only what is held under this policy: the name in its keys, which [`key_name`](crate::policy::key_name) computes for a policy of a domain.
    pub fn of_policy(self, policy: &str) -> Result<Self, KeyError> {
        Key::new(policy, "subject")?;
        Ok(Self { policy: Some(policy.to_owned()), ..self })
    }

    /// Only what is held of this subject. With a policy, too, a shared store need not look at other keys.
    pub fn of_subject(self, subject: &(impl AsRef<[u8]> + ?Sized)) -> Result<Self, KeyError> {
        Key::new("policy", subject)?;
        Ok(Self { subject: Some(subject.as_ref().to_owned()), ..self })
    }

    /// Only holds that were reserved at least so long ago.
    #[must_use]
    pub fn older_than(self, age: Duration) -> Self {
        Self { older_than: age, ..self }
    }

    /// Ends a page when it has this many, from 1 to [`MOST`](Self::MOST). A page of a shared store may have some more.
    #[must_use]
    pub fn at_most(self, holds: usize) -> Self {
        Self { most: holds.clamp(1, Self::MOST), ..self }
    }

    /// Goes on where a page ended.
    #[must_use]
    pub fn after(self, cursor: Option<HoldCursor>) -> Self {
        Self { after: cursor, ..self }
    }

    /// How many holds a page should have.
    pub fn most(&self) -> usize {
        self.most
    }

    /// Where to go on.
    pub fn cursor(&self) -> Option<HoldCursor> {
        self.after
    }

    /// The policy as it is written in keys.
    pub fn written_policy(&self) -> Option<String> {
        self.policy.as_ref().map(|policy| write_part(policy.as_bytes()))
    }

    /// The subject as it is written in keys.
    pub fn written_subject(&self) -> Option<String> {
        self.subject.as_deref().map(write_part)
    }

    /// The key that is asked for, if there is only one.
    pub fn key(&self) -> Option<Key<'_>> {
        Key::new(self.policy.as_deref()?, self.subject.as_deref()?).ok()
    }

    /// Whether a hold of this age is old enough.
    pub fn wants_age(&self, age: Duration) -> bool {
        age >= self.older_than
    }
}

impl Default for HoldQuery {
    fn default() -> Self {
        Self::new()
    }
}

impl HoldCursor {
    /// Of three numbers that a store finds its place by.
    pub const fn new(place: [u64; 3]) -> Self {
        Self(place)
    }

    /// The three numbers.
    pub const fn place(self) -> [u64; 3] {
        self.0
    }
}

impl fmt::Display for HoldCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c] = self.0;
        write!(f, "{a}-{b}-{c}")
    }
}

impl FromStr for HoldCursor {
    type Err = InvalidCursor;

    fn from_str(text: &str) -> Result<Self, InvalidCursor> {
        let mut numbers = text.split('-').map(|digits| {
            let plain = !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit());
            digits.parse().ok().filter(|_| plain).ok_or(InvalidCursor)
        });
        let mut next = || numbers.next().unwrap_or(Err(InvalidCursor));
        let place = [next()?, next()?, next()?];
        if numbers.next().is_none() { Ok(Self(place)) } else { Err(InvalidCursor) }
    }
}

impl OpenHold {
    /// A hold as of `now`.
    pub fn new(reserved_at: Timestamp, expires_at: Timestamp, now: Timestamp, parts: Vec<OpenPart>) -> Self {
        let age = Duration::from_micros(now.as_micros().saturating_sub(reserved_at.as_micros()));
        Self { reserved_at, expires_at, age, parts }
    }

    /// After which time it is abandoned.
    pub fn expires_after(&self) -> Duration {
        let whole = self.expires_at.as_micros().saturating_sub(self.reserved_at.as_micros());
        Duration::from_micros(whole).saturating_sub(self.age)
    }

    /// The units that are held under all limits.
    pub fn units(&self) -> u64 {
        self.parts.iter().fold(0, |sum, part| sum.saturating_add(part.units))
    }
}

impl OpenPart {
    /// A part, of a policy and a subject as they are written in keys.
    pub fn of_written(policy: &str, subject: &str, units: u64) -> Self {
        Self { policy: crate::key::read_part(policy), subject: crate::key::read_part(subject), units }
    }
}

impl HoldPage {
    /// A page, whose holds are sorted here.
    pub fn new(mut holds: Vec<OpenHold>, next: Option<HoldCursor>) -> Self {
        holds.sort_by_key(|hold| (hold.reserved_at, hold.expires_at));
        Self { holds, next }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_read_back_and_nothing_else_is_one() {
        let cursor = HoldCursor::new([u64::MAX, 0, 7]);
        assert_eq!(cursor.to_string().parse(), Ok(cursor));
        for text in ["", "1", "1-2", "1-2-3-4", "1-2-", "+1-2-3", "1-2-18446744073709551616", "a-b-c", " 1-2-3"] {
            assert_eq!(text.parse::<HoldCursor>(), Err(InvalidCursor), "{text}");
        }
    }

    #[test]
    fn a_query_of_an_impossible_key_is_refused() {
        assert!(HoldQuery::new().of_policy("").is_err());
        assert!(HoldQuery::new().of_subject(&[0; 1025]).is_err());
        assert_eq!(HoldQuery::new().at_most(0).most(), 1);
        assert_eq!(HoldQuery::new().at_most(usize::MAX).most(), HoldQuery::MOST);
    }
}
