//! The states of a table of which units may be held: found whether they are marked or not.

use super::{Print, Table};
use crate::algorithm::State;
use crate::limit::Limit;

/// What a state looks like under a limit, with its numbers.
pub(super) struct Look {
    /// Whether it was written with the numbers of the limit.
    pub(super) fits: bool,
    pub(super) remaining: u64,
    pub(super) debt: u64,
    /// The debt, or more where a count weighs less than it is.
    pub(super) excess: u64,
    pub(super) reset_at: u64,
    pub(super) window_start: u64,
}

/// The table's own form of a print: marked, if the state is.
pub(super) fn found<S: State>(table: &Table<S>, print: Print) -> Print {
    if table.get(print.marked()).is_some() { print.marked() } else { print }
}

pub(super) fn look<S: State>(table: &Table<S>, print: Print, limit: &Limit, now: u64, owed: u64) -> Look {
    let seen = |state: &S, fits| Look {
        fits,
        remaining: state.free(limit, now),
        debt: state.debt(limit, now),
        excess: state.excess(limit, now),
        reset_at: state.reset_at(limit, now),
        window_start: state.window_start(),
    };
    match table.get(found(table, print)) {
        None => Look { fits: true, remaining: limit.capacity(), debt: 0, excess: 0, reset_at: now, window_start: now },
        Some(state) if state.fits(limit, now, owed) => seen(state, true),
        Some(state) => {
            let mut adopted = state.clone();
            adopted.adopt(limit, now, owed);
            seen(&adopted, false)
        }
    }
}

/// Gives units back. Returns how many, and whether the state was changed.
pub(super) fn refund<S: State>(
    table: &mut Table<S>,
    print: Print,
    limit: &Limit,
    now: u64,
    owed: u64,
    (charged_at, units): (u64, u64),
) -> (u64, bool) {
    let Some(state) = table.get_mut(found(table, print)) else { return (0, false) };
    let adopts = !state.fits(limit, now, owed);
    if adopts {
        state.adopt(limit, now, owed);
    }
    let given = state.refund(limit, now, charged_at, units);
    (given, adopts || given > 0)
}

pub(super) fn charge<S: State>(table: &mut Table<S>, print: Print, limit: &Limit, now: u64, units: u64) {
    let found = found(table, print);
    match table.get_mut(found) {
        Some(state) => state.charge(limit, now, units),
        None => {
            let mut state = S::fresh(limit, now);
            state.charge(limit, now, units);
            table.insert(found, state);
        }
    }
}

pub(super) fn lasts_until<S: State>(table: &mut Table<S>, print: Print, deadline: u64) {
    if let Some(state) = table.get_mut(found(table, print)) {
        state.lasts_until(deadline);
    }
}

pub(super) fn remark<S: State>(table: &mut Table<S>, print: Print, marks: bool) {
    let (from, to) = if marks { (print, print.marked()) } else { (print.marked(), print) };
    if let Some(state) = table.remove(from) {
        table.insert(to, state);
    }
}
