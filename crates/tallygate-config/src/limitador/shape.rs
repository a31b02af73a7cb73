//! The shapes in which nearly all of limitador's conditions and variables are written.
//!
//! ```text
//! condition = entry ("==" | "!=") text { "&&" condition }
//! entry     = "descriptors[" number "]" ( "." word | "['" key "']" ) | key
//! text      = "'" … "'" | '"' … '"' | word (only after a key that stands alone, as files of old have it)
//! ```

use tallygate::policy::Descriptor;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Entry {
    /// Of the descriptor at this place.
    At(usize, String),
    /// Of any descriptor, as limitador 1 has it.
    Anywhere(String),
}

/// What an entry must be, or must not be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Comparison {
    pub entry: Entry,
    pub equal: bool,
    pub text: String,
}

impl Entry {
    /// The entry that `text` stands for, if it has this shape.
    pub fn read(text: &str) -> Option<Self> {
        let text = text.trim();
        let Some(rest) = text.strip_prefix("descriptors[") else {
            let is_key =
                is_word(text, &['.', '-']) && !matches!(text, "true" | "false" | "null" | "descriptors" | "limit");
            let is_ours = text.starts_with("limit.") || text.starts_with("descriptors.");
            return (is_key && !is_ours).then(|| Self::Anywhere(text.to_owned()));
        };
        let (place, rest) = rest.split_once(']')?;
        let place = place.trim().parse().ok()?;
        let key = match rest.strip_prefix('.') {
            Some(word) => is_word(word, &[]).then_some(word)?,
            None => quoted(rest.strip_prefix('[')?.strip_suffix(']')?.trim())?,
        };
        Some(Self::At(place, key.to_owned()))
    }

    /// Its value in a call. Of two entries of one key the last counts.
    pub fn value<'c>(&self, descriptors: &[&'c Descriptor]) -> Option<&'c str> {
        let (among, wanted) = match self {
            Self::At(place, key) => (descriptors.get(*place..=*place)?, key),
            Self::Anywhere(key) => (descriptors, key),
        };
        let mut entries = among.iter().rev().flat_map(|descriptor| descriptor.entries().iter().rev());
        entries.find(|(key, _)| key == wanted).map(|(_, value)| value.as_str())
    }
}

impl Comparison {
    /// All comparisons of a condition, if it is made of such only.
    pub fn read_all(text: &str) -> Option<Vec<Self>> {
        split(text, "&&")?.into_iter().map(Self::read).collect()
    }

    fn read(text: &str) -> Option<Self> {
        let (equal, sides) = [(true, "=="), (false, "!=")].into_iter().find_map(|(equal, operator)| {
            let sides = split(text, operator)?;
            (sides.len() == 2).then_some((equal, sides))
        })?;
        let entry = Entry::read(sides[0])?;
        let right = sides[1].trim();
        let text = match (quoted(right), &entry) {
            (Some(text), _) => text,
            (None, Entry::Anywhere(_)) if is_bare(right) => right,
            _ => return None,
        };
        Some(Self { entry, equal, text: text.to_owned() })
    }

    /// Whether it holds. An entry that is not there is neither equal nor different.
    pub fn holds(&self, descriptors: &[&Descriptor]) -> bool {
        self.entry.value(descriptors).is_some_and(|value| (value == self.text) == self.equal)
    }
}

/// The parts of `text` between `separator`, quotes respected; `None` if a quote is left open.
fn split<'t>(text: &'t str, separator: &str) -> Option<Vec<&'t str>> {
    let (mut parts, mut start, mut quote) = (Vec::new(), 0, None);
    let mut at = 0;
    while let Some(c) = text[at..].chars().next() {
        match quote {
            Some(open) if open == c => quote = None,
            Some(_) => {}
            None if c == '\'' || c == '"' => quote = Some(c),
            None if text[at..].starts_with(separator) => {
                parts.push(&text[start..at]);
                at += separator.len();
                start = at;
                continue;
            }
            None => {}
        }
        at += c.len_utf8();
    }
    parts.push(&text[start..]);
    quote.is_none().then_some(parts)
}

/// What stands between two quotes, if it is plain.
fn quoted(text: &str) -> Option<&str> {
    let quote = text.chars().next().filter(|c| matches!(c, '\'' | '"'))?;
    let inner = text[1..].strip_suffix(quote)?;
    (!inner.contains([quote, '\\', '\n'])).then_some(inner)
}

/// A word, or several with these characters between them.
fn is_word(text: &str, between: &[char]) -> bool {
    let starts = |c: char| c.is_ascii_alphabetic() || c == '_';
    text.starts_with(starts) && text.chars().all(|c| starts(c) || c.is_ascii_digit() || between.contains(&c))
}

/// A value without quotes.
fn is_bare(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-' | '/' | ':'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(place: usize, key: &str) -> Entry {
        Entry::At(place, key.to_owned())
    }

    #[test]
    fn entries_are_read_in_every_notation() {
        assert_eq!(Entry::read("descriptors[0].user_id"), Some(at(0, "user_id")));
        assert_eq!(Entry::read(" descriptors[12]['req.method'] "), Some(at(12, "req.method")));
        assert_eq!(Entry::read("descriptors[1][\"it's\"]"), Some(at(1, "it's")));
        assert_eq!(Entry::read("req.method"), Some(Entry::Anywhere("req.method".to_owned())));
        for other in [
            "",
            "1",
            "descriptors",
            "descriptors[0]",
            "descriptors[-1].a",
            "descriptors[0].a.b",
            "descriptors[0]['a'",
            "descriptors[0].size()",
            "limit.name",
            "true",
            "a + b",
            "'a'",
            "descriptors[0]['a\\'b']",
        ] {
            assert_eq!(Entry::read(other), None, "{other}");
        }
    }

    #[test]
    fn conditions_are_read_in_their_common_shapes() {
        let read = |text: &str| {
            let all = Comparison::read_all(text)?;
            Some(all.into_iter().map(|one| (one.entry, one.equal, one.text)).collect::<Vec<_>>())
        };
        assert_eq!(read("descriptors[0].a == 'x'"), Some(vec![(at(0, "a"), true, "x".to_owned())]));
        assert_eq!(
            read("descriptors[0]['a&&b']!=\"x == y\"&&descriptors[1].b == ''"),
            Some(vec![(at(0, "a&&b"), false, "x == y".to_owned()), (at(1, "b"), true, String::new())])
        );
        assert_eq!(read("a == b"), Some(vec![(Entry::Anywhere("a".to_owned()), true, "b".to_owned())]));
        for other in ["", "descriptors[0].a == b", "descriptors[0].a", "a == 'x' || b == 'y'", "a == 'x", "!(a == 'x')"]
        {
            assert_eq!(read(other), None, "{other}");
        }
    }

    proptest! {
        #[test]
        fn no_text_is_too_much(text in "[a-z0-9'\"\\[\\]=!&. é\\\\]{0,40}") {
            let (entry, comparisons) = (Entry::read(&text), Comparison::read_all(&text));
            prop_assert!(comparisons.is_none_or(|all| !all.is_empty()));
            prop_assert!(entry.is_none() || !text.trim().is_empty());
        }
    }
}
