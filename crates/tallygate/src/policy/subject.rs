//! The subject of a policy, as one text.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::net::Ipv4Addr;

use crate::key::digest;

/// Longer subjects are replaced by a digest.
const LONGEST: usize = 512;

/// Each octet and a dot, as the bytes of a number.
const OCTETS: [u32; 256] = {
    let mut texts = [0; 256];
    let mut octet = 0;
    while octet < 256 {
        let [hundreds, tens, ones] = [octet / 100, octet / 10 % 10, octet % 10];
        let mut text = (b'.' as u32) << 8 | (b'0' as u32 + ones as u32);
        if octet >= 10 {
            text = text << 8 | (b'0' as u32 + tens as u32);
        }
        if octet >= 100 {
            text = text << 8 | (b'0' as u32 + hundreds as u32);
        }
        texts[octet] = text;
        octet += 1;
    }
    texts
};

/// The subject of a policy, as one text: `key=value,key=value`, or `all`. Short subjects, which most are, are stored
/// inline without allocation.
///
/// `,`, `=` and `\` are escaped, so different entries never have the same text.
///
/// ```
/// use tallygate::policy::Subject;
///
/// assert_eq!(Subject::new([("user", "42"), ("path", "/a,b")]).as_str(), r"user=42,path=/a\,b");
/// assert_eq!(Subject::new([]).as_str(), "all");
/// ```
#[derive(Clone)]
pub struct Subject(Text);

#[derive(Clone)]
enum Text {
    Short(Short),
    Long(String),
}

/// Aligned so that it is moved in whole words. The last byte is the length.
#[derive(Clone, Copy)]
#[repr(align(8))]
struct Short([u8; 32]);

impl Subject {
    /// Creates the subject of these entries.
    pub fn new<'e>(entries: impl IntoIterator<Item = (&'e str, &'e str)>) -> Self {
        let mut text = Text::Short(Short::EMPTY);
        for (key, value) in entries {
            if !text.as_bytes().is_empty() {
                text.push(",");
            }
            text.push_escaped(key);
            text.push("=");
            text.push_escaped(value);
        }
        match text.as_bytes().len() {
            // No list of entries has this text: each entry has its `=`.
            0 => text.push("all"),
            1..=LONGEST => {}
            _ => text = Text::Long(digest(text.as_bytes(), 32)),
        }
        Self(text)
    }

    /// Creates the subject of an address, equal to its text under the key `address`. A fast path, because most requests
    /// take it.
    #[inline(always)]
    pub fn of_ipv4(address: Ipv4Addr) -> Self {
        // Built in a register, so that the next read does not stall on fifteen small stores.
        let (mut digits, mut length) = (0_u128, 0);
        for octet in address.octets() {
            digits |= u128::from(OCTETS[usize::from(octet)]) << (8 * length);
            length += 2 + u8::from(octet >= 10) + u8::from(octet >= 100);
        }
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(b"address=");
        bytes[8..24].copy_from_slice(&digits.to_le_bytes());
        // All but the last dot.
        bytes[Short::LENGTH] = 8 + length - 1;
        Self(Text::Short(Short(bytes)))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(self.0.as_bytes()).expect("only whole strings are pushed")
    }
}

impl Short {
    const EMPTY: Self = Self([0; 32]);
    const LENGTH: usize = 31;

    #[inline(always)]
    fn as_bytes(&self) -> &[u8] {
        &self.0[..usize::from(self.0[Self::LENGTH])]
    }

    /// Appends `part` if there is room.
    fn push(&mut self, part: &str) -> bool {
        let from = self.as_bytes().len();
        let end = from + part.len();
        if let Some(room) = self.0[..Self::LENGTH].get_mut(from..end) {
            room.copy_from_slice(part.as_bytes());
        }
        let fits = u8::try_from(end).ok().filter(|_| end <= Self::LENGTH);
        self.0[Self::LENGTH] = fits.unwrap_or(self.0[Self::LENGTH]);
        fits.is_some()
    }
}

impl Text {
    #[inline(always)]
    fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Short(text) => text.as_bytes(),
            Self::Long(text) => text.as_bytes(),
        }
    }

    fn push(&mut self, part: &str) {
        let outgrown = match self {
            Self::Short(text) => !text.push(part),
            Self::Long(text) => {
                text.push_str(part);
                false
            }
        };
        if outgrown {
            self.outgrow(part);
        }
    }

    fn outgrow(&mut self, part: &str) {
        let mut text = String::with_capacity(64 + part.len());
        text.push_str(std::str::from_utf8(self.as_bytes()).expect("only whole strings are pushed"));
        text.push_str(part);
        *self = Self::Long(text);
    }

    fn push_escaped(&mut self, part: &str) {
        let mut rest = part;
        while let Some(at) = rest.find([',', '=', '\\']) {
            self.push(&rest[..at]);
            self.push("\\");
            self.push(&rest[at..=at]);
            rest = &rest[at + 1..];
        }
        self.push(rest);
    }
}

impl AsRef<[u8]> for Subject {
    #[inline]
    fn as_ref(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl PartialEq for Subject {
    fn eq(&self, other: &Self) -> bool {
        self.0.as_bytes() == other.0.as_bytes()
    }
}

impl Eq for Subject {}

impl Hash for Subject {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.as_bytes().hash(state);
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Debug for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

#[cfg(test)]
mod tests {
    use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

    use super::*;
    use proptest::prelude::*;

    type Entries = Vec<(String, String)>;

    fn written(entries: &Entries) -> Subject {
        Subject::new(entries.iter().map(|(key, value)| (key.as_str(), value.as_str())))
    }

    fn entries() -> impl Strategy<Value = Entries> {
        prop::collection::vec((r"[a,=\\#]{0,3}", r"[a,=\\#]{0,30}"), 0..4)
    }

    #[test]
    fn different_subjects_have_different_hashes() {
        let hasher = BuildHasherDefault::<DefaultHasher>::new();
        let long = "0123456789".repeat(4);
        let [a, b, c] = ["a", "b", &long].map(|text| hasher.hash_one(Subject::new([("k", text)])));
        assert!(a != b && b != c && a != c);
    }

    #[test]
    fn a_subject_is_escaped_and_a_long_one_is_a_digest() {
        assert_eq!(Subject::new([]).as_str(), "all");
        assert_eq!(Subject::new([(r"a\b", "c=d,"), ("e", "")]).as_str(), r"a\\b=c\=d\,,e=");
        let of_length = |length: usize| Subject::new([("k", "v".repeat(length - 2).as_str())]);
        assert!(of_length(512).as_str().ends_with("vvv"));
        let long = of_length(513).to_string();
        assert!(long.starts_with('#') && long.len() == 1 + 64, "{long}");
        assert_ne!(long, of_length(514).to_string());
    }

    proptest! {
        #[test]
        fn different_entries_make_different_subjects(one in entries(), other in entries()) {
            prop_assert_eq!(one == other, written(&one) == written(&other));
        }

        #[test]
        fn an_address_has_its_usual_text_form(address: Ipv4Addr) {
            let text = address.to_string();
            prop_assert_eq!(Subject::of_ipv4(address), Subject::new([("address", text.as_str())]));
        }

        #[test]
        fn short_and_long_subjects_are_complete(entries in prop::collection::vec(("[a-zé]{0,9}", "[a-zé]{0,30}"), 1..5)) {
            let whole: Vec<String> = entries.iter().map(|(key, value)| format!("{key}={value}")).collect();
            prop_assert_eq!(written(&entries).to_string(), whole.join(","));
        }

        #[test]
        fn a_subject_fits_a_key(entries in prop::collection::vec(("\\PC{0,40}", "\\PC{0,900}"), 0..8)) {
            let subject = written(&entries);
            prop_assert!(crate::Key::new("p", &subject).is_ok());
        }
    }
}
