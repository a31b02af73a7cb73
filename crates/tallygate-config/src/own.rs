//! Our own format: `policies`, each with whom it is about, whom it counts, and how much.

use std::collections::{HashMap, HashSet};
use std::fmt::Display;
use std::str::FromStr;

use tallygate::{Algorithm, Limit, LimitError, Pattern, Policy, Rule, Want};

use crate::config::{Draft, Matching};
use crate::fields::{Fields, Names};
use crate::finding::{Place, Report};
use crate::node::{Kind, Node};

pub(crate) const TOP: Names = &["store", "policies"];
pub(crate) const POLICY: Names =
    &["name", "domain", "match", "partition", "limit", "algorithm", "mode", "on_error", "excess", "near", "overrides"];
pub(crate) const OVERRIDE: Names = &["match", "limit"];

/// The domain of policies that name none.
const DEFAULT_DOMAIN: &str = "default";
/// Names end up as labels of metrics.
const LONGEST_NAME: usize = 128;

pub(crate) fn read(file: &Node, draft: &mut Draft<'_>) {
    let Some(top) = Fields::of(file, "the file", TOP, draft.findings) else { return };
    if let Some(store) = top.get("store") {
        draft.set_store(store);
    }
    let policies = top.list("policies");
    if policies.is_empty() && top.get("store").is_none() && top.unknown().next().is_none() {
        draft.findings.warn(top.at, "there are no policies here: nothing is limited");
    }
    let mut seen = HashMap::new();
    for node in policies {
        if !draft.has_room(&node.at) {
            return;
        }
        add(node, &mut seen, draft);
    }
}

/// `seen` knows what each policy of the file counts, to find two that count the same.
fn add(node: &Node, seen: &mut HashMap<String, String>, draft: &mut Draft<'_>) {
    let findings = draft.findings;
    let Some(fields) = Fields::of(node, "a policy", POLICY, findings) else { return };
    let domain = fields.text("domain");
    let (domain, domain_at) = domain.unwrap_or((DEFAULT_DOMAIN, fields.at));
    if domain.is_empty() {
        findings.error(domain_at, "`domain` is empty").help("leave it out for the domain `default`");
        return;
    }
    let name = fields.need("name", "per-user").and_then(|_| fields.text("name"));
    let name = name.filter(|(name, at)| is_name(name, at, findings));
    let rule = Rule::new();
    let rule =
        conditions(fields.get("match"), findings).into_iter().fold(rule, |rule, (key, want)| rule.when(key, want));
    let partition = partition(fields);
    if fields.get("match").is_none() && partition.is_empty() {
        let mut finding = findings.warn(fields.at, "neither `match` nor `partition`: all callers share one count");
        finding.help("name the entries to count by, for example `partition: [user]`");
    }
    let rule = partition.into_iter().fold(rule, |rule, key| rule.partition(key));
    let algorithm = word::<Algorithm>(fields, "algorithm");
    let limit = fields.need("limit", "100/min").and_then(|node| self::limit(node, algorithm, findings));
    if let (Some(algorithm), Some(Some(limit))) = (algorithm, &limit)
        && limit.algorithm() != algorithm
    {
        let message = format!("`limit` says {}, and `algorithm` says {algorithm}: drop one", limit.algorithm());
        findings.error(fields.at, message);
    }
    let inherited = algorithm.or(limit.as_ref().and_then(|limit| limit.as_ref().map(Limit::algorithm)));
    let rule = overrides(fields, rule, limit.as_ref(), inherited);
    let (mode, on_error) = (word(fields, "mode"), word(fields, "on_error"));
    let (excess, near) = (word(fields, "excess"), near(fields));
    let (Some((name, name_at)), Some(limit)) = (name, limit) else { return };

    let counts = format!("{domain:?} {rule:?} {limit:?}");
    if let Some(other) = seen.insert(counts, name.to_owned()) {
        let message = format!("`{name}` counts what `{other}` counts, to the same limit: one of them is not needed");
        findings.warn(name_at, message);
    }
    let mut policy = Policy::new(name, domain, limit).expect("neither name is empty");
    policy = policy.with_mode(mode.unwrap_or_default()).with_on_error(on_error.unwrap_or_default());
    policy = policy.with_excess(excess.unwrap_or_default());
    if let Some(near) = near {
        policy = policy.with_near(near);
    }
    let Some(domain) = draft.domain(domain, domain_at, Matching::Own(Vec::new())) else { return };
    if let Some(first) = domain.names.insert(name.to_owned(), name_at.clone()) {
        let mut finding = findings.error(name_at, format!("`{name}` is already the name of the policy at {first}"));
        finding.help("their counts would mix; rename one");
        return;
    }
    if let Matching::Own(rules) = &mut domain.matching {
        rules.push(rule);
        domain.policies.push(policy);
    }
}

fn is_name(name: &str, at: &Place, findings: &Report) -> bool {
    let wrong = match name {
        "" => "a name cannot be empty".to_owned(),
        tallygate::Domain::REQUESTED => {
            format!("`{name}` is the name for limits that a request brings along; choose another")
        }
        _ if name.chars().count() > LONGEST_NAME => format!("a name has at most {LONGEST_NAME} characters"),
        _ if name.contains(char::is_control) => "a name is one line without control characters".to_owned(),
        _ => return true,
    };
    findings.error(at, wrong);
    false
}

/// A field that is one of a closed set of words.
fn word<T: FromStr<Err: Display>>(fields: Fields<'_>, name: &str) -> Option<T> {
    let (word, at) = fields.text(name)?;
    word.parse().map_err(|error: T::Err| fields.findings.error(at, error.to_string())).ok()
}

fn near(fields: Fields<'_>) -> Option<u8> {
    let (percent, at) = fields.number("near")?;
    let near = u8::try_from(percent).ok().filter(|percent| (1..=100).contains(percent));
    if near.is_none() {
        fields.findings.error(at, format!("`near` is a percentage from 1 to 100, not {percent}"));
    }
    near
}

fn conditions(node: Option<&Node>, findings: &Report) -> Vec<(String, Want)> {
    let Some(node) = node else { return Vec::new() };
    let Kind::Map(entries) = &node.kind else {
        let mut finding = findings.error(&node.at, format!("`match` must be a mapping, not {}", node.what()));
        finding.help("for example `match: {plan: free, path: /v1/*}`");
        return Vec::new();
    };
    let wants = entries.iter().filter_map(|(key, value)| {
        let (key, _) = key.text("the key of an entry", findings)?;
        Some((key.to_owned(), want(key, value, findings)?))
    });
    wants.collect()
}

fn want(key: &str, value: &Node, findings: &Report) -> Option<Want> {
    let patterns = match &value.kind {
        Kind::Null => return Some(Want::Absent),
        Kind::List(items) if items.is_empty() => {
            let message = format!("`{}` matches nothing: the list is empty", key.escape_debug());
            findings.error(&value.at, message).help("write `null` if the entry must be absent");
            return None;
        }
        Kind::List(items) => items.as_slice(),
        _ => std::slice::from_ref(value),
    };
    let texts = patterns.iter().map(|pattern| pattern.text("a value to match", findings));
    let texts: Option<Vec<_>> = texts.collect();
    Some(Want::OneOf(texts?.into_iter().map(|(text, _)| Pattern::new(text)).collect()))
}

/// One key, or a list of them.
fn partition(fields: Fields<'_>) -> Vec<String> {
    let findings = fields.findings;
    let Some(node) = fields.get("partition") else { return Vec::new() };
    let nodes = if node.scalar().is_some() { std::slice::from_ref(node) } else { node.list("`partition`", findings) };
    let mut keys: Vec<String> = Vec::new();
    for (key, at) in nodes.iter().filter_map(|node| node.text("the key to count by", findings)) {
        if keys.iter().any(|known| known == key) {
            findings.error(at, format!("`{}` is already counted by", key.escape_debug()));
        }
        keys.push(key.to_owned());
    }
    keys
}

fn overrides(fields: Fields<'_>, mut rule: Rule, base: Option<&Option<Limit>>, algorithm: Option<Algorithm>) -> Rule {
    let findings = fields.findings;
    // By what is written: there may be one for each of thousands of customers.
    let mut seen = HashSet::new();
    for node in fields.list("overrides") {
        let Some(own) = Fields::of(node, "an override", OVERRIDE, findings) else { continue };
        let conditions = own.need("match", "{plan: pro}").map(|node| conditions(Some(node), findings));
        let limit = own.need("limit", "1000/min").and_then(|node| limit(node, algorithm, findings));
        let (Some(conditions), Some(limit)) = (conditions, limit) else { continue };
        if conditions.is_empty() {
            findings.error(own.at, "an override of all callers").help("change the policy's own limit, or say whose");
        } else if !seen.insert(format!("{conditions:?}")) {
            findings.warn(own.at, "never reached: an override above has the same `match`");
        } else if base == Some(&limit) {
            findings.warn(own.at, "the limit is the policy's own: nothing is overridden");
        }
        rule = rule.or(conditions, limit);
    }
    rule
}

/// The limit that is written, `Some(None)` for none at all; `None` if it makes no sense.
fn limit(node: &Node, algorithm: Option<Algorithm>, findings: &Report) -> Option<Option<Limit>> {
    let (written, at) = node.text("`limit`", findings)?;
    if written.trim() == "unlimited" {
        return Some(None);
    }
    match Limit::parse_with(written, algorithm) {
        Ok(limit) => Some(Some(limit)),
        Err(error) => {
            // The caret would stand in a line of its own.
            let message = match &error {
                LimitError::Syntax { text, at, problem } => {
                    format!("`{text}` is not a limit: {problem} (character {})", at + 1)
                }
                other => other.to_string(),
            };
            findings.error(at, message);
            None
        }
    }
}
