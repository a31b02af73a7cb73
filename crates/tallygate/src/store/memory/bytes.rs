//! How the entries of a saved store are written and read: little-endian numbers, and texts with their length.

use std::collections::HashMap;
use std::time::Duration;

use crate::hold::{HoldTerms, OnAbandon, Overrun};
use crate::limit::Limit;

/// A part of a saved entry.
pub(super) trait Saved: Sized {
    fn write(&self, to: &mut Vec<u8>);

    /// `None` if the bytes are not what was written.
    fn read(from: &mut Reader<'_>) -> Option<Self>;
}

/// The limits that were read: states of one limit share it.
pub(super) type Limits = HashMap<String, Limit>;

/// What is left to read.
pub(super) struct Reader<'b> {
    pub(super) rest: &'b [u8],
    pub(super) limits: &'b mut Limits,
}

impl<'b> Reader<'b> {
    pub(super) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (array, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(*array)
    }

    pub(super) fn byte(&mut self) -> Option<u8> {
        self.array().map(|[byte]| byte)
    }

    pub(super) fn number(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// As many values as were written. No more memory is taken than there are bytes.
    pub(super) fn list<T>(&mut self, read: impl Fn(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let count = self.array().map(u32::from_le_bytes)?;
        (0..count).map(|_| read(self)).collect()
    }

    pub(super) fn text(&mut self) -> Option<&'b str> {
        let length = self.array().map(u16::from_le_bytes)?;
        let (text, rest) = self.rest.split_at_checked(length.into())?;
        self.rest = rest;
        std::str::from_utf8(text).ok()
    }

    pub(super) fn limit(&mut self) -> Option<Limit> {
        let text = self.text()?;
        if let Some(known) = self.limits.get(text) {
            return Some(known.clone());
        }
        let limit: Limit = text.parse().ok()?;
        self.limits.insert(text.to_owned(), limit.clone());
        Some(limit)
    }
}

pub(super) fn put_number(to: &mut Vec<u8>, number: u64) {
    to.extend_from_slice(&number.to_le_bytes());
}

pub(super) fn put_list<T>(to: &mut Vec<u8>, list: impl ExactSizeIterator<Item = T>, write: impl Fn(&mut Vec<u8>, T)) {
    to.extend_from_slice(&u32::try_from(list.len()).expect("no list is that long").to_le_bytes());
    list.for_each(|value| write(to, value));
}

/// No text of a key or of a limit is longer than 65,535 bytes.
pub(super) fn put_text(to: &mut Vec<u8>, text: &str) {
    to.extend_from_slice(&u16::try_from(text.len()).expect("keys and limits are short").to_le_bytes());
    to.extend_from_slice(text.as_bytes());
}

impl Saved for HoldTerms {
    fn write(&self, to: &mut Vec<u8>) {
        put_text(to, self.on_abandon().name());
        put_text(to, self.overrun().name());
        put_number(to, self.most_open().into());
        to.push(self.most_held());
        for span in [self.longest(), self.max_life()] {
            put_number(to, u64::try_from(span.as_micros()).unwrap_or(u64::MAX));
        }
    }

    fn read(from: &mut Reader<'_>) -> Option<Self> {
        let on_abandon: OnAbandon = from.text()?.parse().ok()?;
        let overrun: Overrun = from.text()?.parse().ok()?;
        let most_open = u32::try_from(from.number()?).ok()?;
        let terms = Self::DEFAULT.with_on_abandon(on_abandon).with_overrun(overrun).with_most_open(most_open);
        let terms = terms.with_most_held(from.byte()?);
        let (longest, life) = (Duration::from_micros(from.number()?), Duration::from_micros(from.number()?));
        Some(terms.with_longest(longest).with_max_life(life))
    }
}
