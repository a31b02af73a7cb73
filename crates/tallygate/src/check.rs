//! One question to a store: key, limit, cost.

use std::fmt;
use std::num::NonZeroU64;
use std::str::FromStr;

use crate::clock::Timestamp;
use crate::key::Key;
use crate::limit::Limit;
use crate::policy::{Excess, Mode};

/// May `key` have `cost` more units under `limit`?
#[derive(Debug, Clone, Copy)]
pub struct Check<'a> {
    /// Whose state it is about.
    pub key: Key<'a>,
    /// What is allowed.
    pub limit: &'a Limit,
    /// How much is asked.
    pub cost: Cost,
    /// When the units of a refund were charged.
    charged_at: Option<Timestamp>,
    mode: Mode,
    /// What is unusual about it, in one byte that most calls read once.
    unusual: u8,
}

/// A cost that does not fit takes what is left.
const DRAINS: u8 = 1;
/// More was asked than there ever is.
const HOPELESS: u8 = 2;

impl<'a> Check<'a> {
    /// Asks for one unit.
    #[inline]
    pub fn new(key: Key<'a>, limit: &'a Limit) -> Self {
        let (charged_at, mode) = (None, Mode::Enforce);
        Self { key, limit, cost: Cost::ONE, charged_at, mode, unusual: 0 }
    }

    /// Asks for `cost` units instead.
    #[inline]
    #[must_use]
    pub fn cost(self, cost: Cost) -> Self {
        Self { cost, ..self }
    }

    /// What its answer means for the call. Defaults to [`Mode::Enforce`].
    #[inline]
    #[must_use]
    pub fn with_mode(self, mode: Mode) -> Self {
        Self { mode, ..self }
    }

    /// What a cost does that does not fit. Defaults to [`Excess::Refuse`].
    #[inline]
    #[must_use]
    pub fn with_excess(self, excess: Excess) -> Self {
        match excess {
            Excess::Drain => Self { unusual: self.unusual | DRAINS, ..self },
            Excess::Refuse => Self { unusual: self.unusual & !DRAINS, ..self },
        }
    }

    /// Names the instant at which the units of a refund were charged. Without it, they were charged just now.
    #[inline]
    #[must_use]
    pub fn with_charged_at(self, charged_at: Option<Timestamp>) -> Self {
        Self { charged_at, ..self }
    }

    /// The same check with its cost cut to what the limit can hold. If that is less, the check is denied for good, and the
    /// answer still says what is left.
    #[inline]
    #[must_use]
    pub fn within_capacity(self) -> Self {
        if self.is_within_capacity() {
            return self;
        }
        match Cost::new(self.limit.capacity()) {
            Ok(capacity) => Self { cost: capacity, unusual: self.unusual | HOPELESS, ..self },
            Err(_) => self,
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

    /// Whether it is denied for good, because more was asked than the limit can ever hold.
    #[inline]
    pub fn is_hopeless(&self) -> bool {
        self.unusual & HOPELESS != 0
    }

    /// Whether it is charged if it fits, and that is all: it neither drains nor is hopeless.
    #[inline]
    pub fn is_plain(&self) -> bool {
        self.unusual == 0
    }

    /// When the units of a refund were charged, if that is known.
    pub fn charged_at(&self) -> Option<Timestamp> {
        self.charged_at
    }

    #[inline]
    pub(crate) fn is_zero(&self) -> bool {
        self.limit.amount() == 0
    }

    #[inline]
    pub(crate) fn is_within_capacity(&self) -> bool {
        self.cost.get() <= self.limit.capacity()
    }
}

/// Proof of a charge: whose it was, how many units, and when. A refund takes one.
#[derive(Debug, Clone, Copy)]
pub struct Receipt<'a>(Check<'a>);

impl<'a> Receipt<'a> {
    /// The receipt of what `check` was charged, `units` at `charged_at`. Units whose instant is not known count as charged just
    /// now.
    pub fn new(check: Check<'a>, units: Cost, charged_at: Option<Timestamp>) -> Self {
        Self(check.cost(units).with_charged_at(charged_at))
    }

    /// How many units.
    pub fn units(&self) -> Cost {
        self.0.cost
    }

    /// What a call is asked to give back.
    pub fn check(&self) -> Check<'a> {
        self.0
    }
}

/// How many units a call consumes: at least one. Looking without taking is a call of its own, `peek`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cost(NonZeroU64);

impl Cost {
    /// The cost of an ordinary call.
    pub const ONE: Self = Self(NonZeroU64::MIN);

    /// A cost of `units`, which must be 1 to 10^9.
    pub fn new(units: u64) -> Result<Self, CostError> {
        match NonZeroU64::new(units) {
            None => Err(CostError::Zero),
            Some(units) if units.get() > Limit::MAX_AMOUNT => Err(CostError::TooLarge { cost: units.to_string() }),
            Some(units) => Ok(Self(units)),
        }
    }

    /// The units.
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

/// Why a number is no cost.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CostError {
    /// Zero units.
    #[error("a cost of 0 takes nothing: use `peek` to look without taking")]
    Zero,
    /// Fewer than zero.
    #[error("a cost cannot be negative: use `refund` to give units back")]
    Negative,
    /// No whole number.
    #[error("`{text}` is no cost: write a whole number of units, for example 1")]
    NotANumber {
        /// What was written.
        text: String,
    },
    /// More than any limit can hold.
    #[error("a cost of {cost} is above {}, the most any limit can hold", Limit::MAX_AMOUNT)]
    TooLarge {
        /// What was asked.
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
}
