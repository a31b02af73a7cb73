//! How a hold ends: what is asked of the store, and what it answers.

use std::time::{Duration, Instant};

use super::{Hold, HoldState, HoldTerms, Turn, is_named, random_bytes};
use crate::check::Cost;
use crate::clock::Timestamp;
use crate::decision::Status;

/// One call to a store about a hold. Repeating it changes nothing.
#[derive(Debug, Clone)]
pub struct Resolution<'h> {
    /// The hold.
    pub hold: &'h Hold,
    /// What to do with it.
    pub resolve: Resolve,
    /// Identifies this call: if it is repeated because no answer came, it is answered as the first time.
    pub attempt: u64,
    /// The instant by which it must be answered. `None` leaves it to the store.
    pub deadline: Option<Instant>,
}

/// What to do with a hold.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Resolve {
    /// Charges what was used and gives the rest back.
    Settle(Units),
    /// Charges what was used so far. The hold stays open with the rest.
    SettlePart(Units),
    /// Gives everything back.
    Cancel,
    /// Moves the deadline to this time from now, at most a day, unless it is later already.
    Extend(Duration),
    /// Extends it, and changes its token: from then on only [`Hold::at_turn`] of the next one is known. To repeat it does no harm.
    Renew {
        /// For how long from now, at most a day.
        ttl: Duration,
        /// The next turn.
        next: Turn,
    },
}

impl Resolve {
    /// For how many microseconds from now a hold is extended: at most the longest that any limit grants.
    pub fn extend_micros(&self) -> u64 {
        match self {
            Self::Extend(ttl) | Self::Renew { ttl, .. } => {
                u64::try_from((*ttl).min(HoldTerms::LONGEST).as_micros()).unwrap_or(0)
            }
            _ => 0,
        }
    }

    /// Whether it moves the deadline, and changes no units.
    pub fn extends(&self) -> bool {
        matches!(self, Self::Extend(_) | Self::Renew { .. })
    }

    /// The turn of the token from then on, if it changes.
    pub fn next(&self) -> Option<Turn> {
        match self {
            Self::Renew { next, .. } => Some(*next),
            _ => None,
        }
    }

    /// Whether one number of units is given for all policies.
    pub fn takes_same(&self) -> bool {
        matches!(self, Self::Settle(Units::Same(_)) | Self::SettlePart(Units::Same(_)))
    }
}

/// The units that were used. More than [`Cost::MAX`] counts as that.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Units {
    /// As many as were reserved.
    AsReserved,
    /// As many under each policy. The same number must have been reserved under each.
    Same(u64),
    /// By the name of the policy: that of its key, or its name within a domain. The others keep what was reserved, or nothing more if a part is settled.
    Each(Vec<(String, u64)>),
}

/// What a store answers to a [`Resolution`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Resolved {
    /// What has become of the hold.
    pub state: HoldState,
    /// Whether this call did what it asked for. If not, the hold had been resolved before, or is not known, or
    /// [`refused`](Self::refused) says why it is still open.
    pub done: bool,
    /// Why the hold is still open, if the store was asked to resolve it.
    pub refused: Option<Refused>,
    /// The deadline of the hold, if it is known.
    pub expires_at: Option<Timestamp>,
    /// When the store answered, on its clock.
    pub decided_at: Timestamp,
    /// One for each place of the hold, in order. Empty if the hold is not known.
    pub parts: Vec<HoldPart>,
}

/// Why a hold cannot be resolved as asked. Nothing was changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refused {
    /// The limit at this position refuses overruns, and was asked for one.
    Overrun(usize),
    /// One number of units was given, but different numbers were reserved: [`Units::Each`] is needed.
    DifferentUnits,
    /// The hold was renewed since, and has another token.
    Renewed,
}

/// What has become of a hold under one limit, and the state of that limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct HoldPart {
    /// Units reserved.
    pub reserved: u64,
    /// Units still held.
    pub held: u64,
    /// Units that were used and stay charged.
    pub settled: u64,
    /// Units given back.
    pub refunded: u64,
    /// Units that were used, but not charged: there was no room, or the debt would have been too large.
    pub unpaid: u64,
    /// What the limit says now.
    pub status: Status,
}

impl HoldPart {
    /// A part as a store keeps it.
    pub fn new(reserved: u64, held: u64, settled: u64, refunded: u64, unpaid: u64, status: Status) -> Self {
        Self { reserved, held, settled, refunded, unpaid, status }
    }
}

impl<'h> Resolution<'h> {
    /// Creates a resolution with a new random number.
    pub fn new(hold: &'h Hold, resolve: Resolve) -> Self {
        // Zero means that there was no call yet.
        let attempt = (u64::from_le_bytes(random_bytes()) >> 11).max(1);
        Self { hold, resolve, attempt, deadline: None }
    }

    /// The same with a deadline.
    #[must_use]
    pub fn by(self, deadline: Option<Instant>) -> Self {
        Self { deadline, ..self }
    }

    /// For each place of the hold, the units used; `None` for all that is reserved there.
    pub fn used(&self) -> Vec<Option<u64>> {
        let names = || self.hold.places().map(|(key, _)| key.policy());
        let (units, rest) = match &self.resolve {
            Resolve::Settle(units) => (units, None),
            Resolve::SettlePart(units) => (units, Some(0)),
            Resolve::Cancel | Resolve::Extend(_) | Resolve::Renew { .. } => return names().map(|_| Some(0)).collect(),
        };
        match units {
            Units::AsReserved => names().map(|_| None).collect(),
            Units::Same(units) => names().map(|_| Some(within(*units))).collect(),
            Units::Each(each) => {
                let named = |key: &str| each.iter().find(|(policy, _)| is_named(key, policy));
                let used = |key: &str| named(key).map(|(_, units)| within(*units));
                names().map(|name| used(name).or(rest)).collect()
            }
        }
    }
}

/// What is not charged is added up, in a store that counts in doubles.
fn within(units: u64) -> u64 {
    units.min(Cost::MAX.get())
}

impl Resolved {
    /// Creates the answer of a store that did what it was asked for.
    pub fn done(state: HoldState, expires_at: Timestamp, decided_at: Timestamp, parts: Vec<HoldPart>) -> Self {
        Self { state, done: true, refused: None, expires_at: Some(expires_at), decided_at, parts }
    }

    /// The same, for a call that changed nothing.
    #[must_use]
    pub fn unchanged(self) -> Self {
        Self { done: false, ..self }
    }

    /// The same, for a call that cannot be done.
    #[must_use]
    pub fn refused(self, because: Refused) -> Self {
        Self { done: false, refused: Some(because), ..self }
    }

    /// The answer about a hold whose parts are kept in several places: this one with the parts of another.
    #[must_use]
    pub fn with_rest(mut self, rest: Self) -> Self {
        self.parts.extend(rest.parts);
        // What was done in one place was done, whatever was done before in another.
        if rest.done && !self.done {
            (self.state, self.done) = (rest.state, true);
        }
        let refused = self.refused.or(rest.refused);
        let decided_at = self.decided_at.min(rest.decided_at);
        Self { refused, decided_at, expires_at: self.expires_at.or(rest.expires_at), ..self }
    }

    /// The same for a hold that was extended or renewed. It lasts as long as in the place that keeps it for the shortest time; and if one
    /// of them has closed it, it is not extended: what it had there is somebody else's.
    #[must_use]
    pub fn with_rest_extended(self, rest: Self) -> Self {
        let left = |of: &Self| Some(of.expires_at?.as_micros().saturating_sub(of.decided_at.as_micros()));
        let left = left(&self).into_iter().chain(left(&rest)).min();
        let closed = [&self, &rest].into_iter().any(|of| !of.done && of.state == HoldState::Expired);
        let all = self.with_rest(rest);
        let expires_at = left.map(|left| Timestamp::from_micros(all.decided_at.as_micros().saturating_add(left)));
        let (state, done) = if closed { (HoldState::Expired, false) } else { (all.state, all.done) };
        Self { state, done, expires_at, ..all }
    }

    /// The answer about a hold that holds nothing, which needs no store.
    pub fn of_nothing(resolve: &Resolve, decided_at: Timestamp) -> Self {
        let state = match resolve {
            Resolve::Settle(_) => HoldState::Settled,
            Resolve::Cancel => HoldState::Cancelled,
            Resolve::SettlePart(_) | Resolve::Extend(_) | Resolve::Renew { .. } => HoldState::Open,
        };
        Self { state, done: true, refused: None, expires_at: None, decided_at, parts: Vec::new() }
    }

    /// The answer about a hold that is not known.
    pub fn unknown(decided_at: Timestamp) -> Self {
        let state = HoldState::NoLongerKnown;
        Self { state, done: false, refused: None, expires_at: None, decided_at, parts: Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The place that had closed it did not count, and the clock of another made it seem to last longer.
    #[test]
    fn a_hold_in_several_places_lasts_no_longer_than_in_each() {
        let at = Timestamp::from_micros;
        let lasts = |until, now| Resolved::done(HoldState::Open, at(until), at(now), Vec::new());
        let both = lasts(110, 100).with_rest_extended(lasts(57, 50));
        assert_eq!(
            (both.state, both.done, both.decided_at, both.expires_at),
            (HoldState::Open, true, at(50), Some(at(57)))
        );
        let closed = Resolved::done(HoldState::Expired, at(90), at(100), Vec::new()).unchanged();
        for both in [closed.clone().with_rest_extended(lasts(57, 50)), lasts(57, 50).with_rest_extended(closed)] {
            assert_eq!((both.state, both.done), (HoldState::Expired, false));
        }
    }
}
