//! A list optimised for exactly one element.

use std::ops::{Deref, DerefMut};

/// One element without allocation, or any number.
#[derive(Debug, Clone)]
pub enum Few<T> {
    /// Exactly one element.
    One([T; 1]),
    /// Any number of elements.
    Many(Vec<T>),
}

impl<T> Few<T> {
    /// Maps a reference to each element.
    #[inline]
    pub fn map_ref<'t, U>(&'t self, mut change: impl FnMut(&'t T) -> U) -> Few<U> {
        match self {
            Self::One([one]) => Few::One([change(one)]),
            Self::Many(many) => Few::Many(many.iter().map(change).collect()),
        }
    }
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

impl<T> From<Vec<T>> for Few<T> {
    fn from(many: Vec<T>) -> Self {
        Self::Many(many)
    }
}

impl<T> FromIterator<T> for Few<T> {
    fn from_iter<I: IntoIterator<Item = T>>(many: I) -> Self {
        let mut many = many.into_iter();
        match (many.next(), many.next()) {
            (Some(one), None) => Self::One([one]),
            (first, second) => Self::Many(first.into_iter().chain(second).chain(many).collect()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_equal_if_their_elements_are() {
        let (one, many) = (Few::from(1), Few::from(vec![1]));
        assert_eq!(one, many);
        for other in [Few::from(2), Few::from(vec![2]), Few::from(vec![1, 1]), Few::from(vec![])] {
            assert_ne!(one, other);
            assert_ne!(many, other);
        }
    }
}
