//! The answer to one check.

use std::cmp::Ordering;
use std::time::Duration;

use crate::algorithm::Algorithm;
use crate::clock::Timestamp;
use crate::limit::Limit;

/// The answer to one check.
///
/// Kept small because it is copied often: amounts are at most 10^9, durations are in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Status {
    retry_after: u64,
    reset_after: u64,
    /// Below the flag [`PAYS_REST`].
    limit: u32,
    /// What is left; or, in a status that is [`IN_DEBT`], how much too much is used.
    remaining: u32,
    /// Below the flags [`IN_DEBT`] and [`BY_CALENDAR`].
    units: u32,
    /// The units held, above the flags [`ALLOWED`] and [`HOLDS_FULL`].
    held: u32,
}

/// The `retry_after` of a check that waiting does not help.
const NEVER: u64 = u64::MAX;
/// Nothing is left, and more than the capacity is used.
const IN_DEBT: u32 = 1 << 31;
/// `reset_after` is until the end of a window of a calendar.
const BY_CALENDAR: u32 = 1 << 30;
/// No limit holds as many units.
const UNITS: u32 = BY_CALENDAR - 1;
/// A further payer of the cost of the status before it.
const PAYS_REST: u32 = 1 << 31;
/// The capacity where no limit applies.
const NO_LIMIT: u32 = PAYS_REST - 1;
const ALLOWED: u32 = 1;
/// Denied because no more units may be held.
const HOLDS_FULL: u32 = 2;

impl Status {
    /// Whether this check fits on its own.
    #[inline(always)]
    pub fn allowed(&self) -> bool {
        self.held & ALLOWED != 0
    }

    /// The capacity of the limit.
    pub fn limit(&self) -> u64 {
        u64::from(self.limit & !PAYS_REST)
    }

    /// Whether it is of a further payer of the cost of the status before it: see [`Check::paying_rest`](crate::Check::paying_rest). All of them are allowed, or
    /// none is, and `retry_after` is that of the cost. The other numbers are of this payer alone.
    #[inline]
    pub fn pays_rest(&self) -> bool {
        self.limit & PAYS_REST != 0
    }

    /// Units left at this instant, after the call was charged (if it was).
    #[inline(always)]
    pub fn remaining(&self) -> u64 {
        if self.units & IN_DEBT == 0 { u64::from(self.remaining) } else { 0 }
    }

    /// How far what is used exceeds the capacity, because an overrun of a hold was charged; while units are held, also because the limit
    /// was lowered.
    pub fn debt(&self) -> u64 {
        if self.units & IN_DEBT == 0 { 0 } else { u64::from(self.remaining) }
    }

    /// Of what is used, the units that open holds could still give back: exact for fixed windows, an upper bound for the other
    /// algorithms. With what else is used and what is left they make the capacity and the debt.
    pub fn held(&self) -> u64 {
        u64::from(self.held >> 2)
    }

    /// Whether the check was denied because too many holds are open, or too many units held, although the limit has room.
    pub fn holds_full(&self) -> bool {
        self.held & HOLDS_FULL != 0
    }

    /// The units that the call moved: charged by a check, given back by a refund. For a reset, 1 if there was a state.
    pub fn units(&self) -> u64 {
        u64::from(self.units & UNITS)
    }

    /// How long to wait until the same check would fit: exact, if no one else takes units in the meantime. Zero if it
    /// fits now; `None` if waiting does not help.
    pub fn retry_after(&self) -> Option<Duration> {
        (self.retry_after != NEVER).then(|| Duration::from_micros(self.retry_after))
    }

    /// How long until the limit is completely unused again.
    pub fn reset_after(&self) -> Duration {
        Duration::from_micros(self.reset_after)
    }

    /// When the window of a calendar ends, for a decision of this instant. `None` for other limits, and while nothing is used.
    pub fn reset_at(&self, decided_at: Timestamp) -> Option<Timestamp> {
        let ends = self.units & BY_CALENDAR != 0 && self.reset_after > 0;
        ends.then(|| Timestamp::from_micros(decided_at.as_micros().saturating_add(self.reset_after)))
    }

    /// A status as computed by a store. Durations are in microseconds; a `retry_after` of `u64::MAX` means that waiting does
    /// not help.
    #[inline(always)]
    pub fn from_parts(of: &Limit, allowed: bool, remaining: u64, retry_after: u64, reset_after: u64) -> Self {
        let (limit, remaining) = (units(of.capacity()), units(remaining));
        Self { retry_after, reset_after, limit, remaining, units: by_calendar(of), held: u32::from(allowed) }
    }

    /// The same numbers, of a limit that has had this capacity.
    #[must_use]
    pub fn with_limit(self, capacity: u64) -> Self {
        Self { limit: units(capacity) | self.limit & PAYS_REST, ..self }
    }

    /// The same status, with what is said of it by the check alone: whether the check is a further payer, and whether waiting does not
    /// help it.
    #[must_use]
    pub fn seen_by(self, pays_rest: bool, hopeless: bool) -> Self {
        let limit = if pays_rest { self.limit | PAYS_REST } else { self.limit };
        let status = Self { limit, ..self };
        if hopeless { status.into_never() } else { status }
    }

    /// The status of a cost with several payers, given theirs: what they have together. What is owed is shown if nothing is left.
    pub(crate) fn of_payers(payers: &[Self]) -> Self {
        let Some((first, rest)) = payers.split_first() else { return Self::unlimited() };
        let add = |known: Self, next: &Self| {
            let sum = |of: fn(&Self) -> u64| of(&known) + of(next);
            let latest = if next.reset_after > known.reset_after { next } else { &known };
            let (limit, remaining) = (units(sum(Self::limit)), units(sum(Self::remaining)));
            let calendar = latest.units & BY_CALENDAR;
            let moved = units(sum(Self::units)).min(UNITS);
            let flags = known.held & (ALLOWED | HOLDS_FULL) | next.held & HOLDS_FULL;
            let status = Self {
                retry_after: known.retry_after,
                reset_after: latest.reset_after,
                limit,
                remaining,
                units: moved | calendar,
                held: flags,
            };
            let debt = if remaining == 0 { sum(Self::debt) } else { 0 };
            status.with_holds(sum(Self::held), debt)
        };
        rest.iter().fold(*first, add)
    }

    /// What is left of a limit of which only the capacity is known, and the kind of its state.
    pub fn of_capacity(capacity: u64, kind: &str, remaining: u64, reset_after: u64) -> Self {
        let (limit, remaining) = (units(capacity), units(remaining));
        let flags = if kind == Algorithm::CalendarWindow.kind() { BY_CALENDAR } else { 0 };
        Self { retry_after: 0, reset_after, limit, remaining, units: flags, held: ALLOWED }
    }

    /// The same status of a limit of whose capacity so many units are held, and so many used beyond it.
    #[must_use]
    pub fn with_holds(self, held: u64, debt: u64) -> Self {
        let held = units(held.min(self.limit())).min(UNITS) << 2 | self.held & (ALLOWED | HOLDS_FULL);
        match debt {
            0 => Self { held, ..self },
            _ => Self { held, remaining: units(debt), units: self.units | IN_DEBT, ..self },
        }
    }

    /// The same numbers, denied because no more units may be held for now. Some hold ends within `wait` microseconds.
    #[must_use]
    pub fn into_holds_full(self, wait: u64) -> Self {
        let held = self.held & !ALLOWED | HOLDS_FULL;
        Self { held, retry_after: self.retry_after.max(wait).max(1), ..self }
    }

    /// A status as computed by the embedded store. No number is above the capacity, which is at most 10^9.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "at most 10^9")]
    pub(crate) fn computed(of: &Limit, allowed: bool, remaining: u64, units: u64, waits: (u64, u64)) -> Self {
        let (limit, remaining, units) = (of.capacity() as u32, remaining as u32, units as u32 | by_calendar(of));
        Self { retry_after: waits.0, reset_after: waits.1, limit, remaining, units, held: u32::from(allowed) }
    }

    /// The same status, for a call that moved `moved` units.
    #[inline(always)]
    #[must_use]
    pub fn with_units(self, moved: u64) -> Self {
        Self { units: units(moved).min(UNITS) | self.units & !UNITS, ..self }
    }

    /// The status of a check that was charged and then given back. `reset_after` stays an upper bound, unless nothing
    /// is used any more.
    #[must_use]
    pub fn with_refund(self, given: u64) -> Self {
        let units_left = units(self.units().saturating_sub(given)) | self.units & BY_CALENDAR;
        // What is given back pays a debt first.
        let debt = self.debt().saturating_sub(given);
        if debt > 0 {
            return Self { remaining: units(debt), units: units_left | IN_DEBT, ..self };
        }
        let capacity = units(self.limit());
        let remaining = units(self.remaining() + given - self.debt()).min(capacity);
        let reset_after = if given > 0 && remaining == capacity { 0 } else { self.reset_after };
        Self { remaining, reset_after, units: units_left, ..self }
    }

    /// The answer to a refund of `given` units. A refund is never denied.
    #[must_use]
    pub fn into_refund(self, given: u64) -> Self {
        Self { held: self.held | ALLOWED, retry_after: 0, ..self }.with_units(given)
    }

    /// The same status where `more` units are left. It is allowed if it was, or if it now `fits`.
    #[must_use]
    pub(crate) fn with_more_left(self, more: u64, fits: bool) -> Self {
        let allowed = self.allowed() || fits;
        let (held, retry_after) = if allowed { (self.held | ALLOWED, 0) } else { (self.held, self.retry_after) };
        // What is owed is not paid by what was taken in advance.
        let remaining = match self.debt() {
            0 => units(self.remaining() + more).min(units(self.limit())),
            _ => self.remaining,
        };
        Self { held, remaining, retry_after, ..self }
    }

    /// The same numbers, with another wait until the check would fit, in microseconds.
    #[must_use]
    pub(crate) fn with_retry_after(self, retry_after: u64) -> Self {
        Self { retry_after, ..self }
    }

    /// The same numbers, with another time until the limit is unused, in microseconds.
    #[must_use]
    pub(crate) fn with_reset_after(self, reset_after: u64) -> Self {
        Self { reset_after, ..self }
    }

    /// The same status when `passed` microseconds have passed: the waits count down. A denied check does not reach zero.
    #[must_use]
    pub(crate) fn after(self, passed: u64) -> Self {
        let least = u64::from(!self.allowed());
        let retry_after = match self.retry_after {
            NEVER => NEVER,
            wait => wait.saturating_sub(passed).max(least),
        };
        Self { retry_after, reset_after: self.reset_after.saturating_sub(passed), ..self }
    }

    /// The wait until the check would fit, in microseconds.
    pub(crate) fn waits(&self) -> u64 {
        self.retry_after
    }

    /// The same numbers, allowed or not, and the wait of the cost that the check pays a part of.
    #[must_use]
    pub(crate) fn of_fund(self, allowed: bool, retry_after: u64) -> Self {
        Self { held: self.held & !ALLOWED | u32::from(allowed), retry_after, ..self }
    }

    /// The same numbers, denied.
    #[must_use]
    pub(crate) fn into_denied(self) -> Self {
        Self { held: self.held & !ALLOWED, ..self }
    }

    /// The same numbers, denied, and waiting does not help.
    #[must_use]
    pub fn into_never(self) -> Self {
        Self { held: self.held & !ALLOWED, retry_after: NEVER, ..self }
    }

    /// The status where no limit applies.
    pub(crate) fn unlimited() -> Self {
        Self { retry_after: 0, reset_after: 0, limit: NO_LIMIT, remaining: u32::MAX, units: 0, held: ALLOWED }
    }

    /// All that it says, for a store that saves it.
    pub(crate) fn to_numbers(self) -> [u64; 6] {
        let Self { retry_after, reset_after, limit, remaining, units, held } = self;
        [retry_after, reset_after, limit.into(), remaining.into(), units.into(), held.into()]
    }

    /// The status of [`to_numbers`](Self::to_numbers).
    pub(crate) fn of_numbers(numbers: [u64; 6]) -> Option<Self> {
        let [retry_after, reset_after, rest @ ..] = numbers;
        let [limit, remaining, units, held] = rest.map(|number| u32::try_from(number).ok());
        Some(Self { retry_after, reset_after, limit: limit?, remaining: remaining?, units: units?, held: held? })
    }

    /// Allowed, with the whole capacity left.
    pub fn untouched(limit: &Limit) -> Self {
        Self::from_parts(limit, true, limit.capacity(), 0, 0)
    }

    /// Orders statuses by how tight they are: denied ones first, by wait; then by what is left.
    pub(crate) fn tightness(&self, other: &Self) -> Ordering {
        let by_outcome = other.allowed().cmp(&self.allowed());
        let by_wait = self.retry_after.cmp(&other.retry_after);
        let by_rest = other.remaining().cmp(&self.remaining());
        by_outcome.then(by_wait).then(by_rest).then(self.reset_after.cmp(&other.reset_after))
    }

    /// Of a check that no store was asked about. A denied one says that waiting does not help.
    pub(super) fn without_numbers(allowed: bool) -> Self {
        let retry_after = if allowed { 0 } else { NEVER };
        Self { retry_after, reset_after: 0, limit: 0, remaining: 0, units: 0, held: u32::from(allowed) }
    }

    /// Denied, and waiting does not help.
    pub(crate) fn never(limit: &Limit) -> Self {
        Self::from_parts(limit, false, 0, NEVER, 0)
    }
}

#[inline(always)]
fn by_calendar(limit: &Limit) -> u32 {
    if limit.algorithm() == Algorithm::CalendarWindow { BY_CALENDAR } else { 0 }
}

/// No limit holds more than 10^9.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "capped just before")]
pub(super) fn units(count: u64) -> u32 {
    count.min(u64::from(u32::MAX)) as u32
}
