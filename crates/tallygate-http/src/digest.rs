//! Values that must not be kept, or are too long to be.

use std::fmt::Write as _;

use sha2::{Digest, Sha256};

/// Enough of a digest to tell values apart, and nothing to tell what they were: 32 hexadecimal digits.
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
