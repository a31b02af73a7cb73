//! Units reserved now and settled later, when the cost is known.

mod learned;
mod listing;
mod resolution;
mod token;

use std::fmt;
use std::fmt::Write as _;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::algorithm::Algorithm;
use crate::check::Check;
use crate::key::Key;
use crate::limit::Limit;
use crate::request::digest;
use crate::store::{Store, StoreError};
use crate::words::words;

pub use learned::{Learned, LearnedFigures};
pub use listing::{HoldCursor, HoldPage, HoldQuery, InvalidCursor, OpenHold, OpenPart};
pub use resolution::{HoldPart, Refused, Resolution, Resolve, Resolved, Units};
pub use token::InvalidHold;

words! {
    /// What becomes of a hold that nobody has settled or cancelled by its deadline.
    #[derive(Default)]
    #[non_exhaustive]
    pub enum OnAbandon, "on_abandon" {
        /// Its units stay charged: what it was for may have happened.
        #[default]
        Charge = "charge",
        /// Its units are given back, as far as they still count.
        Refund = "refund",
    }
}

words! {
    /// What happens if the actual cost is above what was reserved.
    #[derive(Default)]
    #[non_exhaustive]
    pub enum Overrun, "overrun" {
        /// The rest is charged, even beyond the capacity: by at most one capacity.
        #[default]
        Debt = "debt",
        /// The rest is charged as far as there is room.
        Cap = "cap",
        /// Nothing is settled, and the hold stays open.
        Refuse = "refuse",
    }
}

words! {
    /// What has become of a hold.
    #[non_exhaustive]
    pub enum HoldState {
        /// It waits to be settled.
        Open = "open",
        /// It was settled: what was used stays charged.
        Settled = "settled",
        /// It was cancelled: everything was given back that still counted.
        Cancelled = "cancelled",
        /// Its deadline passed: `on_abandon` says what became of its units.
        Expired = "expired",
        /// It is not known: it never was, or was resolved too long ago.
        NoLongerKnown = "no_longer_known",
    }
}

/// How long it is remembered what became of a hold.
pub const RETENTION: Duration = Duration::from_secs(60);

/// What a limit grants to holds. The bounds keep callers that reserve and never settle from blocking a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct HoldTerms {
    on_abandon: OnAbandon,
    overrun: Overrun,
    most_open: u32,
    most_held: u8,
    longest: Duration,
    max_life: Duration,
    learns_from: Option<u64>,
}

impl HoldTerms {
    /// Abandoned units stay charged, overruns become debt, at most 1000 holds are open for one key, they may hold the whole limit, each
    /// for at most an hour without an extension, and for at most a day in all.
    pub const DEFAULT: Self = Self {
        on_abandon: OnAbandon::Charge,
        overrun: Overrun::Debt,
        most_open: 1000,
        most_held: 100,
        longest: Duration::from_secs(3600),
        max_life: Self::LONGEST,
        learns_from: None,
    };
    /// The largest number of open holds that a key may be granted.
    pub const MOST_OPEN: u32 = 10_000;
    /// The shortest time of a hold.
    pub const SHORTEST: Duration = Duration::from_millis(1);
    /// The longest time that a hold may be granted: a day.
    pub const LONGEST: Duration = Duration::from_secs(86_400);
    /// The longest life that a hold may be granted, with all its extensions: 30 days.
    pub const LONGEST_LIFE: Duration = Duration::from_secs(30 * 86_400);

    /// Whether a hold may last for this time, if the longest is that.
    pub(crate) fn accepts(ttl: Duration, longest: Duration) -> bool {
        ttl >= Self::SHORTEST && ttl <= longest
    }

    /// Sets what becomes of holds that nobody settles.
    #[must_use]
    pub fn with_on_abandon(self, on_abandon: OnAbandon) -> Self {
        Self { on_abandon, ..self }
    }

    /// Sets what happens if the actual cost is above what was reserved.
    #[must_use]
    pub fn with_overrun(self, overrun: Overrun) -> Self {
        Self { overrun, ..self }
    }

    /// Sets how many holds may be open for one key, from 1 to [`MOST_OPEN`](Self::MOST_OPEN).
    #[must_use]
    pub fn with_most_open(self, holds: u32) -> Self {
        Self { most_open: holds.clamp(1, Self::MOST_OPEN), ..self }
    }

    /// Sets which part of the capacity may be held at one time, from 1 to 100 percent.
    #[must_use]
    pub fn with_most_held(self, percent: u8) -> Self {
        Self { most_held: percent.clamp(1, 100), ..self }
    }

    /// Sets for how long units may be held without an extension, from a millisecond to [`LONGEST`](Self::LONGEST).
    #[must_use]
    pub fn with_longest(self, ttl: Duration) -> Self {
        Self { longest: ttl.clamp(Self::SHORTEST, Self::LONGEST), ..self }
    }

    /// Sets for how long units may be held in all, however often the hold is extended or renewed, from a millisecond to
    /// [`LONGEST_LIFE`](Self::LONGEST_LIFE).
    #[must_use]
    pub fn with_max_life(self, life: Duration) -> Self {
        Self { max_life: life.clamp(Self::SHORTEST, Self::LONGEST_LIFE), ..self }
    }

    /// What they are for a limit. The units of a concurrency limit always come back, and as many holds may be open as it has units.
    #[must_use]
    pub fn under(self, limit: &Limit) -> Self {
        if !limit.is_concurrency() {
            return self;
        }
        let units = u32::try_from(limit.amount()).unwrap_or(u32::MAX);
        self.with_on_abandon(OnAbandon::Refund).with_most_open(units.max(self.most_open))
    }

    /// Lets a reservation that does not say how much hold what 19 of 20 holds have used at most, and this many units until that is
    /// [`Learned`].
    #[must_use]
    pub fn with_learned_estimate(self, first: u64) -> Self {
        Self { learns_from: Some(first.max(1)), ..self }
    }

    /// What becomes of holds that nobody settles.
    pub fn on_abandon(&self) -> OnAbandon {
        self.on_abandon
    }

    /// What happens if the actual cost is above what was reserved.
    pub fn overrun(&self) -> Overrun {
        self.overrun
    }

    /// How many holds may be open for one key.
    pub fn most_open(&self) -> u32 {
        self.most_open
    }

    /// Which part of the capacity may be held at one time, in percent.
    pub fn most_held(&self) -> u8 {
        self.most_held
    }

    /// For how long units may be held without an extension.
    pub fn longest(&self) -> Duration {
        self.longest.min(self.max_life)
    }

    /// For how long units may be held in all.
    pub fn max_life(&self) -> Duration {
        self.max_life
    }

    /// The first estimate, if reservations that do not say how much hold what was learned.
    pub fn learns_from(&self) -> Option<u64> {
        self.learns_from
    }

    /// How many units may be held at one time under a limit of this capacity: at least one.
    pub fn most_units(&self, capacity: u64) -> u64 {
        (capacity * u64::from(self.most_held) / 100).max(1).min(capacity)
    }
}

impl Default for HoldTerms {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// The random name of a hold. It is enough to resolve the hold, so it cannot be guessed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HoldId([u8; 16]);

impl HoldId {
    /// Draws a new one from the random numbers of the operating system.
    pub fn random() -> Self {
        Self(random_bytes())
    }

    /// A given one, for tests.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// Its bytes.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// As hexadecimal digits, for the key of its record. It is as secret as the hold.
    pub fn to_hex(&self) -> String {
        self.0.iter().fold(String::with_capacity(32), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
    }
}

fn random_bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).expect("the operating system has random numbers");
    bytes
}

/// A secret: it is enough to resolve the hold.
impl fmt::Debug for HoldId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HoldId(..)")
    }
}

/// A store that keeps holds.
pub trait Holds: Store {
    /// Settles, extends or cancels a hold. Once begun it is finished, even if the caller is gone.
    fn resolve(&self, resolution: &Resolution<'_>) -> impl Future<Output = Result<Resolved, StoreError>> + Send;

    /// Cancels a hold whose caller is gone, without waiting: at once, or in a task of the store.
    fn cancel_soon(&self, hold: Hold);

    /// Does work whose caller is gone, such as one resolution after another, without waiting: at once, or in a task of the store. If
    /// there is nowhere to do it, it is dropped, and what is still held is left to `on_abandon`.
    fn finish(&self, work: Work);
}

/// What is left to do about a hold whose caller is gone.
pub type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

impl<S: Holds> Holds for Arc<S> {
    fn finish(&self, work: Work) {
        (**self).finish(work);
    }

    fn cancel_soon(&self, hold: Hold) {
        (**self).cancel_soon(hold);
    }

    fn resolve(&self, resolution: &Resolution<'_>) -> impl Future<Output = Result<Resolved, StoreError>> + Send {
        (**self).resolve(resolution)
    }
}

/// What a call asks for that reserves: the name of the hold, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reservation {
    id: HoldId,
    ttl: Duration,
    life: Duration,
}

impl Reservation {
    /// A reservation under a new random name.
    pub fn new(ttl: Duration) -> Self {
        Self { id: HoldId::random(), ttl, life: HoldTerms::LONGEST_LIFE }
    }

    /// The same under a given name.
    #[must_use]
    pub fn with_id(self, id: HoldId) -> Self {
        Self { id, ..self }
    }

    /// The name of the hold.
    pub fn id(&self) -> HoldId {
        self.id
    }

    /// After which time the hold is abandoned, unless it is resolved or extended.
    pub fn ttl(&self) -> Duration {
        self.ttl
    }

    /// The same in microseconds.
    pub fn ttl_micros(&self) -> u64 {
        u64::try_from(self.ttl.as_micros()).unwrap_or(u64::MAX)
    }

    /// The same, with no more life than that.
    #[must_use]
    pub(crate) fn within(self, life: Duration) -> Self {
        Self { life: self.life.min(life), ..self }
    }

    /// For how many microseconds the units may be held in all, however often the hold is extended or renewed.
    pub fn life_micros(&self) -> u64 {
        u64::try_from(self.life.as_micros()).unwrap_or(u64::MAX)
    }
}

/// A hold: its name, and the states that its units were charged to. As a text it is a token, which others can settle.
///
/// The store keeps what was reserved, and compares: a token cannot be aimed at other states. It names its subjects, and is all
/// that is needed to resolve the hold. Do not log it.
#[derive(Clone, PartialEq, Eq)]
pub struct Hold {
    id: HoldId,
    /// Changes with each renewal.
    turn: Turn,
    parts: Vec<Place>,
}

/// Which renewal of a hold a token is of. The caller chooses the next one, so that a renewal whose answer was lost can be repeated. From
/// then on the tokens before it change nothing.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Turn([u8; 8]);

impl Turn {
    /// That of a hold that was not renewed yet.
    pub const FIRST: Self = Self([0; 8]);

    /// Draws a new one.
    pub fn random() -> Self {
        Self(random_bytes())
    }

    /// The one of this name: each renewal of a hold needs another name.
    pub fn named(name: &str) -> Self {
        let digest = digest([name.as_bytes()].into_iter());
        Self(*digest.first_chunk().expect("a digest is longer"))
    }

    /// A given one.
    pub const fn from_bytes(bytes: [u8; 8]) -> Self {
        Self(bytes)
    }

    /// Its bytes.
    pub const fn as_bytes(&self) -> &[u8; 8] {
        &self.0
    }
}

/// As secret as the hold.
impl fmt::Debug for Turn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Turn(..)")
    }
}

/// The state that a part of a hold was charged to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) policy: String,
    pub(crate) subject: Vec<u8>,
    pub(crate) algorithm: Algorithm,
}

impl Hold {
    /// The hold of a reservation for `checks`: those of its call, in order, without limits of zero.
    pub fn new(id: HoldId, checks: &[Check<'_>]) -> Self {
        let place = |check: &Check<'_>| Place {
            policy: check.key.policy().to_owned(),
            subject: check.key.subject().to_owned(),
            algorithm: check.limit.algorithm(),
        };
        Self { id, turn: Turn::FIRST, parts: checks.iter().map(place).collect() }
    }

    /// A hold of a call that no store was asked about.
    pub fn of_nothing() -> Self {
        Self { id: HoldId::random(), turn: Turn::FIRST, parts: Vec::new() }
    }

    /// The same hold after a renewal.
    #[must_use]
    pub fn at_turn(self, turn: Turn) -> Self {
        Self { turn, ..self }
    }

    /// Which renewal it is of.
    pub fn turn(&self) -> Turn {
        self.turn
    }

    /// Its name.
    pub fn id(&self) -> HoldId {
        self.id
    }

    /// Whether one of its policies has this name: that of its key, or its name within a domain.
    pub fn is_of(&self, policy: &str) -> bool {
        self.parts.iter().any(|place| is_named(&place.policy, policy))
    }

    /// Whether it holds nothing: no limit applied, or the store could not be asked.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// The keys of the states that it was charged to, and the algorithms of their limits, in order.
    pub fn places(&self) -> impl ExactSizeIterator<Item = (Key<'_>, Algorithm)> {
        self.parts.iter().map(|place| {
            let key = Key::new(&place.policy, &place.subject).expect("made from a key, or checked when it was read");
            (key, place.algorithm)
        })
    }
}

/// Whether the policy of a key has a name: the whole, or what follows the domain, in which a `/` is doubled.
pub(crate) fn is_named(key: &str, name: &str) -> bool {
    let of_domain = || {
        let domain = key.strip_suffix(name)?.strip_suffix('/')?;
        (!domain.is_empty() && !domain.replace("//", "").contains('/')).then_some(())
    };
    key == name || of_domain().is_some()
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hold").field("parts", &self.parts.len()).finish_non_exhaustive()
    }
}
