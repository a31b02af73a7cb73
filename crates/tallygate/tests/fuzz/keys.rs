//! Keys: whatever the names are, different keys have different names in a store, and only the subject decides the slot.

use std::collections::HashSet;

use tallygate::key::{KeyError, decode_policy};
use tallygate::{Algorithm, Key};

const PREFIX: &str = "tallygate";

/// The first byte is where the rest is cut into a policy name and a subject.
pub fn run(input: &[u8]) {
    let Some((&cut, rest)) = input.split_first() else { return };
    let (policy, subject) = rest.split_at(usize::from(cut).min(rest.len()));
    let policy = String::from_utf8_lossy(policy);
    let key = match Key::new(&policy, subject) {
        Ok(key) => key,
        Err(KeyError::EmptyPolicy) => return assert!(policy.is_empty()),
        Err(KeyError::EmptySubject) => return assert!(subject.is_empty()),
        Err(KeyError::LongPolicy { bytes }) => return assert!(bytes == policy.len() && bytes > Key::MAX_POLICY),
        Err(KeyError::LongSubject { bytes }) => return assert!(bytes == subject.len() && bytes > Key::MAX_SUBJECT),
        Err(other) => panic!("{other}"),
    };
    for algorithm in Algorithm::OVER_TIME {
        is_sound(key, algorithm.kind());
    }
    // The same text, cut elsewhere, is another key.
    let mut names = HashSet::new();
    for at in (1..rest.len().min(64)).filter(|at| rest.len() - at <= Key::MAX_SUBJECT) {
        let Ok(policy) = std::str::from_utf8(&rest[..at]) else { continue };
        let name = Key::new(policy, &rest[at..]).expect("neither part is empty or too long").encode(PREFIX, "tb");
        assert!(names.insert(name), "two keys have one name, if {rest:?} is cut at {at}");
    }
}

fn is_sound(key: Key<'_>, kind: &str) {
    let name = key.encode(PREFIX, kind);
    assert!(name.len() <= PREFIX.len() + kind.len() + 2 * 128 + 5, "{name}");
    assert!(name.bytes().all(|byte| byte.is_ascii_graphic()), "{name}");
    // The hash tag is what is between the first `{` and the next `}`.
    let (before, rest) = name.split_once('{').expect("a tag");
    let (tag, after) = rest.split_once('}').expect("its end");
    assert!(before == "tallygate:" && !tag.is_empty() && !after.contains(['{', '}']), "{name}");
    assert_eq!(name.matches(':').count(), 3, "{name}");
    let elsewhere = Key::new("other", key.subject()).expect("a valid subject").encode(PREFIX, "sl");
    assert!(elsewhere.contains(&format!("{{{tag}}}")), "{name} and {elsewhere} are of one subject");
    let (policy, read) = decode_policy(&name, PREFIX).expect("a key");
    assert_eq!(read, kind);
    for (written, meant) in [(tag, key.subject()), (policy, key.policy().as_bytes())] {
        match written.strip_prefix('#') {
            Some(digest) => assert!(digest.len() == 32 && meant.len() > 128 / 3, "{name}"),
            None => assert_eq!(unescaped(written), meant, "{name}"),
        }
    }
}

fn unescaped(written: &str) -> Vec<u8> {
    let mut parts = written.split('%');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        bytes.push(u8::from_str_radix(&part[..2], 16).expect("two digits"));
        bytes.extend_from_slice(&part.as_bytes()[2..]);
    }
    bytes
}
