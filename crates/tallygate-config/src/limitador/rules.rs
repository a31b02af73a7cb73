//! How limitador finds its limits: every limit whose conditions hold and whose variables are there.

#[cfg(feature = "cel")]
use std::cell::OnceCell;
use std::collections::HashMap;

use tallygate::{Descriptor, Match, Matcher, Reason, Subject};

#[cfg(feature = "cel")]
use super::cel::{Program, Scope};
use super::shape::{Comparison, Entry};
use crate::finding::Place;

/// The limits of a namespace.
#[derive(Debug, Default)]
pub(crate) struct LimitadorRules {
    /// One for each policy, in the same order.
    pub rules: Vec<LimitadorRule>,
    /// What each is about, and where it stands.
    pub identities: HashMap<String, Place>,
}

/// Which calls a limit is about, and whom it counts.
#[derive(Debug)]
pub(crate) struct LimitadorRule {
    pub conditions: Vec<(String, Condition)>,
    pub variables: Vec<(String, Variable)>,
}

/// What must hold.
#[derive(Debug)]
pub(crate) enum Condition {
    Comparisons(Vec<Comparison>),
    #[cfg(feature = "cel")]
    Cel(Program),
}

/// What is counted apart.
#[derive(Debug)]
pub(crate) enum Variable {
    Entry(Entry),
    #[cfg(feature = "cel")]
    Cel(Program),
}

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
    /// The descriptor that is charged: the first that the limit speaks of.
    fn charged(&self, count: usize) -> usize {
        let mut entries: Vec<&Entry> = Vec::new();
        for (_, condition) in &self.conditions {
            match condition {
                Condition::Comparisons(all) => entries.extend(all.iter().map(|one| &one.entry)),
                #[cfg(feature = "cel")]
                Condition::Cel(_) => {}
            }
        }
        for (_, variable) in &self.variables {
            match variable {
                Variable::Entry(entry) => entries.push(entry),
                #[cfg(feature = "cel")]
                Variable::Cel(_) => {}
            }
        }
        let place = entries.into_iter().find_map(|entry| match entry {
            Entry::At(place, _) => Some(*place),
            Entry::Anywhere(_) => None,
        });
        place.filter(|place| *place < count).unwrap_or(0)
    }

    /// Whom it counts, or why it does not hold.
    fn subject(&self, call: &Call<'_>) -> Result<Subject, String> {
        for (source, condition) in &self.conditions {
            let holds = match condition {
                Condition::Comparisons(all) => all.iter().all(|one| one.holds(call.descriptors)),
                #[cfg(feature = "cel")]
                Condition::Cel(program) => program.holds(call.scope()),
            };
            if !holds {
                return Err(format!("`{}` does not hold", source.escape_debug()));
            }
        }
        let mut values = Vec::new();
        for (source, variable) in &self.variables {
            let value = match variable {
                Variable::Entry(entry) => entry.value(call.descriptors).map(str::to_owned),
                #[cfg(feature = "cel")]
                Variable::Cel(program) => program.text(call.scope()),
            };
            values.push((source, value.ok_or_else(|| format!("there is no `{}` here", source.escape_debug()))?));
        }
        Ok(Subject::new(values.iter().map(|(source, value)| (source.as_str(), value.as_str()))))
    }
}

impl Matcher for LimitadorRules {
    fn find(&self, descriptors: &[&Descriptor]) -> Vec<Match> {
        if descriptors.is_empty() {
            return Vec::new();
        }
        let call = Call::new(descriptors);
        let found = self.rules.iter().enumerate().filter_map(|(policy, rule)| {
            let subject = rule.subject(&call).ok()?;
            Some(Match { policy, descriptor: rule.charged(descriptors.len()), subject, limit: None })
        });
        found.collect()
    }

    fn explain(&self, descriptors: &[&Descriptor]) -> Vec<Reason> {
        if descriptors.is_empty() {
            return Vec::new();
        }
        let call = Call::new(descriptors);
        let reasons = self.rules.iter().enumerate().map(|(policy, rule)| {
            let subject = rule.subject(&call);
            let matched = subject.is_ok();
            let told =
                |subject: Subject| format!("every condition holds; it counts {}", subject.as_str().escape_debug());
            let because = subject.map_or_else(|why| why, told);
            Reason { policy, descriptor: rule.charged(descriptors.len()), matched, because }
        });
        reasons.collect()
    }
}
