//! Closed sets of words, and suggestions for misspelled ones.

use std::fmt;

/// Defines a closed set of words: the enum, a list of all variants, the word of each, and, given the name of the set,
/// parsing.
///
/// ```
/// tallygate::words::words! {
///     /// What to do.
///     pub enum Verb, "verb" {
///         /// Charges.
///         Check = "check",
///         /// Looks.
///         Peek = "peek",
///     }
/// }
///
/// # fn main() {
/// assert_eq!("peek".parse(), Ok(Verb::Peek));
/// assert_eq!("pek".parse::<Verb>().unwrap_err().to_string(), "unknown verb `pek`: did you mean `peek`?");
/// # }
/// ```
#[doc(hidden)] // At the root of the crate, where every exported macro appears. Its home is `tallygate::words::words`.
#[macro_export]
macro_rules! __words {
    ($(#[$doc:meta])* $vis:vis enum $name:ident { $($(#[$of_word:meta])* $variant:ident = $word:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        $vis enum $name { $($(#[$of_word])* $variant,)+ }

        impl $name {
            /// All variants.
            $vis const ALL: &[Self] = &[$(Self::$variant),+];

            /// The word used in files, JSON, metrics and logs.
            $vis fn name(self) -> &'static str {
                match self { $(Self::$variant => $word,)+ }
            }
        }
    };
    ($(#[$doc:meta])* $vis:vis enum $name:ident, $what:literal { $($words:tt)+ }) => {
        $crate::__words! { $(#[$doc])* $vis enum $name { $($words)+ } }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.name())
            }
        }

        impl std::str::FromStr for $name {
            type Err = $crate::words::UnknownWord;

            fn from_str(text: &str) -> Result<Self, $crate::words::UnknownWord> {
                let found = Self::ALL.iter().copied().find(|word| word.name() == text);
                found.ok_or_else(|| $crate::words::UnknownWord::new($what, text, Self::ALL.iter().map(|word| word.name())))
            }
        }
    };
}

#[doc(inline)]
pub use crate::__words as words;

/// The number of letters to change, add or drop to turn one word into the other; for "did you mean".
pub fn edit_distance(from: &str, to: &str) -> usize {
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (i, a) in from.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in to.bytes().enumerate() {
            let changed = diagonal + usize::from(a != b);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[to.len()]
}

/// The known word that is closest to `text`, if one is close enough.
pub fn nearest<'w>(text: &str, known: &[&'w str]) -> Option<&'w str> {
    let near =
        known.iter().copied().filter(|word| comparable(text, word)).min_by_key(|word| edit_distance(text, word))?;
    (edit_distance(text, near) <= accepted(near)).then_some(near)
}

/// The largest distance of a text that may be meant to be this word.
fn accepted(word: &str) -> usize {
    (word.len() / 2).min(3)
}

/// Whether a text is short enough, and long enough, to be close to a word. Others are not compared: callers choose the text, which may
/// be long.
fn comparable(text: &str, word: &str) -> bool {
    text.len().abs_diff(word.len()) <= accepted(word)
}

/// The error of a word that is not in the set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownWord {
    what: &'static str,
    text: String,
    known: Vec<&'static str>,
}

impl UnknownWord {
    /// Creates the error of `text`, which is not one of the `known` words of the set called `what`.
    pub fn new(what: &'static str, text: &str, known: impl Iterator<Item = &'static str>) -> Self {
        Self { what, text: text.to_owned(), known: known.collect() }
    }
}

impl fmt::Display for UnknownWord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unknown {} `{}`: ", self.what, self.text.escape_debug())?;
        match nearest(&self.text, &self.known) {
            Some(near) => write!(f, "did you mean `{near}`?"),
            None => write!(f, "use one of {}", self.known.join(", ")),
        }
    }
}

impl std::error::Error for UnknownWord {}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A caller could have 64 KiB compared with every word, letter by letter.
    #[test]
    fn a_long_text_was_compared_with_every_word() {
        let long = "check".repeat(13_000);
        assert!(!comparable(&long, "check"));
        assert_eq!(nearest(&long, &["check", "peek"]), None);
    }

    #[test]
    fn a_distance_is_the_number_of_letters_to_change() {
        for (from, to, distance) in
            [("", "", 0), ("", "abc", 3), ("abc", "", 3), ("abc", "axc", 1), ("abc", "bc", 1), ("kitten", "sitting", 3)]
        {
            assert_eq!(edit_distance(from, to), distance, "{from} {to}");
            assert_eq!(edit_distance(to, from), distance, "{to} {from}");
        }
    }

    #[test]
    fn the_closest_word_may_differ_in_half_of_its_letters_and_in_three_at_most() {
        assert_eq!(nearest("pek", &["check", "peek", "pekk"]), Some("peek"), "the first of equal ones");
        assert_eq!((nearest("ax", &["ab"]), nearest("xx", &["ab"])), (Some("ab"), None));
        assert_eq!((nearest("xxxdefgh", &["abcdefgh"]), nearest("xxxxefgh", &["abcdefgh"])), (Some("abcdefgh"), None));
    }

    proptest! {
        #[test]
        fn what_is_not_compared_is_not_close(text in "[a-c]{0,12}", word in "[a-c]{0,12}") {
            prop_assert!(comparable(&text, &word) || edit_distance(&text, &word) > accepted(&word));
            let near = edit_distance(&text, &word) <= accepted(&word);
            prop_assert_eq!(nearest(&text, &[&word]), near.then_some(word.as_str()));
        }
    }
}
