//! Small random numbers: which key next, at what cost.

use std::hash::{BuildHasher, RandomState};

/// A name no other run has.
pub(crate) fn run_name() -> String {
    format!("{:08x}", RandomState::new().hash_one("run") & 0xffff_ffff)
}

/// Fast, and good enough to mix keys and costs (xorshift64*).
#[derive(Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self((seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % end
    }
}
