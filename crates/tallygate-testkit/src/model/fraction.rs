//! Exact fractions, and the one place where the documents ask for a double.

/// A number of units, `over` of which make one. Never negative.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fraction {
    pub(super) parts: i128,
    pub(super) over: i128,
}

impl Fraction {
    /// `parts / over`, or nothing if that is negative.
    pub(super) fn new(parts: i128, over: i128) -> Self {
        Self { parts: parts.max(0), over }
    }

    /// Rounded down.
    pub(super) fn whole(self) -> u64 {
        u64::try_from(self.parts / self.over).expect("no more than a capacity")
    }

    /// Rounded up.
    pub(super) fn whole_up(self) -> u64 {
        u64::try_from((self.parts + self.over - 1) / self.over).expect("no more than a capacity")
    }

    pub(super) fn is_at_least(self, units: u64) -> bool {
        self.parts >= i128::from(units) * self.over
    }
}

/// `⌊part / whole · times⌋` as doubles compute it from left to right: the quotient and the product are each rounded to
/// the nearest number of 53 binary digits, of two equally near ones to the even one. `part` is below `whole`, and all
/// three are below 2^51.
pub(super) fn in_doubles(part: u128, whole: u128, times: u128) -> u128 {
    if part == 0 {
        return 0;
    }
    // As many binary places as make the quotient 53 digits or one more; those beyond are only good for rounding.
    let places = 54 + whole.ilog2() - part.ilog2();
    // The remainder of the division is kept as one more digit, so that what is just above a tie is not one.
    let (shifted, rest) = ((part << places) / whole, (part << places) % whole);
    let (quotient, places) = nearest(shifted << 1 | u128::from(rest > 0), places + 1);
    let (product, places) = nearest(quotient * times, places);
    product >> places
}

/// `number / 2^places` with only 53 binary digits.
fn nearest(number: u128, places: u32) -> (u128, u32) {
    let digits = number.ilog2() + 1;
    let Some(excess) = digits.checked_sub(53).filter(|&excess| excess > 0) else { return (number, places) };
    let (kept, cut, half) = (number >> excess, number & ((1 << excess) - 1), 1_u128 << (excess - 1));
    let up = cut > half || cut == half && kept % 2 == 1;
    let kept = kept + u128::from(up);
    match places.checked_sub(excess) {
        Some(places) => (kept, places),
        None => (kept << (excess - places), 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    /// The machine's own doubles are the reference for the rounding, and for nothing else.
    #[test]
    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "below 2^51, so exact"
    )]
    fn doubles_are_rounded_as_the_machine_rounds_them() {
        let mut random = Random::new(53);
        for _ in 0..200_000 {
            let whole = random.spread(2, 1 << 45);
            let (part, times) = (random.spread(1, whole - 1), random.spread(1, 1 << 50));
            let expected = (part as f64 / whole as f64 * times as f64).floor() as u128;
            assert_eq!(in_doubles(part.into(), whole.into(), times.into()), expected, "{part}/{whole}*{times}");
        }
    }
}
