//! How many policies one descriptor can fall under.

use std::cmp::Reverse;
use std::collections::HashMap;

use tallygate::policy::Want;

/// The conditions of a policy.
pub(crate) type Conditions = Vec<(String, Want)>;

/// How many keys are looked at: those that occur most often. Bounds the work for files with thousands of keys.
const KEYS: usize = 16;

/// At most how many of these policies one descriptor can match: an upper bound, found by looking at one key at a time. Of a
/// pattern, only what is before its first `*` counts.
pub(crate) fn most(policies: &[Conditions]) -> usize {
    let mut keys: HashMap<&str, usize> = HashMap::new();
    for (key, _) in policies.iter().flatten() {
        *keys.entry(key).or_default() += 1;
    }
    let mut keys: Vec<(&str, usize)> = keys.into_iter().collect();
    keys.sort_by_key(|(key, count)| (Reverse(*count), *key));
    keys.iter().take(KEYS).map(|(key, _)| most_by(key, policies)).min().unwrap_or(policies.len())
}

/// The same, if only the entry `key` is looked at.
fn most_by(key: &str, policies: &[Conditions]) -> usize {
    let (mut any, mut absent) = (0, 0);
    // How many want this very text, and how many want a text that begins so.
    let mut wanted: HashMap<String, (usize, usize)> = HashMap::new();
    for conditions in policies {
        match conditions.iter().find(|(other, _)| other == key) {
            Some((_, Want::OneOf(patterns))) => {
                for pattern in patterns {
                    let text = pattern.to_string();
                    match text.split_once('*').filter(|_| pattern.has_star()) {
                        Some((start, _)) => wanted.entry(start.to_owned()).or_default().1 += 1,
                        None => wanted.entry(text).or_default().0 += 1,
                    }
                }
            }
            Some((_, Want::Absent)) => absent += 1,
            _ => any += 1,
        }
    }
    let met = |text: &String| {
        let starts = (0..=text.len()).filter_map(|end| Some(wanted.get(text.get(..end)?)?.1));
        wanted[text].0 + starts.sum::<usize>()
    };
    any + absent.max(wanted.keys().map(met).max().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on(key: &str, patterns: &[&str]) -> Conditions {
        vec![(key.to_owned(), Want::one_of(patterns.iter().copied()))]
    }

    #[test]
    fn policies_that_exclude_each_other_are_not_added_up() {
        assert_eq!(most(&[]), 0);
        assert_eq!(most(&[Vec::new(), Vec::new(), on("a", &["x"])]), 3);
        assert_eq!(most(&[on("a", &["x"]), on("a", &["y"]), on("b", &["x"])]), 2);
        assert_eq!(most(&[on("a", &["/x/*"]), on("a", &["/y/*"]), on("a", &["/x/y"]), on("a", &["*"])]), 3);
        assert_eq!(most(&[on("a", &["/x*"]), on("a", &["/x"]), vec![("a".to_owned(), Want::Absent)]]), 2);
        assert_eq!(most(&[on("ua", &["*one*"]), on("ua", &["*two*"])]), 2, "both can be in one text");
        let by_both = |path: &str, plan: &str| [on("path", &[path]), on("plan", &[plan])].concat();
        assert_eq!(most(&[by_both("/a", "x"), by_both("/b", "x"), by_both("/c", "x")]), 1);
    }
}
