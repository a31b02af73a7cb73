//! The walk down the tree against a plain retelling of the reference, over random trees and descriptors.

use std::fmt::Write as _;

use proptest::prelude::*;
use tallygate::policy::{Descriptor, Subject};
use tallygate_config::Config;

/// A descriptor of a file.
#[derive(Debug, Clone)]
struct Rule {
    key: String,
    value: String,
    limited: bool,
    shared: bool,
    below: Vec<Rule>,
}

impl Rule {
    fn own(&self) -> String {
        if self.value.is_empty() { self.key.clone() } else { format!("{}_{}", self.key, self.value) }
    }

    fn write(&self, indent: usize, text: &mut String) {
        let pad = " ".repeat(indent);
        writeln!(text, "{pad}- key: {}", self.key).unwrap();
        if !self.value.is_empty() {
            writeln!(text, "{pad}  value: '{}'", self.value).unwrap();
        }
        if self.shared {
            writeln!(text, "{pad}  share_threshold: true").unwrap();
        }
        if self.limited {
            writeln!(text, "{pad}  rate_limit: {{unit: minute, requests_per_unit: 5}}").unwrap();
        }
        if !self.below.is_empty() {
            writeln!(text, "{pad}  descriptors:").unwrap();
            self.below.iter().for_each(|rule| rule.write(indent + 4, text));
        }
    }
}

/// A `*` stands for anything: by the definition.
fn fits(pattern: &[u8], text: &[u8]) -> bool {
    match (pattern.split_first(), text.split_first()) {
        (None, _) => text.is_empty(),
        (Some((b'*', rest)), _) => (0..=text.len()).any(|skip| fits(rest, &text[skip..])),
        (Some((one, rest)), Some((other, others))) => one == other && fits(rest, others),
        (Some(_), None) => false,
    }
}

/// The path of the rule that holds, and whom it counts.
fn naive(rules: &[Rule], entries: &[(String, String)]) -> Option<(String, Subject)> {
    let (mut level, mut path, mut counted) = (rules, Vec::new(), Vec::new());
    for (at, (key, value)) in entries.iter().enumerate() {
        let full = format!("{key}_{value}");
        let exact = level.iter().find(|rule| rule.own() == full);
        let starred =
            || level.iter().find(|rule| rule.own().contains('*') && fits(rule.own().as_bytes(), full.as_bytes()));
        let found = exact.or_else(starred).or_else(|| level.iter().find(|rule| rule.own() == *key))?;
        let pattern = found.own();
        let pattern = pattern.strip_prefix(&format!("{key}_")).unwrap_or(&pattern).to_owned();
        counted.push((key.clone(), if found.shared { pattern } else { value.clone() }));
        path.push(found.own());
        if at + 1 == entries.len() {
            let entries = counted.iter().map(|(key, value)| (key.as_str(), value.as_str()));
            return found.limited.then(|| (path.join("."), Subject::new(entries)));
        }
        level = &found.below;
    }
    None
}

fn rules(depth: u32) -> BoxedStrategy<Vec<Rule>> {
    let below = if depth == 0 { Just(Vec::new()).boxed() } else { rules(depth - 1) };
    let rule = ("[abk](_a)?", "[abx*]{0,3}", any::<bool>(), any::<bool>(), below);
    let rule = rule.prop_map(|(key, value, limited, shared, below)| {
        let shared = shared && value.contains('*');
        Rule { key, value, limited, shared, below }
    });
    let list = prop::collection::vec(rule, 0..5);
    let list = list.prop_map(|mut list| {
        let mut seen = std::collections::HashSet::new();
        list.retain(|rule| seen.insert(rule.own()));
        list
    });
    list.boxed()
}

proptest! {
    #[test]
    fn the_walk_is_that_of_the_reference(
        rules in rules(2),
        calls in prop::collection::vec(prop::collection::vec(("[abk](_a)?", "[abx*]{0,3}"), 0..4), 1..6),
    ) {
        let mut text = "domain: d\ndescriptors:\n".to_owned();
        rules.iter().for_each(|rule| rule.write(2, &mut text));
        let config = Config::from_texts(&[("f.yaml", &text)]).map_err(|findings| TestCaseError::fail(format!("{text}{findings}")))?;
        let domain = config.policies.domain("d").unwrap();
        for entries in calls {
            let call: Descriptor = entries.iter().cloned().collect();
            let found = domain.matcher().find(&[&call]);
            let found = found.first().map(|found| (found.policy.name().to_owned(), found.subject.clone()));
            prop_assert_eq!(&found, &naive(&rules, &entries), "{}\n{:?}", text, entries);
            let reported: Vec<_> = domain.matcher().explain(&[&call]).into_iter().filter(|reason| reason.matched).collect();
            prop_assert_eq!(reported.len(), usize::from(found.is_some()));
        }
    }
}
