//! Fingerprints of keys: a 128-bit hash with secret random factors.
//!
//! A key is read as 64-bit words: the lengths of its parts and the beginning of the first, then the rest. One half of
//! its fingerprint is the upper half of `b + Σ aᵢ·wᵢ` modulo 2^128, with factors drawn at random when the store is
//! created; the other half has its own factors. For any two different keys, one half is equal with probability 2^-64
//! (vector multiply-shift is strongly universal), so both are equal with 2^-124: four bits mark states of other kinds, and
//! those that are saved.
//! Fingerprints never leave the store, so an attacker can only guess. See `docs/adr/0004`.

use std::hash::{Hash, Hasher};

use sha2::{Digest, Sha256};

use super::saved::Secret;
use crate::key::Key;

/// The keyed 128-bit hash of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(in crate::store) struct Print {
    low: u64,
    high: u64,
}

/// The secret of a store: for each word, one factor for each half.
#[derive(Debug, Clone)]
pub(in crate::store) struct Factors {
    offsets: [u128; 2],
    factors: Box<[[u128; 2]; WORDS]>,
}

/// The longest key: lengths and a beginning, the rest of a policy, and a subject. The lengths have 8 and 16 bits.
const WORDS: usize = 1 + Key::MAX_POLICY.div_ceil(8) + Key::MAX_SUBJECT.div_ceil(8);

impl Factors {
    /// Draws random factors.
    pub(in crate::store) fn random() -> Self {
        Self::of(&Secret::random())
    }

    /// The factors of a secret: two are the SHA-256 of the secret and of their number.
    pub(in crate::store) fn of(secret: &Secret) -> Self {
        let mut number = 0_u64;
        let mut draw = || {
            let digest: [u8; 32] =
                Sha256::new().chain_update(secret.as_bytes()).chain_update(number.to_le_bytes()).finalize().into();
            number += 1;
            let (halves, _) = digest.as_chunks::<16>();
            [halves[0], halves[1]].map(u128::from_le_bytes)
        };
        Self { offsets: draw(), factors: Box::new(std::array::from_fn(|_| draw())) }
    }

    /// The fingerprint of two parts, which together are no longer than the longest key.
    #[inline(always)]
    pub(in crate::store) fn print(&self, first: &[u8], second: &[u8]) -> Print {
        let mut factors = self.factors.iter();
        let [mut low, mut high] = self.offsets;
        let mut add = |word: u64| {
            let [for_low, for_high] = factors.next().expect("a key has no more words than there are factors");
            low = low.wrapping_add(for_low.wrapping_mul(u128::from(word)));
            high = high.wrapping_add(for_high.wrapping_mul(u128::from(word)));
        };
        let (beginning, first_rest) = first.split_at(first.len().min(5));
        add(few(beginning) << 24 | (first.len() as u64) << 16 | second.len() as u64);
        for part in [first_rest, second] {
            let (words, rest) = part.as_chunks::<8>();
            for word in words {
                add(u64::from_le_bytes(*word));
            }
            if !rest.is_empty() {
                add(few(rest));
            }
        }
        Print { low: mix(upper(low)), high: upper(high) & !Print::FLAGS }
    }
}

/// Sums of numbered keys are evenly spaced, and for some factors many of them would fall into few shards. This mix is
/// one-to-one, so it adds no collisions, and not linear, so it removes the spacing.
#[inline(always)]
fn mix(sum: u64) -> u64 {
    let mixed = (sum ^ sum >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
    mixed ^ mixed >> 32
}

fn upper(sum: u128) -> u64 {
    (sum >> 64) as u64
}

/// One to seven bytes as a little-endian number.
#[inline(always)]
fn few(bytes: &[u8]) -> u64 {
    let padded = match *bytes {
        [a] => [a, 0, 0, 0, 0, 0, 0, 0],
        [a, b] => [a, b, 0, 0, 0, 0, 0, 0],
        [a, b, c] => [a, b, c, 0, 0, 0, 0, 0],
        [a, b, c, d] => [a, b, c, d, 0, 0, 0, 0],
        [a, b, c, d, e] => [a, b, c, d, e, 0, 0, 0],
        [a, b, c, d, e, f] => [a, b, c, d, e, f, 0, 0],
        [a, b, c, d, e, f, g, ..] => [a, b, c, d, e, f, g, 0],
        [] => [0; 8],
    };
    u64::from_le_bytes(padded)
}

impl Print {
    /// The bit that marks a shared state.
    const SHARED: u64 = 1 << 63;
    /// The bit that marks what a state was charged to follow another store.
    const FOLLOWED: u64 = 1 << 62;

    /// The bit that marks a state of which units are held or owed: a call that does not look at holds does not find it.
    const MARKED: u64 = 1 << 61;
    /// The bit that says in a table, and only there, that the entry is saved as it is.
    const SAVED: u64 = 1 << 60;
    const FLAGS: u64 = Self::SHARED | Self::FOLLOWED | Self::MARKED | Self::SAVED;

    /// The hash used by a table.
    #[inline(always)]
    pub(in crate::store) fn bucket_hash(self) -> u64 {
        self.low
    }

    /// One of `count` shards, a power of two. Uses other bits than the table, which takes the lowest for the bucket and
    /// the highest for the tag.
    #[inline(always)]
    pub(in crate::store) fn shard(self, count: usize) -> usize {
        usize::try_from((self.low >> 40) & (count as u64 - 1)).unwrap_or(0)
    }

    /// The state that this key shares with others, one of `count` for each policy. Policy names are not chosen by
    /// attackers, so a hash without a secret is enough.
    pub(super) fn shared(self, policy: &str, count: usize) -> Self {
        let index = self.high % count as u64;
        let half = |which: u8| {
            let mut hasher = std::hash::DefaultHasher::new();
            (which, index, policy).hash(&mut hasher);
            hasher.finish()
        };
        Self { low: half(0), high: half(1) & !(Self::MARKED | Self::SAVED) | Self::SHARED }
    }

    /// The state next to this one, in the same shard, of what it was charged to follow another store.
    pub(super) fn followed(self) -> Self {
        Self { high: self.high | Self::FOLLOWED, ..self }
    }

    /// The same state, of which units are held or owed.
    pub(super) fn marked(self) -> Self {
        Self { high: self.high | Self::MARKED, ..self }
    }

    #[inline(always)]
    pub(super) fn is_marked(self) -> bool {
        self.high & Self::MARKED != 0
    }

    pub(super) fn is_shared(self) -> bool {
        self.high & Self::SHARED != 0
    }

    /// Whether the print of an entry is this one, saved or not.
    #[inline(always)]
    pub(super) fn is_of(self, entry: Self) -> bool {
        (self.low ^ entry.low) | (self.high ^ entry.high) & !Self::SAVED == 0
    }

    #[inline(always)]
    pub(super) fn is_saved(self) -> bool {
        self.high & Self::SAVED != 0
    }

    /// The print of an entry that is saved as it is.
    pub(super) fn saved(self) -> Self {
        Self { high: self.high | Self::SAVED, ..self }
    }

    /// The print of an entry that may differ from what is saved.
    pub(super) fn unsaved(self) -> Self {
        Self { high: self.high & !Self::SAVED, ..self }
    }

    pub(super) fn to_bytes(self) -> [u8; 16] {
        (u128::from(self.unsaved().high) << 64 | u128::from(self.low)).to_le_bytes()
    }

    pub(super) fn from_bytes(bytes: [u8; 16]) -> Self {
        let [low, high] = [0, 8].map(|at| u64::from_le_bytes(std::array::from_fn(|place| bytes[at + place])));
        Self { low, high }.unsaved()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    fn bytes(most: usize) -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(any::<u8>(), 0..=most)
    }

    proptest! {
        #[test]
        fn different_keys_have_different_prints(a in bytes(20), b in bytes(20), c in bytes(20), d in bytes(20)) {
            let factors = Factors::random();
            prop_assert_eq!((&a, &b) == (&c, &d), factors.print(&a, &b) == factors.print(&c, &d));
        }

    }

    #[test]
    fn every_byte_of_the_longest_key_counts() {
        let factors = Factors::random();
        let (mut policy, mut subject) = ([0; Key::MAX_POLICY], [0; Key::MAX_SUBJECT]);
        let plain = factors.print(&policy, &subject);
        for bit in (0..8).map(|place| 1 << place) {
            for place in 0..policy.len() {
                policy[place] = bit;
                assert_ne!(factors.print(&policy, &subject), plain, "byte {place} of the policy");
                policy[place] = 0;
            }
            for place in 0..subject.len() {
                subject[place] = bit;
                assert_ne!(factors.print(&policy, &subject), plain, "byte {place} of the subject");
                subject[place] = 0;
            }
        }
    }

    /// Neither a text that is divided elsewhere nor zeros at the end make the same words.
    #[test]
    fn the_lengths_of_both_parts_count() {
        let factors = Factors::random();
        for text in [b"abcdefghijklmnopqrst", &[0; 20]] {
            let mut seen = HashSet::new();
            for (end, middle) in (0..=text.len()).flat_map(|end| (0..=end).map(move |middle| (end, middle))) {
                let print = factors.print(&text[..middle], &text[middle..end]);
                assert!(seen.insert((print.low, print.high)), "{middle} of {end}");
            }
        }
    }

    #[test]
    fn a_few_bytes_are_a_little_endian_number() {
        let bytes = [1, 2, 3, 4, 5, 6, 7];
        for length in 0..=bytes.len() {
            let number = bytes[..length].iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte));
            assert_eq!(few(&bytes[..length]), number);
        }
        assert_eq!([upper(5 << 64), upper(u128::from(u64::MAX)), upper(u128::MAX)], [5, 0, u64::MAX]);
    }

    #[test]
    fn a_mixed_sum_can_be_unmixed() {
        let factor = 0xd6e8_feb8_6659_fd93_u64;
        // Each step doubles the bits that are right.
        let inverse =
            (0..6).fold(factor, |known, _| known.wrapping_mul(2_u64.wrapping_sub(factor.wrapping_mul(known))));
        for sum in (0..1000).map(|at| u64::MAX / 1000 * at + at).chain([0, 1, u64::MAX]) {
            let mixed = mix(sum);
            let product = (mixed ^ mixed >> 32).wrapping_mul(inverse);
            assert_eq!(product ^ product >> 32, sum);
        }
    }

    /// Keys that differ little, as real ones do, must fill shards and buckets evenly.
    #[test]
    fn numbered_keys_spread_evenly() {
        const KEYS: usize = 1 << 16;
        let factors = Factors::random();
        let (mut shards, mut buckets, mut tags) = (vec![0_usize; 64], vec![0_usize; 4096], vec![0_usize; 128]);
        let mut seen = HashSet::new();
        for number in 0..KEYS {
            let print = factors.print(b"api", format!("user:{number:011}").as_bytes());
            assert!(seen.insert((print.low, print.high)));
            shards[print.shard(64)] += 1;
            buckets[usize::try_from(print.bucket_hash() % 4096).unwrap()] += 1;
            tags[usize::try_from(print.bucket_hash() >> 57).unwrap()] += 1;
        }
        for (name, counts) in [("shards", shards), ("buckets", buckets), ("tags", tags)] {
            let mean = KEYS / counts.len();
            let most = counts.iter().max().unwrap();
            assert!(*most < mean * 5 / 2 + 20, "{name}: {most} where {mean} is the mean");
        }
    }

    /// Without mixing, one draw of the factors in twenty left a third of the shards without any of these keys.
    #[test]
    fn a_few_numbered_keys_reach_nearly_all_shards() {
        for draw in 0..500 {
            let factors = Factors::random();
            let shard = |number: u64| factors.print(b"p", format!("new {number}").as_bytes()).shard(64);
            let reached: HashSet<usize> = (0..500).map(shard).collect();
            assert!(reached.len() >= 58, "only {} of 64 shards, in draw {draw}", reached.len());
        }
    }

    /// All factors are independent: no half is used twice, and every bit is drawn.
    #[test]
    fn factors_have_nothing_in_common() {
        let Factors { offsets, factors } = Factors::random();
        let drawn: Vec<u128> = offsets.into_iter().chain(factors.iter().flatten().copied()).collect();
        let halves: HashSet<u64> = drawn.iter().flat_map(|&factor| [upper(factor), factor as u64]).collect();
        assert_eq!(halves.len(), 2 * drawn.len());
        let (all, any) = drawn.iter().fold((u128::MAX, 0), |(all, any), factor| (all & factor, any | factor));
        assert_eq!((all, any), (0, u128::MAX));
    }

    #[test]
    fn the_halves_of_a_shared_state_have_nothing_in_common() {
        let shared = Factors::random().print(b"p", b"s").shared("p", 1);
        assert!(shared.is_shared());
        assert_ne!(shared.low | Print::SHARED, shared.high);
    }

    #[test]
    fn what_is_followed_differs_by_one_bit() {
        let print = Factors::random().print(b"p", b"s");
        let followed = print.followed();
        assert_eq!((followed.low, followed.high), (print.low, print.high | Print::FOLLOWED));
        assert!(followed != print && !followed.is_shared());
    }

    #[test]
    fn each_store_has_its_own_secret() {
        assert_ne!(Factors::random().print(b"api", b"42"), Factors::random().print(b"api", b"42"));
    }
}
