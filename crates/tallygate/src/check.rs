//! One question to a store: key, limit, cost.

use std::fmt;
use std::num::NonZeroU64;
use std::str::FromStr;
use std::time::Duration;

use crate::call::Verb;
use crate::clock::Timestamp;
use crate::hold::HoldTerms;
use crate::key::Key;
use crate::limit::{Changes, Limit};
use crate::policy::{Excess, Mode};

/// Asks whether `key` may have `cost` more units under `limit`.
#[derive(Debug, Clone, Copy)]
pub struct Check<'a> {
    /// Identifies the state.
    pub key: Key<'a>,
    /// The limit.
    pub limit: &'a Limit,
    /// The number of units.
    pub cost: Cost,
    /// When the units of a refund were charged.
    charged_at: Option<Timestamp>,
    holds: Option<&'a HoldTerms>,
    changes: Option<&'a Changes>,
    mode: Mode,
    fails_closed: bool,
    allotment: bool,
    /// In milliseconds; [`AS_THE_CACHE_SAYS`] leaves it to the cache.
    cache_denials: u32,
    /// Flags of uncommon checks, in one byte, so that the common check is recognised by one comparison.
    unusual: u8,
}

/// A cost that does not fit takes what is left.
const DRAINS: u8 = 1;
/// The original cost is above the capacity of the limit.
const HOPELESS: u8 = 2;
/// Its limit grants holds.
const HELD: u8 = 4;
/// Its limit is about to change, or has just changed.
const CHANGES: u8 = 8;
/// It is a further payer of the cost of the check before it.
const PAYS_REST: u8 = 16;
const AS_THE_CACHE_SAYS: u32 = u32::MAX;

impl<'a> Check<'a> {
    /// Creates a check of cost one.
    #[inline]
    pub fn new(key: Key<'a>, limit: &'a Limit) -> Self {
        let (charged_at, mode) = (None, Mode::Enforce);
        let cache_denials = AS_THE_CACHE_SAYS;
        let (holds, changes, fails_closed, allotment) = (None, None, false, false);
        Self {
            key,
            limit,
            cost: Cost::ONE,
            charged_at,
            holds,
            changes,
            mode,
            fails_closed,
            allotment,
            cache_denials,
            unusual: 0,
        }
    }

    /// Sets the cost.
    #[inline]
    #[must_use]
    pub fn cost(self, cost: Cost) -> Self {
        Self { cost, ..self }
    }

    /// Sets what the answer means for the call. Defaults to [`Mode::Enforce`].
    #[inline]
    #[must_use]
    pub fn with_mode(self, mode: Mode) -> Self {
        Self { mode, ..self }
    }

    /// Sets what happens to a cost that does not fit. Defaults to [`Excess::Refuse`].
    #[inline]
    #[must_use]
    pub fn with_excess(self, excess: Excess) -> Self {
        match excess {
            Excess::Drain => Self { unusual: self.unusual | DRAINS, ..self },
            Excess::Refuse => Self { unusual: self.unusual & !DRAINS, ..self },
        }
    }

    /// Sets whether the call is denied if this check cannot be decided. Matters to calls that
    /// [take partial answers](crate::call::Call::takes_partial_answers).
    #[inline]
    #[must_use]
    pub fn with_fails_closed(self, fails_closed: bool) -> Self {
        Self { fails_closed, ..self }
    }

    /// Whether the call is denied if this check cannot be decided.
    #[inline]
    pub fn fails_closed(&self) -> bool {
        self.fails_closed
    }

    /// Sets when the units of a refund were charged. Defaults to now.
    #[inline]
    #[must_use]
    pub fn with_charged_at(self, charged_at: Option<Timestamp>) -> Self {
        Self { charged_at, ..self }
    }

    /// Sets how long a [`DenyCache`](crate::store::DenyCache) may repeat a denial; zero is never. Defaults to what the cache
    /// says.
    #[inline]
    #[must_use]
    pub fn with_cache_denials(self, at_most: Option<Duration>) -> Self {
        let millis = |span: Duration| u32::try_from(span.as_millis()).unwrap_or(u32::MAX).min(AS_THE_CACHE_SAYS - 1);
        Self { cache_denials: at_most.map_or(AS_THE_CACHE_SAYS, millis), ..self }
    }

    /// Sets what the limit grants to holds. A reservation without it grants [`HoldTerms::DEFAULT`]. Give it to every check of
    /// a limit that is reserved from: a shared store then needs one round trip for it, and otherwise a second one while units are held.
    #[inline]
    #[must_use]
    pub fn with_holds(self, terms: Option<&'a HoldTerms>) -> Self {
        match terms {
            Some(_) => Self { holds: terms, unusual: self.unusual | HELD, ..self },
            None => Self { holds: terms, unusual: self.unusual & !HELD, ..self },
        }
    }

    /// What the limit grants to holds, if that was said.
    #[inline]
    pub fn holds(&self) -> Option<&'a HoldTerms> {
        self.holds
    }

    /// How long a denial may be repeated; `None` leaves it to the cache.
    pub fn cache_denials(&self) -> Option<Duration> {
        let known = self.cache_denials != AS_THE_CACHE_SAYS;
        known.then(|| Duration::from_millis(u64::from(self.cache_denials)))
    }

    /// Sets whether [`Allotments`](crate::store::Allotments) may answer, if the key is hot. Defaults to false.
    #[inline]
    #[must_use]
    pub fn with_allotment(self, allotment: bool) -> Self {
        Self { allotment, ..self }
    }

    /// Whether units may be taken in advance for the key.
    #[inline]
    pub fn allotment(&self) -> bool {
        self.allotment
    }

    /// Lets the store pick the limit, by its clock: `changes` replace the limit. No cache and no allotment answers such a check.
    #[inline]
    #[must_use]
    pub fn with_changes(self, changes: Option<&'a Changes>) -> Self {
        let Some(known) = changes else { return self };
        let (limit, unusual) = (known.first(), self.unusual | CHANGES);
        Self { limit, changes, unusual, ..self }.with_allotment(false).with_cache_denials(Some(Duration::ZERO))
    }

    /// The limits that the store picks from by its clock, if there are several.
    #[inline]
    pub fn changes(&self) -> Option<&'a Changes> {
        self.changes
    }

    /// The same check under the limit that is in force at this instant of the store's clock.
    pub(crate) fn at(self, now: Timestamp) -> Self {
        let Some(changes) = self.changes else { return self };
        let (limit, unusual) = (changes.limit_at(now), self.unusual & !CHANGES);
        Self { limit, changes: None, unusual, ..self }
    }

    /// The same question about another state.
    pub(crate) fn of_key(self, key: Key<'a>) -> Self {
        Self { key, changes: None, unusual: self.unusual & !CHANGES, ..self }
    }

    /// The same question under another limit, which does not change.
    pub(crate) fn under<'b>(self, limit: &'b Limit) -> Check<'b>
    where
        'a: 'b,
    {
        Check { limit, changes: None, unusual: self.unusual & !CHANGES, ..self }
    }

    /// Caps the cost at the capacity of the limit. If that lowers the cost, the check is always denied, and its status
    /// still reports what is left.
    #[inline]
    #[must_use]
    pub fn within_capacity(self) -> Self {
        // Which limit applies is known to the store only.
        if self.is_within_capacity() || self.changes.is_some() {
            return self;
        }
        match Cost::new(self.limit.capacity()) {
            Ok(capacity) => Self { cost: capacity, unusual: self.unusual | HOPELESS, ..self },
            Err(_) => self,
        }
    }

    /// The same check of a call that reserves: units that may never be held are denied for ever, too.
    pub(crate) fn within_holds(self) -> Self {
        let most = self.terms().most_units(self.limit.capacity());
        match Cost::new(most) {
            _ if self.changes.is_some() => self,
            Ok(most) if self.cost > most => Self { cost: most, unusual: self.unusual | HOPELESS, ..self },
            _ => self.within_capacity(),
        }
    }

    /// Makes it a further payer of the cost of the check before it in the call: this limit pays what those before it cannot. All
    /// payers of a cost have the same subject, cost, mode and excess, and distinct policies. The cost is charged if they have
    /// enough together; the first pays as much as it has, then the next. Each has a status of its own, which says what it paid.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use tallygate::{Check, Cost, Key, Limit, Limiter};
    /// # let limiter = Limiter::default();
    /// let (plan, credits): (Limit, Limit) = ("100/day in UTC".parse()?, "50/365d fixed_window".parse()?);
    /// let check = |policy, limit| Ok::<_, tallygate::key::KeyError>(Check::new(Key::new(policy, "alice")?, limit));
    /// let cost = Cost::new(120)?;
    /// let checks = [check("plan", &plan)?.cost(cost), check("credits", &credits)?.cost(cost).paying_rest()];
    /// let decision = limiter.check_all(&checks).await?;
    /// assert_eq!(decision.statuses().iter().map(|paid| paid.units()).collect::<Vec<_>>(), [100, 20]);
    /// assert_eq!(decision.binding().remaining(), 30);
    /// // Ten of them were not needed: the last payer has them back first.
    /// let receipts = decision.receipts(&checks);
    /// limiter.refund(&tallygate::check::Receipt::last_first(&receipts, Cost::new(10)?)).await?;
    /// assert_eq!(limiter.peek_all(&checks).await?.binding().remaining(), 40);
    /// # Ok(()) }
    /// ```
    #[inline]
    #[must_use]
    pub fn paying_rest(self) -> Self {
        Self { unusual: self.unusual | PAYS_REST, ..self }
    }

    /// Whether it is a further payer of the cost of the check before it.
    #[inline]
    pub fn pays_rest(&self) -> bool {
        self.unusual & PAYS_REST != 0
    }

    /// The same check at a cost that a payer can have by itself.
    pub(crate) fn part_of_fund(self) -> Self {
        let capacity = Cost::new(self.limit.capacity()).unwrap_or(self.cost);
        self.cost(self.cost.min(capacity))
    }

    /// A check of a cost that all of its payers together can never pay: asks for what they have, and is denied whatever the answer.
    pub(crate) fn within(self, capacity: u64) -> Self {
        match Cost::new(capacity) {
            Ok(most) if self.cost > most => Self { cost: most, unusual: self.unusual | HOPELESS, ..self },
            _ => self,
        }
    }

    /// What its answer means for the call.
    #[inline]
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Whether a cost that does not fit takes what is left.
    #[inline]
    pub fn drains(&self) -> bool {
        self.unusual & DRAINS != 0
    }

    /// Whether the check can never be allowed, because the original cost is above the capacity of the limit.
    #[inline]
    pub fn is_hopeless(&self) -> bool {
        self.unusual & HOPELESS != 0
    }

    /// Whether no flag is set: it neither drains, nor is hopeless, nor is its limit known to grant holds or to change, nor is it a further
    /// payer.
    #[inline]
    pub fn is_plain(&self) -> bool {
        self.unusual == 0
    }

    /// When the units of a refund were charged, if known.
    pub fn charged_at(&self) -> Option<Timestamp> {
        self.charged_at
    }

    #[inline]
    pub(crate) fn is_zero(&self) -> bool {
        self.limit.amount() == 0
    }

    /// Whether a check of a verb has nothing to take or give back: of a limit of zero, or one that can only be reserved.
    pub(crate) fn is_nothing(&self, verb: Verb) -> bool {
        self.is_zero() || self.limit.is_concurrency() && matches!(verb, Verb::Check | Verb::Refund)
    }

    /// What the limit grants to holds.
    pub fn terms(&self) -> HoldTerms {
        self.holds.unwrap_or(&HoldTerms::DEFAULT).under(self.limit)
    }

    /// Whether a plain check can charge the cost.
    #[inline]
    pub(crate) fn is_checkable(&self) -> bool {
        self.cost.get() <= self.limit.numbers().checkable
    }

    #[inline]
    pub(crate) fn is_within_capacity(&self) -> bool {
        self.cost.get() <= self.limit.capacity()
    }
}

/// Proof of a charge: key, limit, units and instant. A refund takes one.
#[derive(Debug, Clone, Copy)]
pub struct Receipt<'a>(Check<'a>);

impl<'a> Receipt<'a> {
    /// Creates the receipt of `units` charged by `check` at `charged_at`. `None` counts as charged just now.
    pub fn new(check: Check<'a>, units: Cost, charged_at: Option<Timestamp>) -> Self {
        let check = Check { unusual: check.unusual & !PAYS_REST, ..check };
        Self(check.cost(units).with_charged_at(charged_at))
    }

    /// The receipts that give back at most `units` of one cost, given those of its payers in order: the last payer is given back first,
    /// and none more than it has paid.
    pub fn last_first(paid: &[Self], units: Cost) -> Vec<Self> {
        let mut left = units.get();
        let mut parts: Vec<Self> = Vec::new();
        for receipt in paid.iter().rev() {
            let Ok(part) = Cost::new(left.min(receipt.units().get())) else { break };
            left -= part.get();
            parts.push(receipt.part(part));
        }
        parts
    }

    /// The receipt of at most `units` of it, to give back only a part.
    #[must_use]
    pub fn part(self, units: Cost) -> Self {
        Self(self.0.cost(units.min(self.0.cost)))
    }

    /// The number of units charged.
    pub fn units(&self) -> Cost {
        self.0.cost
    }

    /// The check that gives them back.
    pub fn check(&self) -> Check<'a> {
        self.0
    }
}

/// The number of units that a call consumes, at least one. To look without charging, use `peek`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cost(NonZeroU64);

impl Cost {
    /// The cost of an ordinary call: one unit.
    pub const ONE: Self = Self(NonZeroU64::MIN);

    /// The largest cost that a limit can hold: 10^9 units.
    pub const MAX: Self = Self(NonZeroU64::new(Limit::MAX_AMOUNT).expect("above zero"));
    /// A cost that no limit can hold, for requests that ask for more than [`Cost::MAX`] and must be denied rather than
    /// rejected.
    pub const ABOVE_EVERY_LIMIT: Self = Self(NonZeroU64::new(Limit::MAX_AMOUNT + 1).expect("above zero"));

    /// Creates a cost of 1 to 10^9 units.
    pub fn new(units: u64) -> Result<Self, CostError> {
        match NonZeroU64::new(units) {
            None => Err(CostError::Zero),
            Some(units) if units.get() > Limit::MAX_AMOUNT => Err(CostError::TooLarge { cost: units.to_string() }),
            Some(units) => Ok(Self(units)),
        }
    }

    /// The number of units.
    pub const fn get(self) -> u64 {
        self.0.get()
    }
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Cost {
    type Err = CostError;

    fn from_str(text: &str) -> Result<Self, CostError> {
        if text.starts_with('-') {
            return Err(CostError::Negative);
        }
        if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(CostError::NotANumber { text: text.to_owned() });
        }
        let units = text.parse().map_err(|_| CostError::TooLarge { cost: text.to_owned() })?;
        Self::new(units)
    }
}

/// The error of an invalid cost.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CostError {
    /// Zero units.
    #[error("a cost of 0 takes nothing: use `peek` to look without taking")]
    Zero,
    /// A negative number.
    #[error("a cost cannot be negative: use `refund` to give units back")]
    Negative,
    /// Not a whole number.
    #[error("invalid cost `{text}`: write a whole number of units, for example 1")]
    NotANumber {
        /// What was written.
        text: String,
    },
    /// More than any limit can hold.
    #[error("a cost of {cost} is too large: the largest is {}", Limit::MAX_AMOUNT)]
    TooLarge {
        /// The cost.
        cost: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_costs_are_refused_with_the_remedy() {
        let said = |text: &str| text.parse::<Cost>().unwrap_err().to_string();
        assert!(said("0").contains("peek"));
        assert!(said("-3").contains("refund"));
        assert!(said("1.5").contains("whole number"));
        assert!(said("").contains("whole number"));
        assert!(said("9007199254740993").contains("1000000000"));
        assert!(said("99999999999999999999999").contains("1000000000"));
        assert_eq!("7".parse::<Cost>().unwrap().get(), 7);
    }

    #[test]
    fn a_check_keeps_what_it_is_told() {
        let limit: Limit = "5/s".parse().unwrap();
        let check = Check::new(Key::new("p", "s").unwrap(), &limit);
        let flags = |check: Check<'_>| (check.drains(), check.is_hopeless(), check.is_plain());
        assert_eq!(flags(check), (false, false, true));
        let drains = check.with_excess(Excess::Drain);
        assert_eq!(flags(drains), (true, false, false));
        assert_eq!(flags(drains.with_excess(Excess::Refuse)), (false, false, true));
        let hopeless = drains.cost(Cost::new(6).unwrap()).within_capacity();
        assert_eq!(flags(hopeless), (true, true, false));
        assert_eq!(flags(hopeless.with_excess(Excess::Refuse)), (false, true, false));
        assert!(!check.fails_closed() && check.with_fails_closed(true).fails_closed());
    }

    #[test]
    fn the_longest_time_to_repeat_a_denial_is_not_mistaken_for_none() {
        let limit: Limit = "5/s".parse().unwrap();
        let kept = |at_most| {
            let check = Check::new(Key::new("p", "s").unwrap(), &limit).with_cache_denials(at_most);
            check.cache_denials()
        };
        let longest = Duration::from_millis(u64::from(u32::MAX) - 1);
        for millis in [Duration::ZERO, Duration::from_millis(7), longest] {
            assert_eq!(kept(Some(millis)), Some(millis));
        }
        assert_eq!(kept(Some(longest + Duration::from_millis(1))), Some(longest));
        assert_eq!(kept(Some(Duration::MAX)), Some(longest));
        assert_eq!(kept(None), None);
    }

    #[test]
    fn a_part_of_a_receipt_is_at_most_all_of_it() {
        let limit: Limit = "5/s".parse().unwrap();
        let units = |units| Cost::new(units).unwrap();
        let receipt = Receipt::new(Check::new(Key::new("p", "s").unwrap(), &limit), units(3), None);
        for (asked, part) in [(1, 1), (3, 3), (5, 3)] {
            assert_eq!(receipt.part(units(asked)).units(), units(part));
        }
    }
}
