//! How limitador finds its limits: every limit whose conditions are true and whose variables are present.

#[cfg(feature = "cel")]
use std::cell::OnceCell;
use std::collections::HashMap;
use std::sync::Arc;

use tallygate::policy::{Description, Descriptor, Match, Matcher, Policy, Reason, Subject, Want};

#[cfg(feature = "cel")]
use super::cel::{Program, Scope};
use super::shape::{Comparison, Entry};
use crate::crowd::Conditions;
use crate::finding::Place;

#[derive(Debug, Default)]
pub(crate) struct LimitadorRules {
    pub rules: Vec<(Arc<Policy>, LimitadorRule)>,
    /// What each is about, and where it stands.
    pub identities: HashMap<String, Place>,
}

/// Which calls a limit is about, and whom it counts.
#[derive(Debug)]
pub(crate) struct LimitadorRule {
    pub conditions: Vec<(String, Condition)>,
    pub variables: Vec<(String, Variable)>,
}

/// Of a common shape, or full CEL.
#[derive(Debug)]
pub(crate) enum Expression<T> {
    Plain(T),
    #[cfg(feature = "cel")]
    Cel(Program),
}

impl<T> Expression<T> {
    fn plain(&self) -> Option<&T> {
        match self {
            Self::Plain(plain) => Some(plain),
            #[cfg(feature = "cel")]
            Self::Cel(_) => None,
        }
    }
}

/// What must hold.
pub(crate) type Condition = Expression<Vec<Comparison>>;

/// What is counted apart.
pub(crate) type Variable = Expression<Entry>;

/// A call, as conditions and variables see it.
struct Call<'c> {
    descriptors: &'c [&'c Descriptor],
    /// Made when the first expression asks for it.
    #[cfg(feature = "cel")]
    scope: OnceCell<Scope>,
}

impl<'c> Call<'c> {
    fn new(descriptors: &'c [&'c Descriptor]) -> Self {
        Self {
            descriptors,
            #[cfg(feature = "cel")]
            scope: OnceCell::new(),
        }
    }

    #[cfg(feature = "cel")]
    fn scope(&self) -> &Scope {
        self.scope.get_or_init(|| Scope::new(self.descriptors))
    }
}

impl LimitadorRule {
    /// One descriptor that meets the conditions and has the variables, as far as that can be seen.
    pub fn example(&self) -> Descriptor {
        let key = |entry: &Entry| match entry {
            Entry::At(_, key) | Entry::Anywhere(key) => key.clone(),
        };
        let mut descriptor = Descriptor::new();
        for one in self.conditions.iter().filter_map(|(_, condition)| condition.plain()).flatten() {
            let value = if one.equal { one.text.clone() } else { format!("not-{}", one.text) };
            if descriptor.get(&key(&one.entry)).is_none() {
                descriptor.push(key(&one.entry), value);
            }
        }
        for entry in self.variables.iter().filter_map(|(_, variable)| variable.plain()) {
            if descriptor.get(&key(entry)).is_none() {
                descriptor.push(key(entry), "me");
            }
        }
        descriptor
    }

    /// What a call must have for this limit to apply, as far as that can be seen: where values must be equal.
    pub fn required(&self) -> Conditions {
        let conditions = self.conditions.iter().filter_map(|(_, condition)| condition.plain()).flatten();
        let required = conditions.filter(|one| one.equal).map(|one| match &one.entry {
            Entry::At(place, key) => (format!("{place} {key}"), Want::one_of([one.text.as_str()])),
            Entry::Anywhere(key) => (key.clone(), Want::one_of([one.text.as_str()])),
        });
        required.collect()
    }

    /// The descriptor that is charged: the first that the limit refers to.
    fn charged(&self, count: usize) -> usize {
        let conditions = self.conditions.iter().filter_map(|(_, condition)| condition.plain()).flatten();
        let variables = self.variables.iter().filter_map(|(_, variable)| variable.plain());
        let place = conditions.map(|one| &one.entry).chain(variables).find_map(|entry| match entry {
            Entry::At(place, _) => Some(*place),
            Entry::Anywhere(_) => None,
        });
        place.filter(|place| *place < count).unwrap_or(0)
    }

    /// Whom it counts, or why it does not hold.
    fn subject(&self, call: &Call<'_>) -> Result<Subject, String> {
        for (source, condition) in &self.conditions {
            let holds = match condition {
                Expression::Plain(all) => all.iter().all(|one| one.holds(call.descriptors)),
                #[cfg(feature = "cel")]
                Expression::Cel(program) => program.holds(call.scope()),
            };
            if !holds {
                return Err(format!("`{source}` is not true"));
            }
        }
        let mut values = Vec::new();
        for (source, variable) in &self.variables {
            let value = match variable {
                Expression::Plain(entry) => entry.value(call.descriptors).map(str::to_owned),
                #[cfg(feature = "cel")]
                Expression::Cel(program) => program.text(call.scope()),
            };
            values.push((source, value.ok_or_else(|| format!("`{source}` is missing"))?));
        }
        Ok(Subject::new(values.iter().map(|(source, value)| (source.as_str(), value.as_str()))))
    }
}

impl LimitadorRules {
    pub fn policies(&self) -> Vec<Arc<Policy>> {
        self.rules.iter().map(|(policy, _)| Arc::clone(policy)).collect()
    }

    /// For each policy the descriptor that is charged, and the subject or why it does not apply. Without a descriptor
    /// there is nothing to charge.
    fn judged(
        &self,
        descriptors: &[&Descriptor],
    ) -> impl Iterator<Item = (Arc<Policy>, usize, Result<Subject, String>)> {
        let (count, call) = (descriptors.len(), Call::new(descriptors));
        let rules = self.rules.iter().filter(move |_| count > 0);
        rules.map(move |(policy, rule)| (Arc::clone(policy), rule.charged(count), rule.subject(&call)))
    }
}

impl Matcher for LimitadorRules {
    fn find(&self, descriptors: &[&Descriptor]) -> Vec<Match> {
        let found = self
            .judged(descriptors)
            .filter_map(|(policy, descriptor, subject)| Some(Match::new(policy, descriptor, subject.ok()?)));
        found.collect()
    }

    fn explain(&self, descriptors: &[&Descriptor]) -> Vec<Reason> {
        let reasons = self.judged(descriptors).map(|(policy, descriptor, subject)| {
            let matched = subject.is_ok();
            let counted = |subject: Subject| format!("every condition is true; it counts {}", subject.as_str());
            Reason::new(policy, descriptor, matched, subject.map_or_else(|why| why, counted))
        });
        reasons.collect()
    }

    fn describe(&self) -> Vec<(Arc<Policy>, Description)> {
        let describe = |(policy, rule): &(Arc<Policy>, LimitadorRule)| {
            let conditions = rule.conditions.iter().map(|(source, _)| source.clone()).collect();
            let variables = rule.variables.iter().map(|(source, _)| source.clone()).collect();
            (Arc::clone(policy), Description::new(conditions, variables))
        };
        self.rules.iter().map(describe).collect()
    }
}
