//! Whom a policy counts, as one text.

use std::fmt::Write as _;

use sha2::{Digest, Sha256};

/// Longer ones are written as a digest.
const LONGEST: usize = 512;

/// The subject made of these entries: `key=value,key=value`, or `all` if there are none.
///
/// `,`, `=` and `\` are escaped, so no two lists of entries are written alike.
///
/// ```
/// assert_eq!(tollgate::subject([("user", "42"), ("path", "/a,b")]), r"user=42,path=/a\,b");
/// ```
pub fn subject<'e>(entries: impl IntoIterator<Item = (&'e str, &'e str)>) -> String {
    let mut written = String::new();
    for (key, value) in entries {
        if !written.is_empty() {
            written.push(',');
        }
        push_escaped(&mut written, key);
        written.push('=');
        push_escaped(&mut written, value);
    }
    match written.len() {
        // No list of entries is written so: each has its `=`.
        0 => "all".to_owned(),
        1..=LONGEST => written,
        _ => Sha256::digest(written.as_bytes()).iter().fold(String::from("#"), |mut digest, byte| {
            let _ = write!(digest, "{byte:02x}");
            digest
        }),
    }
}

fn push_escaped(written: &mut String, part: &str) {
    if !part.contains([',', '=', '\\']) {
        return written.push_str(part);
    }
    for c in part.chars() {
        if matches!(c, ',' | '=' | '\\') {
            written.push('\\');
        }
        written.push(c);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    type Entries = Vec<(String, String)>;

    fn written(entries: &Entries) -> String {
        subject(entries.iter().map(|(key, value)| (key.as_str(), value.as_str())))
    }

    fn entries() -> impl Strategy<Value = Entries> {
        prop::collection::vec((r"[a,=\\#]{0,3}", r"[a,=\\#]{0,3}"), 0..4)
    }

    proptest! {
        #[test]
        fn different_entries_make_different_subjects(one in entries(), other in entries()) {
            prop_assert_eq!(one == other, written(&one) == written(&other));
        }

        #[test]
        fn a_subject_fits_a_key(entries in prop::collection::vec(("\\PC{0,40}", "\\PC{0,900}"), 0..8)) {
            let subject = written(&entries);
            prop_assert!(crate::Key::new("p", &subject).is_ok());
        }
    }
}
