//! A list that is mostly of one.

use std::ops::{Deref, DerefMut};

/// One without allocation, or several.
#[derive(Debug, Clone)]
pub enum Few<T> {
    /// A single one.
    One([T; 1]),
    /// Any number.
    Many(Vec<T>),
}

impl<T> Deref for Few<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match self {
            Self::One(one) => one,
            Self::Many(many) => many,
        }
    }
}

impl<T> DerefMut for Few<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match self {
            Self::One(one) => one,
            Self::Many(many) => many,
        }
    }
}

impl<T: PartialEq> PartialEq for Few<T> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl<T: Eq> Eq for Few<T> {}

impl<T> From<T> for Few<T> {
    fn from(one: T) -> Self {
        Self::One([one])
    }
}

impl<T> FromIterator<T> for Few<T> {
    fn from_iter<I: IntoIterator<Item = T>>(many: I) -> Self {
        Self::Many(many.into_iter().collect())
    }
}
