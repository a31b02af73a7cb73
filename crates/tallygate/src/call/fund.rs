//! Costs with several payers: limits of one subject that pay in order, each what those before it could not.
//!
//! The contract is section 19 of `docs/algorithms.md`. The twin of what is here is in `tallygate-redis/lua/call.lua`.

use std::ops::Range;

use crate::check::Check;
use crate::policy::Mode;

/// The positions of the payers of each cost, in order. Nearly every cost has one.
pub fn each<T>(all: &[T], pays_rest: impl Fn(&T) -> bool) -> impl Iterator<Item = Range<usize>> {
    let mut next = 0;
    std::iter::from_fn(move || {
        let (start, rest) = (next, all.get(next..).filter(|rest| !rest.is_empty())?);
        next = start + 1 + rest[1..].iter().take_while(|one| pays_rest(one)).count();
        Some(start..next)
    })
}

/// What the payers of one cost can hold together.
pub fn capacity(payers: &[Check<'_>]) -> u64 {
    payers.iter().map(|check| check.limit.capacity()).sum()
}

/// The mode of each cost, and what its payers have together: of each check its mode, whether it is a further payer, and what it has.
pub fn sums(of: impl Iterator<Item = (Mode, bool, u64)>) -> impl Iterator<Item = (Mode, u64)> {
    let mut of = of.peekable();
    std::iter::from_fn(move || {
        let (mode, _, mut sum) = of.next()?;
        while let Some((_, _, more)) = of.next_if(|(_, pays_rest, _)| *pays_rest) {
            sum += more;
        }
        Some((mode, sum))
    })
}

/// What each payer pays of `units`, in order, given what each has.
pub fn parts(mut units: u64, has: impl Iterator<Item = u64>) -> impl Iterator<Item = u64> {
    has.map(move |has| {
        let part = units.min(has);
        units -= part;
        part
    })
}

/// How long to wait until the payers have regained `short` units, which they do not have now: given of each how many it regains and after
/// which time. Exact if one unit is short, and for windows that end, which regain all at once; otherwise an upper bound.
pub fn wait(short: u64, regained: &mut [(u64, u64)]) -> u64 {
    regained.sort_unstable_by_key(|(_, after)| *after);
    let (mut short, mut wait) = (short, 0);
    for &mut (units, after) in regained {
        if short == 0 {
            break;
        }
        (short, wait) = (short.saturating_sub(units), after);
    }
    wait
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn further_payers_follow_the_first() {
        let funds = |further: &[bool]| each(further, |further| *further).collect::<Vec<_>>();
        assert_eq!(funds(&[]), []);
        assert_eq!(funds(&[false, false, true, true, false]), [0..1, 1..4, 4..5]);
        // An invalid call is refused, but must not be taken apart wrongly.
        assert_eq!(funds(&[true, true, false]), [0..2, 2..3]);
    }

    #[test]
    fn payers_pay_in_order() {
        let paid = |units, has: &[u64]| parts(units, has.iter().copied()).collect::<Vec<_>>();
        assert_eq!(paid(7, &[5, 0, 3, 9]), [5, 0, 2, 0]);
        assert_eq!(paid(3, &[5, 3]), [3, 0]);
        let (enforce, quota) = (Mode::Enforce, Mode::Quota);
        let of = [(enforce, false, 3), (enforce, true, 4), (quota, false, 2)];
        assert_eq!(sums(of.into_iter()).collect::<Vec<_>>(), [(enforce, 7), (quota, 2)]);
    }

    #[test]
    fn the_wait_is_that_of_the_payers_that_regain_enough_first() {
        assert_eq!(wait(1, &mut [(1, 50), (1, 20)]), 20);
        assert_eq!(wait(5, &mut [(3, 50), (5, 70), (3, 20)]), 50);
        assert_eq!(wait(5, &mut [(3, 20), (1, 30), (1, 90)]), 90);
    }
}
