//! The matcher of our own policy files: conditions on entries, partitions and overrides.

use std::sync::Arc;

use super::{CallerLimit, Description, Descriptor, Match, Matcher, Pattern, Policy, Reason, Subject};
use crate::limit::{IntoLimit, Limit, LimitError};

/// Which descriptors a policy applies to, what it counts by, and which callers have an override.
///
/// A rule applies to a descriptor that meets every condition and has every entry of the partition.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rule {
    conditions: Conditions,
    partition: Vec<String>,
    /// Another limit, or none, for descriptors that meet other conditions.
    overrides: Vec<(Conditions, Option<Limit>)>,
}

type Conditions = Vec<(String, Want)>;

/// What a condition requires of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Want {
    /// The value matches one of these patterns.
    OneOf(Vec<Pattern>),
    /// The entry is absent.
    Absent,
}

impl Rule {
    /// Creates a rule that applies to every descriptor and counts all calls together.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a condition.
    #[must_use]
    pub fn when(mut self, key: impl Into<String>, want: Want) -> Self {
        self.conditions.push((key.into(), want));
        self
    }

    /// Counts each value of this entry separately.
    #[must_use]
    pub fn partition(mut self, key: impl Into<String>) -> Self {
        self.partition.push(key.into());
        self
    }

    /// Adds an override: another limit for calls that meet these conditions, a [`Limit`] or its text. The first override
    /// whose conditions match applies.
    ///
    /// # Errors
    /// If the text is not a limit.
    pub fn override_limit(
        mut self,
        conditions: Vec<(String, Want)>,
        limit: impl IntoLimit,
    ) -> Result<Self, LimitError> {
        self.overrides.push((conditions, Some(limit.into_limit()?)));
        Ok(self)
    }

    /// Adds an override: no limit for calls that meet these conditions.
    #[must_use]
    pub fn override_unlimited(mut self, conditions: Vec<(String, Want)>) -> Self {
        self.overrides.push((conditions, None));
        self
    }

    /// The first condition that is not met.
    fn unmet(&self, descriptor: &Descriptor) -> Option<&(String, Want)> {
        self.conditions.iter().find(|(key, want)| !want.is_met(descriptor.get(key)))
    }

    /// The first entry of the partition that is missing.
    fn missing(&self, descriptor: &Descriptor) -> Option<&String> {
        self.partition.iter().find(|key| descriptor.get(key).is_none())
    }

    fn applies(&self, descriptor: &Descriptor) -> bool {
        self.unmet(descriptor).is_none() && self.missing(descriptor).is_none()
    }

    /// Why it does not apply.
    fn obstacle(&self, descriptor: &Descriptor) -> Option<String> {
        let unmet = self.unmet(descriptor).map(|(key, want)| want.obstacle(key, descriptor.get(key)));
        let missing = |key| format!("it counts by `{key}`, which is missing");
        unmet.or_else(|| self.missing(descriptor).map(missing))
    }

    fn caller_limit(&self, descriptor: &Descriptor) -> CallerLimit {
        let met = |(key, want): &(String, Want)| want.is_met(descriptor.get(key));
        match self.overrides.iter().find(|(conditions, _)| conditions.iter().all(met)) {
            Some((_, Some(limit))) => CallerLimit::Override(limit.clone()),
            Some((_, None)) => CallerLimit::Unlimited,
            None => CallerLimit::OfPolicy,
        }
    }

    fn subject_of(&self, descriptor: &Descriptor) -> Subject {
        Subject::new(self.partition.iter().filter_map(|key| Some((key.as_str(), descriptor.get(key)?))))
    }
}

impl Want {
    /// Requires a value that matches one of these patterns.
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

    /// The condition on `key`, for display.
    fn condition(&self, key: &str) -> String {
        match self {
            Self::Absent => format!("{key} is absent"),
            Self::OneOf(patterns) => {
                let wanted: Vec<String> = patterns.iter().map(ToString::to_string).collect();
                format!("{key} = {}", wanted.join(" or "))
            }
        }
    }

    /// Why it is not met.
    fn obstacle(&self, key: &str, value: Option<&str>) -> String {
        let found = value.map_or("it is missing".to_owned(), |value| format!("it is `{}`", value.escape_debug()));
        match self {
            Self::Absent => format!("`{key}` must be absent, but {found}"),
            Self::OneOf(patterns) => {
                let wanted: Vec<String> = patterns.iter().map(|pattern| format!("`{pattern}`")).collect();
                format!("`{key}` must be {}, but {found}", wanted.join(" or "))
            }
        }
    }
}

/// The policies of a domain with their rules.
#[derive(Debug)]
pub(super) struct Rules(pub(super) Vec<(Arc<Policy>, Rule)>);

impl Rules {
    fn pairs<'c>(
        &'c self,
        descriptors: &'c [&Descriptor],
    ) -> impl Iterator<Item = (&'c Arc<Policy>, &'c Rule, usize, &'c Descriptor)> {
        let of_rule = |(policy, rule)| descriptors.iter().enumerate().map(move |(at, one)| (policy, rule, at, *one));
        self.0.iter().map(|(policy, rule)| (policy, rule)).flat_map(of_rule)
    }
}

impl Matcher for Rules {
    fn find(&self, descriptors: &[&Descriptor]) -> Vec<Match> {
        let applies = self.pairs(descriptors).filter(|(_, rule, _, descriptor)| rule.applies(descriptor));
        let found = applies.map(|(policy, rule, at, descriptor)| {
            let found = Match::new(Arc::clone(policy), at, rule.subject_of(descriptor));
            found.with_limit(rule.caller_limit(descriptor))
        });
        found.collect()
    }

    fn explain(&self, descriptors: &[&Descriptor]) -> Vec<Reason> {
        let reasons = self.pairs(descriptors).map(|(policy, rule, at, descriptor)| {
            let obstacle = rule.obstacle(descriptor);
            let met = || {
                let overridden = rule.caller_limit(descriptor) != CallerLimit::OfPolicy;
                let own = if overridden { "; an override applies" } else { "" };
                format!("all conditions match; it counts {}{own}", rule.subject_of(descriptor).as_str().escape_debug())
            };
            Reason::new(Arc::clone(policy), at, obstacle.is_none(), obstacle.unwrap_or_else(met))
        });
        reasons.collect()
    }

    fn describe(&self) -> Vec<(Arc<Policy>, Description)> {
        let written = |conditions: &Conditions| conditions.iter().map(|(key, want)| want.condition(key)).collect();
        let describe = |(policy, rule): &(Arc<Policy>, Rule)| {
            let overrides = rule.overrides.iter().map(|(conditions, limit)| (written(conditions), limit.clone()));
            let description = Description::new(written(&rule.conditions), rule.partition.clone());
            (Arc::clone(policy), Description { overrides: overrides.collect(), ..description })
        };
        self.0.iter().map(describe).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rules(rule: Rule) -> Rules {
        Rules(vec![(Arc::new(Policy::new("p", "d", "1/s").unwrap()), rule)])
    }

    fn user(id: &str) -> Descriptor {
        Descriptor::new().with("user", id).with("plan", if id == "1" { "pro" } else { "free" })
    }

    #[test]
    fn a_rule_applies_where_every_condition_is_met() {
        let rule = Rule::new().when("path", Want::one_of(["/v1/*", "/health"])).when("bot", Want::Absent);
        let rules = rules(rule);
        let found = |descriptor: Descriptor| rules.find(&[&descriptor]).len();
        assert_eq!(found(Descriptor::new().with("path", "/v1/items")), 1);
        assert_eq!(found(Descriptor::new().with("path", "/health").with("x", "y")), 1);
        assert_eq!(found(Descriptor::new().with("path", "/v2")), 0);
        assert_eq!(found(Descriptor::new().with("path", "/v1/").with("bot", "yes")), 0);
        assert_eq!(found(Descriptor::new()), 0);
    }

    #[test]
    fn each_value_is_counted_separately_and_may_have_an_override() {
        let own: Limit = "1000/min".parse().unwrap();
        let pro = vec![("plan".to_owned(), Want::one_of(["pro"]))];
        let root = vec![("user".to_owned(), Want::one_of(["0"]))];
        let rule = Rule::new().partition("user").override_limit(pro, &own).unwrap().override_unlimited(root);
        let rules = rules(rule);
        let found = rules.find(&[&user("1"), &user("2"), &user("0"), &Descriptor::new().with("ip", "::1")]);
        let found: Vec<_> = found.into_iter().map(|one| (one.descriptor, one.subject, one.limit)).collect();
        assert_eq!(
            found,
            [
                (0, Subject::new([("user", "1")]), CallerLimit::Override(own)),
                (1, Subject::new([("user", "2")]), CallerLimit::OfPolicy),
                (2, Subject::new([("user", "0")]), CallerLimit::Unlimited)
            ]
        );
    }

    #[test]
    fn an_override_applies_where_every_condition_is_met_and_is_explained() {
        let conditions = [("plan", "pro"), ("user", "1")].map(|(key, value)| (key.to_owned(), Want::one_of([value])));
        let rules = rules(Rule::new().partition("user").override_unlimited(conditions.to_vec()));
        let other = Descriptor::new().with("user", "2").with("plan", "pro");
        let found = rules.find(&[&user("1"), &other]);
        assert_eq!([&found[0].limit, &found[1].limit], [&CallerLimit::Unlimited, &CallerLimit::OfPolicy]);
        let reasons = rules.explain(&[&user("1"), &other]);
        assert_eq!(
            [reasons[0].because.as_str(), reasons[1].because.as_str()],
            ["all conditions match; it counts user=1; an override applies", "all conditions match; it counts user=2"]
        );
    }

    proptest! {
        /// The decision and its explanation agree.
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
    fn an_explanation_says_why() {
        let rules = rules(Rule::new().when("plan", Want::one_of(["pro"])).partition("user"));
        let because = |descriptor: Descriptor| rules.explain(&[&descriptor]).remove(0).because;
        assert_eq!(because(user("1")), "all conditions match; it counts user=1");
        assert_eq!(because(user("2")), "`plan` must be `pro`, but it is `free`");
        assert_eq!(because(Descriptor::new().with("plan", "pro")), "it counts by `user`, which is missing");
    }

    #[test]
    fn a_description_says_what_a_policy_does() {
        let rule = Rule::new().when("path", Want::one_of(["/v1/*", "/v2/*"])).when("bot", Want::Absent);
        let pro = vec![("plan".to_owned(), Want::one_of(["pro"]))];
        let rules = rules(rule.partition("user").override_limit(pro, "9/s").unwrap());
        let (_, described) = rules.describe().remove(0);
        assert_eq!(described.conditions, ["path = /v1/* or /v2/*", "bot is absent"]);
        assert_eq!(described.partition, ["user"]);
        assert_eq!(described.overrides, [(vec!["plan = pro".to_owned()], Some("9/s".parse().unwrap()))]);
    }
}
