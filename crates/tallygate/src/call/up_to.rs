//! How many units a call takes that takes what is left.

use super::InvalidCheck;
use crate::check::Cost;

/// How many units a call takes that is content with what is left: as many as all of its limits have, at most and at least
/// so many.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct UpTo {
    at_most: Cost,
    at_least: Cost,
}

impl UpTo {
    /// At most `at_most` units, and at least one.
    pub fn new(at_most: Cost) -> Self {
        Self { at_most, at_least: Cost::ONE }
    }

    /// With fewer than `at_least` units the call is denied.
    ///
    /// # Errors
    /// If that is more than the most.
    pub fn at_least(self, at_least: Cost) -> Result<Self, InvalidCheck> {
        match at_least > self.at_most {
            true => Err(InvalidCheck::AtLeastAboveMost { at_least, at_most: self.at_most }),
            false => Ok(Self { at_least, ..self }),
        }
    }

    /// The most units.
    pub fn most(self) -> Cost {
        self.at_most
    }

    /// The fewest units.
    pub fn least(self) -> Cost {
        self.at_least
    }
}
