//! Matching as our own files write it: conditions on entries, whom to count, and limits of single values.

use super::{Match, Matcher, Pattern, Reason, Subject};
use crate::descriptor::Descriptor;
use crate::limit::Limit;

/// Which descriptors a policy is about, whom it counts there, and who has a limit of their own.
///
/// A rule applies to a descriptor that meets every condition and has every entry that the partition names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rule {
    conditions: Conditions,
    partition: Vec<String>,
    /// Another limit, or none at all, for who meets other conditions.
    overrides: Vec<(Conditions, Option<Limit>)>,
}

type Conditions = Vec<(String, Want)>;

/// What a condition wants of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Want {
    /// A value of one of these forms.
    OneOf(Vec<Pattern>),
    /// That there is none.
    Absent,
}

impl Rule {
    /// Applies to every descriptor, and counts all calls together.
    pub fn new() -> Self {
        Self::default()
    }

    /// One condition more.
    #[must_use]
    pub fn when(mut self, key: impl Into<String>, want: Want) -> Self {
        self.conditions.push((key.into(), want));
        self
    }

    /// Counts each value of this entry apart.
    #[must_use]
    pub fn partition(mut self, key: impl Into<String>) -> Self {
        self.partition.push(key.into());
        self
    }

    /// Another limit for calls that meet these conditions, or none at all; the first that fits holds.
    #[must_use]
    pub fn or(mut self, conditions: Vec<(String, Want)>, limit: Option<Limit>) -> Self {
        self.overrides.push((conditions, limit));
        self
    }

    /// The first condition that is not met.
    fn unmet(&self, descriptor: &Descriptor) -> Option<&(String, Want)> {
        self.conditions.iter().find(|(key, want)| !want.is_met(descriptor.get(key)))
    }

    /// The first entry to count by that is not there.
    fn missing(&self, descriptor: &Descriptor) -> Option<&String> {
        self.partition.iter().find(|key| descriptor.get(key).is_none())
    }

    fn applies(&self, descriptor: &Descriptor) -> bool {
        self.unmet(descriptor).is_none() && self.missing(descriptor).is_none()
    }

    /// What keeps it from applying, in words.
    fn obstacle(&self, descriptor: &Descriptor) -> Option<String> {
        let unmet = self.unmet(descriptor).map(|(key, want)| want.obstacle(key, descriptor.get(key)));
        let missing = |key| format!("it counts by `{key}`, and there is no such entry");
        unmet.or_else(|| self.missing(descriptor).map(missing))
    }

    fn own_limit(&self, descriptor: &Descriptor) -> Option<Option<Limit>> {
        let met = |(key, want): &(String, Want)| want.is_met(descriptor.get(key));
        self.overrides.iter().find(|(conditions, _)| conditions.iter().all(met)).map(|(_, limit)| limit.clone())
    }

    fn subject_of(&self, descriptor: &Descriptor) -> Subject {
        Subject::new(self.partition.iter().filter_map(|key| Some((key.as_str(), descriptor.get(key)?))))
    }
}

impl Want {
    /// One of these forms.
    pub fn one_of<'p>(patterns: impl IntoIterator<Item = &'p str>) -> Self {
        Self::OneOf(patterns.into_iter().map(Pattern::new).collect())
    }

    fn is_met(&self, value: Option<&str>) -> bool {
        match (self, value) {
            (Self::Absent, value) => value.is_none(),
            (Self::OneOf(_), None) => false,
            (Self::OneOf(patterns), Some(value)) => patterns.iter().any(|pattern| pattern.matches(value)),
        }
    }

    /// Why it is not met.
    fn obstacle(&self, key: &str, value: Option<&str>) -> String {
        let found = value.map_or("there is none".to_owned(), |value| format!("it is `{}`", value.escape_debug()));
        match self {
            Self::Absent => format!("`{key}` must be absent, and {found}"),
            Self::OneOf(patterns) => {
                let wanted: Vec<String> = patterns.iter().map(|pattern| format!("`{pattern}`")).collect();
                format!("it wants `{key}` to be {}, and {found}", wanted.join(" or "))
            }
        }
    }
}

/// One rule for each policy of a domain, in the same order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rules(pub Vec<Rule>);

impl Rules {
    fn pairs<'c>(
        &'c self,
        descriptors: &'c [&Descriptor],
    ) -> impl Iterator<Item = (usize, &'c Rule, usize, &'c Descriptor)> {
        let rules = self.0.iter().enumerate();
        rules.flat_map(|(policy, rule)| descriptors.iter().enumerate().map(move |(at, one)| (policy, rule, at, *one)))
    }
}

impl Matcher for Rules {
    fn find(&self, descriptors: &[&Descriptor]) -> Vec<Match> {
        let applies = self.pairs(descriptors).filter(|(_, rule, _, descriptor)| rule.applies(descriptor));
        let found = applies.map(|(policy, rule, at, descriptor)| Match {
            policy,
            descriptor: at,
            subject: rule.subject_of(descriptor),
            limit: rule.own_limit(descriptor),
        });
        found.collect()
    }

    fn explain(&self, descriptors: &[&Descriptor]) -> Vec<Reason> {
        let reasons = self.pairs(descriptors).map(|(policy, rule, at, descriptor)| {
            let obstacle = rule.obstacle(descriptor);
            let met = || {
                let own = if rule.own_limit(descriptor).is_some() { "; a limit of its own holds" } else { "" };
                format!(
                    "every condition is met; it counts {}{own}",
                    rule.subject_of(descriptor).as_str().escape_debug()
                )
            };
            Reason { policy, descriptor: at, matched: obstacle.is_none(), because: obstacle.unwrap_or_else(met) }
        });
        reasons.collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn user(id: &str) -> Descriptor {
        Descriptor::new().with("user", id).with("plan", if id == "1" { "pro" } else { "free" })
    }

    #[test]
    fn a_rule_applies_where_every_condition_is_met() {
        let rule = Rule::new().when("path", Want::one_of(["/v1/*", "/health"])).when("bot", Want::Absent);
        let rules = Rules(vec![rule]);
        let found = |descriptor: Descriptor| rules.find(&[&descriptor]).len();
        assert_eq!(found(Descriptor::new().with("path", "/v1/items")), 1);
        assert_eq!(found(Descriptor::new().with("path", "/health").with("x", "y")), 1);
        assert_eq!(found(Descriptor::new().with("path", "/v2")), 0);
        assert_eq!(found(Descriptor::new().with("path", "/v1/").with("bot", "yes")), 0);
        assert_eq!(found(Descriptor::new()), 0);
    }

    #[test]
    fn each_value_is_counted_apart_and_may_have_a_limit_of_its_own() {
        let own: Limit = "1000/min".parse().unwrap();
        let pro = vec![("plan".to_owned(), Want::one_of(["pro"]))];
        let root = vec![("user".to_owned(), Want::one_of(["0"]))];
        let rules = Rules(vec![Rule::new().partition("user").or(pro, Some(own.clone())).or(root, None)]);
        let found = rules.find(&[&user("1"), &user("2"), &user("0"), &Descriptor::new().with("ip", "::1")]);
        let found: Vec<_> = found.into_iter().map(|one| (one.descriptor, one.subject, one.limit)).collect();
        assert_eq!(
            found,
            [
                (0, Subject::new([("user", "1")]), Some(Some(own))),
                (1, Subject::new([("user", "2")]), None),
                (2, Subject::new([("user", "0")]), Some(None))
            ]
        );
    }

    proptest! {
        /// What is decided, and what people are told about it.
        #[test]
        fn what_applies_is_what_has_no_obstacle(
            wants in prop::collection::vec(("[ab]", prop::option::of(prop::collection::vec("[xy*]{0,2}", 1..3))), 0..3),
            partition in prop::collection::vec("[ab]", 0..2),
            entries in prop::collection::vec(("[ab]", "[xy]{0,2}"), 0..3),
        ) {
            let want = |patterns: Option<Vec<String>>| match patterns {
                Some(patterns) => Want::one_of(patterns.iter().map(String::as_str)),
                None => Want::Absent,
            };
            let rule = wants.into_iter().fold(Rule::new(), |rule, (key, patterns)| rule.when(key, want(patterns)));
            let rule = partition.into_iter().fold(rule, Rule::partition);
            let descriptor: Descriptor = entries.into_iter().collect();
            prop_assert_eq!(rule.applies(&descriptor), rule.obstacle(&descriptor).is_none());
        }
    }

    #[test]
    fn people_are_told_why() {
        let rules = Rules(vec![Rule::new().when("plan", Want::one_of(["pro"])).partition("user")]);
        let told = |descriptor: Descriptor| rules.explain(&[&descriptor]).remove(0).because;
        assert_eq!(told(user("1")), "every condition is met; it counts user=1");
        assert_eq!(told(user("2")), "it wants `plan` to be `pro`, and it is `free`");
        assert_eq!(told(Descriptor::new().with("plan", "pro")), "it counts by `user`, and there is no such entry");
    }
}
