//! Patterns with `*`.

use std::fmt;

/// A text in which every `*` matches any text, including none.
///
/// ```
/// let pattern = tallygate::policy::Pattern::new("/v1/*/items");
/// assert!(pattern.matches("/v1/42/items"));
/// assert!(!pattern.matches("/v2/42/items"));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Pattern {
    /// The texts between the stars.
    parts: Vec<String>,
}

impl Pattern {
    /// Creates a pattern.
    pub fn new(text: &str) -> Self {
        Self { parts: text.split('*').map(str::to_owned).collect() }
    }

    /// Whether it contains a `*`.
    pub fn has_star(&self) -> bool {
        self.parts.len() > 1
    }

    /// Whether `text` matches.
    pub fn matches(&self, text: &str) -> bool {
        let [first, middle @ .., last] = self.parts.as_slice() else { return self.parts[0] == text };
        let Some(rest) = text.strip_prefix(first.as_str()) else { return false };
        let Some(mut rest) = rest.strip_suffix(last.as_str()) else { return false };
        // Greedy from the left: the first occurrence of each part leaves the most text for the next.
        middle.iter().all(|part| match rest.find(part.as_str()) {
            Some(at) => {
                rest = &rest[at + part.len()..];
                true
            }
            None => false,
        })
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.parts.join("*"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The definition, in exponential time.
    fn defined(pattern: &[char], text: &[char]) -> bool {
        match (pattern.split_first(), text.split_first()) {
            (None, _) => text.is_empty(),
            (Some(('*', rest)), _) => (0..=text.len()).any(|skip| defined(rest, &text[skip..])),
            (Some((one, rest)), Some((other, others))) => one == other && defined(rest, others),
            (Some(_), None) => false,
        }
    }

    #[test]
    fn a_star_is_noticed_wherever_it_is() {
        for (pattern, has_star) in [("", false), ("a", false), ("*", true), ("*a", true), ("a*", true), ("a*b", true)] {
            assert_eq!(Pattern::new(pattern).has_star(), has_star, "{pattern}");
        }
    }

    proptest! {
        #[test]
        fn a_star_matches_any_text(pattern in "[ab*]{0,6}", text in "[ab]{0,8}") {
            let (chars, letters): (Vec<char>, Vec<char>) = (pattern.chars().collect(), text.chars().collect());
            prop_assert_eq!(Pattern::new(&pattern).matches(&text), defined(&chars, &letters));
        }
    }
}
