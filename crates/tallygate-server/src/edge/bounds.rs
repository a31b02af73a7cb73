//! How large a call may be, at every edge. Everything is bounded before it becomes part of a key.

use tallygate_http::{Problem, digest};

/// The most descriptors of a call.
pub(super) const MAX_DESCRIPTORS: usize = 32;
/// The most entries of a descriptor.
pub(super) const MAX_ENTRIES: usize = 16;
/// The longest key of an entry, in bytes.
pub(super) const MAX_KEY: usize = 128;
/// The longest value of an entry, in bytes.
pub(super) const MAX_VALUE: usize = 1024;

/// Checks the size of an entry, for callers that can be told.
pub(super) fn check_entry(key: &str, value: &str) -> Result<(), Problem> {
    let complain = |what: &str, bytes: usize, most: usize| {
        Err(Problem::bad_request(format!("{what} of an entry has {bytes} bytes: 1 to {most} are allowed.")))
    };
    match (key.len(), value.len()) {
        (bytes, _) if !key_fits(key) => complain("The key", bytes, MAX_KEY),
        (_, bytes) if bytes > MAX_VALUE => complain("The value", bytes, MAX_VALUE),
        _ => Ok(()),
    }
}

/// Replaces by its digest what is too long. For proxies: what their callers send must not become an error, because
/// proxies let a call pass that cannot be decided.
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
