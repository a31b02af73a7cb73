//! Open holds in a list, as JSON.

use serde::Serialize;
use tallygate::hold::{OpenHold, OpenPart};

use crate::millis_up;

/// An open hold. Neither its token nor its id is in it: nobody can settle what is in a list.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct ListedHold<'a> {
    /// When it was reserved, in milliseconds since 1970 by the clock of the store.
    pub reserved_at_ms: u64,
    /// When it expires, unless it is extended.
    pub expires_at_ms: u64,
    /// How long ago it was reserved.
    pub age_ms: u64,
    /// After which time it expires.
    pub expires_after_ms: u64,
    /// What it holds under each limit.
    pub policies: Vec<ListedUnits<'a>>,
}

/// What an open hold holds under one limit.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct ListedUnits<'a> {
    /// The policy: `domain/name`, or the name alone of a limit that a call carried.
    pub policy: &'a str,
    /// Whom or what it counts. Users choose subjects: escape them before printing to a terminal.
    pub subject: &'a str,
    /// The units that are held.
    pub held: u64,
}

impl<'a> From<&'a OpenHold> for ListedHold<'a> {
    fn from(hold: &'a OpenHold) -> Self {
        let part = |part: &'a OpenPart| ListedUnits { policy: &part.policy, subject: &part.subject, held: part.units };
        Self {
            reserved_at_ms: hold.reserved_at.as_micros() / 1000,
            expires_at_ms: hold.expires_at.as_micros().div_ceil(1000),
            age_ms: u64::try_from(hold.age.as_millis()).unwrap_or(u64::MAX),
            expires_after_ms: millis_up(hold.expires_after()),
            policies: hold.parts.iter().map(part).collect(),
        }
    }
}
