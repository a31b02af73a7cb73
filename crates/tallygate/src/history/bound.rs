//! Was more admitted than the limit allows, in any span?

use std::fmt;

use super::Record;
use crate::clock::Timestamp;
use crate::limit::{Limit, Numbers};

/// What was admitted, compared with the bound of the algorithm.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Bound {
    /// Units admitted in the whole history.
    pub admitted: u64,
    /// The span closest to its bound, or furthest beyond it. `None` if nothing was admitted.
    pub worst: Option<Span>,
    /// For each admitted call that broke the bound, the worst span that ends with it.
    pub violations: Vec<Span>,
}

/// A span of time that ends with an admitted call, what was admitted in it, and the maximum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Span {
    /// The first instant: an admitted call, or the beginning of a window of the wall clock.
    pub from: Timestamp,
    /// The last instant: an admitted call.
    pub to: Timestamp,
    /// Units admitted from `from` to `to`, inclusive; for [`Rule::Estimate`] the estimate, rounded up.
    pub admitted: u64,
    /// The maximum that may be admitted.
    pub allowed: u64,
    /// The guarantee that applies.
    pub rule: Rule,
}

/// What an algorithm guarantees for a span.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Rule {
    /// At most the capacity plus what was regained since the span began, in whole ticks.
    Refill,
    /// At most the amount in one window, of the wall clock or started by its first call.
    OneWindow,
    /// At most the amount in every span as long as the window.
    AnyWindow,
    /// The weighted sum of this window and the previous one is at most the amount.
    Estimate,
    /// Less than twice the amount in every span as long as the window.
    UnderTwice,
}

impl Bound {
    /// Whether every span is within its bound.
    pub fn holds(&self) -> bool {
        self.violations.is_empty()
    }
}

impl Span {
    /// How far beyond the bound; negative if within.
    pub(super) fn excess(&self) -> i128 {
        i128::from(self.admitted) - i128::from(self.allowed)
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { from, to, admitted, allowed, rule } = self;
        let (what, promise) = match rule {
            Rule::Refill => ("admitted", "the capacity plus what was regained"),
            Rule::OneWindow => ("admitted", "the amount in one window"),
            Rule::AnyWindow => ("admitted", "the amount in any span as long as the window"),
            Rule::Estimate => ("estimated", "the amount"),
            Rule::UnderTwice => ("admitted", "less than twice the amount in any span as long as the window"),
        };
        write!(f, "{admitted} {what} from {from} to {to}, but the maximum is {allowed}: {promise}")
    }
}

/// An admitted call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Admitted {
    pub(crate) at: u64,
    pub(crate) units: u64,
}

/// Compares the admitted records, in any order, with the bound of the limit's algorithm over every span.
///
/// The records must be those of one key under one limit, without refunds, on a clock that did not step back. Missing
/// answers only lower the count, so a reported violation is always real.
pub fn bound(limit: &Limit, records: &[Record]) -> Bound {
    let allowed = records.iter().filter(|record| record.allowed);
    let mut calls: Vec<Admitted> =
        allowed.map(|record| Admitted { at: record.decided_at.as_micros(), units: record.cost }).collect();
    calls.sort_by_key(|call| call.at);
    let spans = limit.algorithm().worst_spans(limit.numbers(), &calls);
    Bound {
        admitted: calls.iter().map(|call| call.units).sum(),
        worst: spans.iter().copied().reduce(|a, b| if b.excess() > a.excess() { b } else { a }),
        violations: spans.into_iter().filter(|span| span.excess() > 0).collect(),
    }
}

/// A span from call i to call j is within the bound if `sum(i..=j) * unit <= capacity * unit + (tick_j - tick_i) *
/// refill`. Separated by call, that is `(sum(..=j) * unit - tick_j * refill) - (sum(..i) * unit - tick_i * refill) <=
/// capacity * unit`: the worst i for any j is the one with the smallest second term so far.
pub(crate) fn refill(n: &Numbers, calls: &[Admitted]) -> Vec<Span> {
    let mut least = (i128::MAX, Admitted { at: 0, units: 0 }, 0);
    let mut sum = 0_u64;
    let mut spans = Vec::with_capacity(calls.len());
    for &call in calls {
        let parts =
            |sum: u64| i128::from(sum) * i128::from(n.unit) - i128::from(call.at / n.tick) * i128::from(n.refill);
        if parts(sum) < least.0 {
            least = (parts(sum), call, sum);
        }
        sum += call.units;
        let (_, first, before) = least;
        let regained = u128::from(call.at / n.tick - first.at / n.tick) * u128::from(n.refill) / u128::from(n.unit);
        let allowed = u64::try_from(u128::from(n.capacity) + regained).unwrap_or(u64::MAX);
        spans.push(span(first.at, call.at, sum - before, allowed, Rule::Refill));
    }
    spans
}

/// `start_of` returns the start of the window of an instant, given the start of the previous window.
pub(crate) fn one_window(n: &Numbers, calls: &[Admitted], start_of: impl Fn(u64, Option<u64>) -> u64) -> Vec<Span> {
    let (mut window, mut sum) = (None, 0);
    let totals = calls.iter().map(|call| {
        let start = start_of(call.at, window);
        if window.replace(start) != Some(start) {
            sum = 0;
        }
        sum += call.units;
        span(start, call.at, sum, n.amount, Rule::OneWindow)
    });
    totals.collect()
}

/// The calls in `(at - window, at]` for each call.
pub(crate) fn any_window(n: &Numbers, calls: &[Admitted], rule: Rule, allowed: u64) -> Vec<Span> {
    let (mut first, mut sum) = (0, 0);
    let totals = calls.iter().map(|call| {
        sum += call.units;
        while calls[first].at + n.window <= call.at {
            sum -= calls[first].units;
            first += 1;
        }
        span(calls[first].at, call.at, sum, allowed, rule)
    });
    totals.collect()
}

/// The previous window is weighted by its remaining share, in whole ticks.
pub(crate) fn estimate(n: &Numbers, calls: &[Admitted]) -> Vec<Span> {
    let (mut window, mut previous, mut current) = (0, 0, 0);
    let estimates = calls.iter().map(|call| {
        let start = call.at - call.at % n.window;
        if start != window {
            previous = if start == window + n.window { current } else { 0 };
            (window, current) = (start, 0);
        }
        current += call.units;
        let weight = n.ticks() - (call.at - start) / n.tick;
        let weighted = u128::from(previous) * u128::from(weight);
        let rounded_up = u64::try_from(weighted.div_ceil(u128::from(n.ticks()))).unwrap_or(u64::MAX);
        span(start.saturating_sub(n.window), call.at, current.saturating_add(rounded_up), n.amount, Rule::Estimate)
    });
    estimates.collect()
}

pub(super) fn span(from: u64, to: u64, admitted: u64, allowed: u64, rule: Rule) -> Span {
    Span { from: Timestamp::from_micros(from), to: Timestamp::from_micros(to), admitted, allowed, rule }
}
