//! Digests of values that are secret or too long.

use std::fmt::Write as _;

use sha2::{Digest, Sha256};

/// The first half of the SHA-256 of a value: 32 hexadecimal digits. Distinguishes values without revealing them.
///
/// ```
/// assert_eq!(tallygate_http::digest(b"secret").len(), 32);
/// assert_ne!(tallygate_http::digest(b"secret"), tallygate_http::digest(b"Secret"));
/// ```
pub fn digest(value: &[u8]) -> String {
    Sha256::digest(value)[..16].iter().fold(String::with_capacity(32), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
