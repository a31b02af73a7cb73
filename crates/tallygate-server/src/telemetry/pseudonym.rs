//! Pseudonyms of subjects in logs: lines about one caller correlate, without identifying anyone.

use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;

use tallygate_http::digest;

/// A random key of this process. Without it, pseudonyms of likely subjects cannot be computed.
static KEY: LazyLock<[u64; 4]> = LazyLock::new(|| std::array::from_fn(|at| RandomState::new().hash_one(at)));

/// Sixteen hex digits for `subject`, the same as long as this process runs.
pub(super) fn pseudonym(subject: &str) -> String {
    keyed(&KEY, subject)
}

fn keyed(key: &[u64; 4], subject: &str) -> String {
    let key = key.iter().flat_map(|part| part.to_be_bytes());
    let mut pseudonym = digest(&key.chain(subject.bytes()).collect::<Vec<u8>>());
    pseudonym.truncate(16);
    pseudonym
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subject_keeps_its_pseudonym_and_shares_it_with_no_other() {
        assert_eq!(pseudonym("user=alice"), pseudonym("user=alice"));
        assert_ne!(pseudonym("user=alice"), pseudonym("user=bob"));
        assert_eq!(pseudonym("").len(), 16);
    }

    #[test]
    fn another_key_gives_other_pseudonyms() {
        let key = || std::array::from_fn(|at| RandomState::new().hash_one(at));
        assert_ne!(keyed(&key(), "user=alice"), keyed(&key(), "user=alice"));
    }
}
