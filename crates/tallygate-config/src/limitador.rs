//! The format of limitador: a list of limits, each with conditions and variables.

#[cfg(feature = "cel")]
mod cel;
mod rules;
mod shape;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tallygate::limit::LimitError;
use tallygate::policy::Policy;
use tallygate::{Algorithm, Limit};

use crate::config::{Draft, Matching, unused_name};
use crate::fields::{Fields, Names};
use crate::finding::{Place, Report};
use crate::node::Node;
pub(crate) use rules::LimitadorRules;
use rules::{Condition, Expression, LimitadorRule, Variable};
use shape::{Comparison, Entry};

const LIMIT: Names = &["namespace", "max_value", "seconds", "name", "id", "conditions", "variables"];

struct Written<'n> {
    namespace: &'n str,
    at: &'n Place,
    name: Option<&'n str>,
    limit: Limit,
    rule: LimitadorRule,
}

pub(crate) fn read(items: &[Node], draft: &mut Draft<'_>) {
    let mut written = Vec::new();
    for item in items {
        if !draft.has_room(&item.at) {
            return;
        }
        written.extend(limit(item, draft.findings));
    }
    let mut bearers: HashMap<(&str, &str), usize> = HashMap::new();
    for one in &written {
        *bearers.entry((one.namespace, one.name.unwrap_or_default())).or_default() += 1;
    }
    for one in written {
        let identity = identity(&one);
        let empty = Matching::Limitador(LimitadorRules::default());
        let findings = draft.findings;
        let Some(domain) = draft.domain(one.namespace, one.at, empty) else { continue };
        let Matching::Limitador(rules) = &mut domain.matching else { continue };
        if let Some(first) = rules.identities.get(&identity) {
            let message = format!("this limit repeats the one at {first}, which applies");
            findings.warn(one.at, message).help("drop one of them");
            continue;
        }
        // The identity names a limit, or its own name if no other limit has it.
        let alone = |name: &&str| bearers[&(one.namespace, *name)] == 1 && !domain.names.contains_key(*name);
        let name = match one.name {
            Some(name) if alone(&name) => name.to_owned(),
            Some(name) => format!("{name}: {identity}"),
            None => identity.clone(),
        };
        // The name of one limit may equal the identity of another.
        let name = unused_name(&name, |name| domain.names.contains_key(name));
        let policy = Policy::new(name.clone(), one.namespace, one.limit).expect("neither name is empty");
        domain.examples.push((name.clone(), one.rule.example()));
        domain.refusing.push(one.rule.required());
        domain.names.insert(name, one.at.clone());
        rules.identities.insert(identity, one.at.clone());
        rules.rules.push((Arc::new(policy), one.rule));
    }
}

/// The identity of a limit: its window, variables and conditions. `max_value` is not part of it, so that counts survive a
/// changed one.
fn identity(one: &Written<'_>) -> String {
    let variables: Vec<&str> = one.rule.variables.iter().map(|(source, _)| source.as_str()).collect();
    let conditions: Vec<&str> = one.rule.conditions.iter().map(|(source, _)| source.as_str()).collect();
    let mut text = format!("{}s", one.limit.window().as_secs());
    if !variables.is_empty() {
        text = format!("{text} by {}", variables.join(", "));
    }
    if !conditions.is_empty() {
        text = format!("{text} if {}", conditions.join(" && "));
    }
    text
}

fn limit<'n>(item: &'n Node, findings: &'n Report) -> Option<Written<'n>> {
    let fields = Fields::of(item, "a limit", LIMIT, findings)?;
    let namespace = fields.need_text("namespace", "example.org");
    let name = fields.some_text("name");
    let id = fields.text("id").map(|(id, _)| id);
    let numbers = numbers(fields);
    let about = About { name, id };
    let conditions = expressions(fields, "conditions", |source| about.condition(source));
    let variables = expressions(fields, "variables", |source| about.variable(source));
    let rule = LimitadorRule { conditions: conditions?, variables: variables? };
    Some(Written { namespace: namespace?.0, at: fields.at, name, limit: numbers?, rule })
}

fn numbers(fields: Fields<'_>) -> Option<Limit> {
    let findings = fields.findings;
    let amount = fields.need("max_value", "10").and_then(|_| fields.number("max_value"));
    let seconds = fields.need("seconds", "60").and_then(|_| fields.number("seconds"));
    let ((amount, amount_at), (seconds, seconds_at)) = (amount?, seconds?);
    let builder = Limit::builder(amount, Duration::from_secs(seconds));
    match builder.algorithm(Algorithm::FixedWindowFromFirstCall).build() {
        Ok(limit) => Some(limit),
        Err(error @ LimitError::TooLarge { .. }) => {
            let mut finding = findings.error(amount_at, error.to_string());
            finding.help("for no limit, drop the entry; otherwise use a shorter window");
            None
        }
        Err(_) => {
            findings.error(seconds_at, format!("`seconds` must be from 1 to 31536000 (a year), not {seconds}"));
            None
        }
    }
}

/// The expressions of a field, sorted and without duplicates: their order has no meaning. `None` if one is invalid.
fn expressions<T>(
    fields: Fields<'_>,
    name: &'static str,
    read: impl Fn(&str) -> Result<(T, bool), String>,
) -> Option<Vec<(String, T)>> {
    let findings = fields.findings;
    let mut all = BTreeMap::new();
    let mut complete = true;
    for node in fields.list(name) {
        let Some((source, at)) = node.text("an expression", findings) else { continue };
        match read(source) {
            Ok((expression, old)) => {
                if old {
                    let mut finding = findings.warn(at, format!("`{source}` is written as in limitador 1"));
                    finding.help("it is searched in every descriptor; write `descriptors[0]['key']` to name one");
                }
                all.insert(source.to_owned(), expression);
            }
            Err(why) => {
                findings.error(at, why);
                complete = false;
            }
        }
    }
    complete.then(|| all.into_iter().collect())
}

/// What expressions can refer to of their limit.
#[cfg_attr(not(feature = "cel"), expect(dead_code, reason = "only CEL can refer to it"))]
struct About<'n> {
    name: Option<&'n str>,
    id: Option<&'n str>,
}

impl About<'_> {
    /// The condition, and whether it is in the form of limitador 1.
    fn condition(&self, source: &str) -> Result<(Condition, bool), String> {
        let all = Comparison::read_all(source);
        let old = all.iter().flatten().any(|one| matches!(one.entry, Entry::Anywhere(_)));
        Ok((self.expression(source, all, "descriptors[0]['key'] == 'value'")?, old))
    }

    /// The variable, and whether it is in the form of limitador 1.
    fn variable(&self, source: &str) -> Result<(Variable, bool), String> {
        let entry = Entry::read(source);
        let old = matches!(entry, Some(Entry::Anywhere(_)));
        Ok((self.expression(source, entry, "descriptors[0]['key']")?, old))
    }

    #[cfg(feature = "cel")]
    fn expression<T>(&self, source: &str, plain: Option<T>, _: &str) -> Result<Expression<T>, String> {
        let program = || cel::Program::new(source, self.name, self.id).map(Expression::Cel);
        plain.map_or_else(program, |plain| Ok(Expression::Plain(plain)))
    }

    #[cfg(not(feature = "cel"))]
    fn expression<T>(&self, source: &str, plain: Option<T>, shape: &str) -> Result<Expression<T>, String> {
        let message =
            || format!("`{source}` is not of the form `{shape}`: other CEL needs a build with the feature `cel`");
        plain.map(Expression::Plain).ok_or_else(message)
    }
}
