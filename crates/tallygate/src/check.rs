//! One question to a store: key, limit, cost.

use std::fmt;
use std::num::NonZeroU64;
use std::str::FromStr;

use crate::key::Key;
use crate::limit::Limit;

/// May `key` have `cost` more units under `limit`?
#[derive(Debug, Clone, Copy)]
pub struct Check<'a> {
    /// Whose state it is about.
    pub key: Key<'a>,
    /// What is allowed.
    pub limit: &'a Limit,
    /// How much is asked.
    pub cost: Cost,
}

impl<'a> Check<'a> {
    /// Asks for one unit.
    pub fn new(key: Key<'a>, limit: &'a Limit) -> Self {
        Self { key, limit, cost: Cost::ONE }
    }

    /// Asks for `cost` units instead.
    #[must_use]
    pub fn cost(self, cost: Cost) -> Self {
        Self { cost, ..self }
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
