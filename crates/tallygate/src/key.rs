//! The identity of one state: a policy name and a subject. The only code that encodes the two as bytes.

use std::fmt::Write as _;

use sha2::{Digest, Sha256};

/// Identifies one state: the policy it belongs to and the subject it counts.
///
/// A key borrows its parts, so a check allocates nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key<'a> {
    policy: &'a str,
    subject: &'a [u8],
}

/// The error of an invalid policy name or subject.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// The policy name is empty.
    #[error("the policy name is empty: name the policy, for example `login`")]
    EmptyPolicy,
    /// The policy name is too long.
    #[error("the policy name has {bytes} bytes; at most {} are allowed", Key::MAX_POLICY)]
    LongPolicy {
        /// The length in bytes.
        bytes: usize,
    },
    /// The subject is empty.
    #[error("the subject is empty: give anonymous callers a common subject, for example `anonymous`")]
    EmptySubject,
    /// The subject is too long.
    #[error("the subject has {bytes} bytes; at most {} are allowed: hash it first", Key::MAX_SUBJECT)]
    LongSubject {
        /// The length in bytes.
        bytes: usize,
    },
}

impl<'a> Key<'a> {
    /// The maximum length of a policy name, in bytes.
    pub const MAX_POLICY: usize = 128;
    /// The maximum length of a subject, in bytes.
    pub const MAX_SUBJECT: usize = 1024;
    /// A part whose escaped form is longer than this is replaced by a digest.
    const MAX_WRITTEN: usize = 128;

    /// Creates the key of `subject` under the policy `policy`. Both may contain any bytes.
    pub fn new(policy: &'a str, subject: &'a (impl AsRef<[u8]> + ?Sized)) -> Result<Self, KeyError> {
        let subject = subject.as_ref();
        match (policy.len(), subject.len()) {
            (0, _) => Err(KeyError::EmptyPolicy),
            (_, 0) => Err(KeyError::EmptySubject),
            (bytes, _) if bytes > Self::MAX_POLICY => Err(KeyError::LongPolicy { bytes }),
            (_, bytes) if bytes > Self::MAX_SUBJECT => Err(KeyError::LongSubject { bytes }),
            _ => Ok(Self { policy, subject }),
        }
    }

    /// The policy name.
    pub fn policy(&self) -> &'a str {
        self.policy
    }

    /// The subject: whom or what the policy counts.
    pub fn subject(&self) -> &'a [u8] {
        self.subject
    }

    /// Encodes the key as `prefix:{subject}:policy:kind`, its name in a shared store.
    ///
    /// Only the subject is the hash tag, so all states of one subject share a slot of a cluster. Everything that could
    /// change the slot or end a part is escaped, so different keys never have the same name.
    pub fn encode(&self, prefix: &str, kind: &str) -> String {
        let mut written = String::with_capacity(prefix.len() + self.subject.len() + self.policy.len() + kind.len() + 8);
        written.push_str(prefix);
        written.push_str(":{");
        push_part(&mut written, self.subject);
        written.push_str("}:");
        push_part(&mut written, self.policy.as_bytes());
        written.push(':');
        written.push_str(kind);
        written
    }
}

impl Key<'_> {
    /// The policy name as it is written in an encoded key.
    pub fn written_policy(&self) -> String {
        write_part(self.policy.as_bytes())
    }

    /// The subject as it is written in an encoded key.
    pub fn written_subject(&self) -> String {
        write_part(self.subject)
    }
}

/// A part as it is written in an encoded key.
pub(crate) fn write_part(part: &[u8]) -> String {
    let mut written = String::new();
    push_part(&mut written, part);
    written
}

/// A part of an encoded key for people to read: with the escaped characters themselves, if they are text. A digest stays one.
pub(crate) fn read_part(written: &str) -> String {
    let mut bytes = Vec::with_capacity(written.len());
    let mut rest = written.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let escaped = (byte == b'%').then(|| std::str::from_utf8(after.get(..2)?).ok()).flatten();
        match escaped.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(escaped) => {
                bytes.push(escaped);
                rest = &after[2..];
            }
            None => {
                bytes.push(byte);
                rest = after;
            }
        }
    }
    String::from_utf8(bytes).unwrap_or_else(|_| written.to_owned())
}

/// The encoded policy name and the kind of an encoded key, for listing a store. `None` if the text is not such a key.
pub fn decode_policy<'k>(encoded: &'k str, prefix: &str) -> Option<(&'k str, &'k str)> {
    decode(encoded, prefix).map(|(_, policy, kind)| (policy, kind))
}

/// The encoded subject, the encoded policy name and the kind of an encoded key. `None` if the text is not such a key.
pub fn decode<'k>(encoded: &'k str, prefix: &str) -> Option<(&'k str, &'k str, &'k str)> {
    let rest = encoded.strip_prefix(prefix)?.strip_prefix(":{")?;
    let (subject, rest) = rest.split_once("}:")?;
    let (policy, kind) = rest.rsplit_once(':')?;
    Some((subject, policy, kind))
}

/// The key under which a shared store remembers the answer to a call, next to an encoded key of the call.
pub fn of_request(encoded: &str, name: &str) -> String {
    let subject = encoded.find("}:").map_or(encoded.len(), |end| end + 2);
    format!("{}request:{name}", &encoded[..subject])
}

/// Appends `part` with all but plain characters escaped as `%XX`, or `#` and a digest if the result is too long.
fn push_part(written: &mut String, part: &[u8]) {
    let start = written.len();
    for &byte in part {
        if byte.is_ascii_graphic() && !matches!(byte, b'%' | b'#' | b'{' | b'}' | b':') {
            written.push(char::from(byte));
        } else {
            let _ = write!(written, "%{byte:02X}");
        }
    }
    if written.len() - start > Key::MAX_WRITTEN {
        written.truncate(start);
        written.push_str(&digest(part, 16));
    }
}

/// Replaces a text that is too long: `#` and the first `bytes` bytes of its digest.
pub(crate) fn digest(text: &[u8], bytes: usize) -> String {
    let mut written = String::from("#");
    for byte in &Sha256::digest(text)[..bytes] {
        let _ = write!(written, "{byte:02x}");
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn encoded(policy: &str, subject: &[u8]) -> String {
        Key::new(policy, subject).unwrap().encode("tallygate", "tb")
    }

    #[test]
    fn plain_keys_stay_readable() {
        assert_eq!(encoded("api", b"42"), "tallygate:{42}:api:tb");
        assert_eq!(encoded("api", b"user:42"), "tallygate:{user%3A42}:api:tb");
        assert_eq!(encoded("api", "zoë".as_bytes()), "tallygate:{zo%C3%AB}:api:tb");
    }

    #[test]
    fn parts_do_not_run_into_each_other() {
        assert_ne!(encoded("c", b"a:b"), encoded("b:c", b"a"));
        assert_ne!(encoded("p", b"#00"), encoded("p", b"%2300"));
    }

    #[test]
    fn braces_cannot_move_the_slot() {
        assert_eq!(encoded("p", b"}{victim}"), "tallygate:{%7D%7Bvictim%7D}:p:tb");
    }

    #[test]
    fn long_subjects_become_a_digest_and_still_differ() {
        let (one, two) = (encoded("p", &[b'a'; 1000]), encoded("p", &[b'a'; 1001]));
        assert!(one.len() < 60 && one.contains('#'), "{one}");
        assert_ne!(one, two);
    }

    #[test]
    fn bad_parts_are_refused_with_the_remedy() {
        assert_eq!(Key::new("p", ""), Err(KeyError::EmptySubject));
        assert_eq!(Key::new("", "s"), Err(KeyError::EmptyPolicy));
        let mebibyte = vec![0; 1 << 20];
        let error = Key::new("p", &mebibyte).unwrap_err();
        assert_eq!(error.to_string(), "the subject has 1048576 bytes; at most 1024 are allowed: hash it first");
        assert!(matches!(Key::new(&"p".repeat(129), "s"), Err(KeyError::LongPolicy { bytes: 129 })));
        assert!(Key::new(&"p".repeat(128), &[0; 1024]).is_ok());
        assert_eq!(Key::new("p", &[0; 1025]), Err(KeyError::LongSubject { bytes: 1025 }));
    }

    #[test]
    fn parts_of_up_to_128_characters_stay_readable() {
        let subject = format!("{}%3A", "a".repeat(125));
        assert_eq!(encoded("p", format!("{}:", "a".repeat(125)).as_bytes()), format!("tallygate:{{{subject}}}:p:tb"));
        assert!(encoded("p", &[b'a'; 129]).contains('#'));
        assert_eq!(Key::new("p", "s").unwrap().encode("", "kind"), ":{s}:p:kind");
    }

    #[test]
    fn parts_are_read_as_they_were_meant() {
        for part in ["user:42", "zoë", "100%", "%41", "a{b}#", "\n"] {
            assert_eq!(read_part(&write_part(part.as_bytes())), part);
        }
        assert_eq!(read_part(&write_part(b"\xff:")), "%FF%3A", "it is no text");
        assert!(read_part(&write_part(&[b'a'; 200])).starts_with('#'));
        for odd in ["%", "%4", "%zz", "a%é"] {
            assert_eq!(read_part(odd), odd);
        }
    }

    #[test]
    fn the_policy_can_be_read_back() {
        assert_eq!(decode_policy("tallygate:{a%3Ab}:login:sl", "tallygate"), Some(("login", "sl")));
        assert_eq!(decode_policy("other:{a}:login:sl", "tallygate"), None);
    }

    proptest! {
        #[test]
        fn different_keys_are_written_differently(
            a in prop::collection::vec(any::<u8>(), 1..200), b in prop::collection::vec(any::<u8>(), 1..200),
            p in "[a-c:{}%#]{1,4}", q in "[a-c:{}%#]{1,4}",
        ) {
            prop_assert_eq!((&a, &p) == (&b, &q), encoded(&p, &a) == encoded(&q, &b));
        }

        #[test]
        fn one_pair_of_braces_whatever_the_subject(subject in prop::collection::vec(any::<u8>(), 1..300), policy in "\\PC{1,20}") {
            prop_assume!(policy.len() <= Key::MAX_POLICY);
            let written = encoded(&policy, &subject);
            prop_assert_eq!(written.matches('{').count(), 1);
            prop_assert_eq!(written.matches('}').count(), 1);
            prop_assert_eq!(written.matches(':').count(), 3);
            prop_assert!(written.bytes().all(|byte| byte.is_ascii_graphic()));
        }
    }
}
