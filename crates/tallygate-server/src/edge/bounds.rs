//! The largest call that an edge accepts. Everything is bounded before it becomes part of a key.

use tallygate_http::digest;

/// The most descriptors of a call.
pub(super) const MAX_DESCRIPTORS: usize = 32;
/// The most entries of a descriptor.
pub(super) const MAX_ENTRIES: usize = 16;
/// The longest key of an entry, in bytes.
pub(super) const MAX_KEY: usize = 128;
/// The longest value of an entry, in bytes.
pub(super) const MAX_VALUE: usize = 1024;

/// Checks the size of an entry.
pub(super) fn check_entry(key: &str, value: &str) -> Result<(), String> {
    match (key.len(), value.len()) {
        (bytes, _) if !key_fits(key) => Err(format!("a key has {bytes} bytes; 1 to {MAX_KEY} are allowed")),
        (_, bytes) if bytes > MAX_VALUE => {
            let key = key.escape_debug();
            Err(format!("the value of `{key}` has {bytes} bytes; at most {MAX_VALUE} are allowed"))
        }
        _ => Ok(()),
    }
}

/// Replaces a key or value that is too long by its digest. For proxies: what their clients send must not become an error,
/// because proxies let a call pass that cannot be decided.
pub(super) fn bounded_entry(mut key: String, mut value: String) -> (String, String) {
    if !key_fits(&key) {
        key = digest(key.as_bytes());
    }
    if value.len() > MAX_VALUE {
        value = digest(value.as_bytes());
    }
    (key, value)
}

fn key_fits(key: &str) -> bool {
    (1..=MAX_KEY).contains(&key.len())
}
