//! Our own format: `policies`, each with what it matches, what it counts by, and its limit.

mod holds;
mod hot_keys;
mod payers;

use std::collections::{HashMap, HashSet};
use std::fmt::Display;
use std::str::FromStr;

use tallygate::limit::LimitError;
use tallygate::policy::{Descriptor, Mode, OnError, Pattern, Policy, Rule, Share, ShareError, Want};
use tallygate::words::nearest;
use tallygate::{Algorithm, Limit};

use crate::config::{Draft, Matching, fill_in};
use crate::fields::{Fields, Names, suggestion};
use crate::finding::{Place, Report};
use crate::node::{Kind, Node};
use hot_keys::{allotment, cache_denials};
#[cfg(test)]
pub(crate) use payers::PAYER;

pub(crate) const TOP: Names = &["store", "policies"];
pub(crate) const POLICY: Names = &[
    "name",
    "domain",
    "match",
    "partition",
    "limit",
    "payers",
    "algorithm",
    "mode",
    "on_error",
    "cache_denials",
    "allotment",
    "holds",
    "excess",
    "near",
    "overrides",
];
pub(crate) const OVERRIDE: Names = &["match", "limit"];

/// The domain of policies that do not name one.
const DEFAULT_DOMAIN: &str = "default";
/// Names become labels of metrics.
const LONGEST_NAME: usize = 128;

pub(crate) fn read(file: &Node, draft: &mut Draft<'_>) {
    if let Some((message, help)) = mistaken(file) {
        draft.findings.error(&file.at, message).help(help);
        return;
    }
    let before = draft.findings.errors();
    let Some(top) = Fields::of(file, "the file", TOP, draft.findings) else { return };
    if let Some(store) = top.get("store") {
        draft.set_store(store);
    }
    let (policies, errors) = (top.list("policies"), draft.findings.errors());
    if policies.is_empty() && top.get("store").is_none() && errors == before {
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

/// What a file is that was probably not meant to be read as policies, and what to do.
fn mistaken(file: &Node) -> Option<(String, &'static str)> {
    let has = |names: &[&str]| names.iter().all(|name| file.child(name).is_some());
    let found = if has(&["apiVersion", "kind"]) {
        let kind = file.child("kind").and_then(Node::scalar).unwrap_or_default();
        let help = "use the text of the file inside it: for a ConfigMap, the value of a key of its `data`";
        (format!("this is a Kubernetes manifest (`kind: {kind}`), not a policy file"), help)
    } else if has(&["namespace"]) && (has(&["max_value"]) || has(&["seconds"])) {
        (
            "this is a limit of limitador that is not in a list".to_owned(),
            "put `- ` before it, and indent its other lines",
        )
    } else if has(&["static_resources"]) || has(&["dynamic_resources"]) {
        let help = "limits are in the files of its rate limit service, which begin with `domain:`";
        ("this is the configuration of Envoy itself, not of its rate limits".to_owned(), help)
    } else if has(&["services"]) {
        ("this is a Compose file, not a policy file".to_owned(), "name the file with the policies")
    } else if has(&["limit"]) && !has(&["policies"]) {
        ("this is a policy that is not in a list".to_owned(), "put it under `policies:`, with `- ` before it")
    } else {
        return None;
    };
    Some(found)
}

/// What to write instead of an unknown field of a policy.
fn instead_of(field: &str, value: &Node, fields: Fields<'_>) -> String {
    if field == "limits" && value.scalar().is_none() {
        return "a policy has one `limit`: write `limit: 100/min`, and those of other callers under `overrides`"
            .to_owned();
    }
    let value = value.scalar().unwrap_or("20");
    match field {
        "burst" => {
            let limit = fields.get("limit").and_then(Node::scalar).unwrap_or("100/min");
            format!("the burst is part of the limit: write `limit: {limit} burst {value}`")
        }
        "window" | "seconds" | "period" | "interval" | "unit" | "per" | "rate" | "requests" | "requests_per_unit" => {
            "amount and window are one field: write for example `limit: 100/min`".to_owned()
        }
        "shadow" | "shadow_mode" | "dry_run" => "write `mode: shadow`".to_owned(),
        "by" | "key" | "keys" => "write `partition: [user]` to count each value of `user` separately".to_owned(),
        "share" | "local_share" => "write `on_error: local 25%`".to_owned(),
        "fail_open" => "write `on_error: allow`".to_owned(),
        "fail_closed" => "write `on_error: deny`".to_owned(),
        _ => suggestion(field, POLICY, "its fields are"),
    }
}

/// `seen` knows what each policy of the file counts, to find two that count the same.
fn add(node: &Node, seen: &mut HashMap<String, String>, draft: &mut Draft<'_>) {
    let findings = draft.findings;
    let before = findings.errors();
    let Some(fields) = Fields::open(node, "a policy", POLICY, findings) else { return };
    for (key, value) in fields.unknown() {
        fields.refuse_with(key, |word| instead_of(word, value, fields));
    }
    let domain = fields.text("domain");
    let (domain, domain_at) = domain.unwrap_or((DEFAULT_DOMAIN, fields.at));
    if domain.is_empty() {
        findings.error(domain_at, "`domain` is empty").help("leave it out for the domain `default`");
        return;
    }
    let name = fields.need("name", "per-user").and_then(|_| fields.text("name"));
    let name = name.filter(|(name, at)| is_name(name, at, findings));
    let (conditions, partition) = (conditions(fields.get("match"), findings), partition(fields));
    let example = example(&conditions, &partition);
    let crowd = conditions.clone();
    let rule = conditions.into_iter().fold(Rule::new(), |rule, (key, want)| rule.when(key, want));
    // A field that is not known may have been meant to be one of these.
    let unclear = |(key, _): &(Node, Node)| {
        key.scalar().and_then(|key| nearest(key, POLICY)).is_none_or(|near| matches!(near, "match" | "partition"))
    };
    if ["match", "partition"].iter().all(|name| fields.get(name).is_none()) && !fields.unknown().any(unclear) {
        let mut finding = findings.warn(fields.at, "neither `match` nor `partition`: all callers share one count");
        finding.help("name the entries to count by, for example `partition: [user]`, or write `partition: []`");
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
    let (mode, on_error, cache) = (word(fields, "mode"), on_error(fields), cache_denials(fields));
    let holds = holds::holds(fields);
    let concurrency = limit.iter().flatten().any(Limit::is_concurrency);
    if concurrency {
        holds::of_concurrency(fields);
    }
    let (excess, near) = (word(fields, "excess"), near(fields));
    let (Some((name, name_at)), Some(limit)) = (name, limit) else { return };

    let counts = format!("{domain:?} {rule:?} {limit:?} {}", fields.get("payers").is_some());
    // With an error in it, nobody knows what it was meant to count.
    if findings.errors() == before
        && let Some(other) = seen.insert(counts, name.to_owned())
        // Two policies of one name are an error of their own.
        && other != name
    {
        let message = format!("`{name}` counts what `{other}` counts, to the same limit: one of them is redundant");
        findings.warn(name_at, message);
    }
    let policy = match limit {
        Some(limit) => Policy::new(name, domain, limit),
        None => Policy::unlimited(name, domain),
    };
    let mut policy = policy.expect("neither name is empty");
    // What is in flight has no share: nobody would give it back.
    let usual = if concurrency { OnError::Allow } else { OnError::default() };
    let (on_error, share) = on_error.unwrap_or((usual, None));
    policy = policy.with_mode(mode.unwrap_or_default()).with_on_error(on_error).with_share(share);
    policy = policy.with_cache_denials(cache).with_holds(holds);
    policy = policy.with_allotment(allotment(fields).unwrap_or_default());
    policy = policy.with_excess(excess.unwrap_or_default());
    policy = payers::payers(fields, policy, algorithm);
    if let Some(near) = near {
        policy = policy.with_near(near);
    }
    let Some(domain) = draft.domain(domain, domain_at, Matching::Own(Vec::new())) else { return };
    if let Some(first) = domain.names.insert(name.to_owned(), name_at.clone()) {
        let mut finding = findings.error(name_at, format!("`{name}` is already the name of the policy at {first}"));
        finding.help("their counts would mix; rename one");
        return;
    }
    for payer in policy.payers() {
        let counts = format!("{name}/{}", payer.name());
        if let Some(first) = domain.names.insert(counts.clone(), name_at.clone()) {
            let message = format!(
                "the payer `{}` counts as `{counts}`, which is the name of the policy at {first}",
                payer.name()
            );
            findings.error(name_at, message).help("their counts would mix; rename one");
            return;
        }
    }
    if policy.mode() != Mode::Shadow {
        domain.refusing.push(crowd);
    }
    if let Matching::Own(rules) = &mut domain.matching {
        domain.examples.push((name.to_owned(), example));
        rules.push((policy, rule));
    }
}

/// A descriptor that meets the conditions and has what is counted by.
fn example(conditions: &[(String, Want)], partition: &[String]) -> Descriptor {
    let wanted = conditions.iter().filter_map(|(key, want)| match want {
        Want::OneOf(patterns) => Some((key.clone(), fill_in(&patterns.first()?.to_string()))),
        _ => None,
    });
    let mut descriptor: Descriptor = wanted.collect();
    for key in partition.iter().filter(|key| !conditions.iter().any(|(known, _)| known == *key)) {
        descriptor.push(key, "me");
    }
    descriptor
}

fn is_name(name: &str, at: &Place, findings: &Report) -> bool {
    let wrong = match name {
        "" => "a name cannot be empty".to_owned(),
        tallygate::policy::Domain::REQUESTED => {
            format!("`{name}` is reserved for limits that a request carries; choose another name")
        }
        _ if name.chars().count() > LONGEST_NAME => format!("a name has at most {LONGEST_NAME} characters"),
        _ if name.contains(char::is_control) => "a name cannot contain control characters".to_owned(),
        _ => return true,
    };
    findings.error(at, wrong);
    false
}

/// A word, and for `local` possibly a share: `local 25%`.
fn on_error(fields: Fields<'_>) -> Option<(OnError, Option<Share>)> {
    let (text, at) = fields.text("on_error")?;
    let (first, share) = text.split_once(' ').map_or((text, None), |(first, share)| (first, Some(share.trim())));
    let on_error = parse_word(fields, first, at)?;
    let share = match share {
        Some(_) if on_error != OnError::Local => {
            let mut finding = fields.findings.error(at, format!("`{on_error}` has no share"));
            finding.help("only `local` has one, for example `on_error: local 25%`");
            return None;
        }
        Some(share) => {
            Some(share.parse().map_err(|error: ShareError| fields.findings.error(at, error.to_string())).ok()?)
        }
        None => None,
    };
    Some((on_error, share))
}

/// A field that is one of a closed set of words.
fn word<T: FromStr<Err: Display>>(fields: Fields<'_>, name: &str) -> Option<T> {
    let (word, at) = fields.text(name)?;
    parse_word(fields, word, at)
}

fn parse_word<T: FromStr<Err: Display>>(fields: Fields<'_>, word: &str, at: &Place) -> Option<T> {
    let refused = |error: T::Err| {
        let mut finding = fields.findings.error(at, error.to_string());
        // What others call it.
        match word {
            "dry_run" | "report" => finding.help("`shadow` counts and reports, and never refuses"),
            "fail_open" => finding.help("`allow` is what others call fail open"),
            "fail_closed" => finding.help("`deny` is what others call fail closed"),
            _ => {}
        }
    };
    word.parse().map_err(refused).ok()
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
            let message = format!("`{key}` matches nothing: the list is empty");
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
    if let Kind::Map(entries) = &node.kind {
        let keys: Vec<&str> = entries.iter().filter_map(|(key, _)| key.scalar()).collect();
        let mut finding = findings.error(&node.at, "`partition` must be a list, not a mapping");
        finding.help(format!("write `partition: [{}]`", keys.join(", ")));
        return Vec::new();
    }
    let nodes = if node.scalar().is_some() { std::slice::from_ref(node) } else { node.list("`partition`", findings) };
    let mut keys: Vec<String> = Vec::new();
    for (key, at) in nodes.iter().filter_map(|node| node.text("the key to count by", findings)) {
        if keys.iter().any(|known| known == key) {
            findings.error(at, format!("`{key}` is in `partition` twice"));
        }
        keys.push(key.to_owned());
    }
    keys
}

fn overrides(fields: Fields<'_>, mut rule: Rule, base: Option<&Option<Limit>>, algorithm: Option<Algorithm>) -> Rule {
    let findings = fields.findings;
    // Compared as text: there may be thousands of them.
    let mut seen = HashSet::new();
    for node in fields.list("overrides") {
        let Some(own) = Fields::of(node, "an override", OVERRIDE, findings) else { continue };
        let conditions = own.need("match", "{plan: pro}").map(|node| conditions(Some(node), findings));
        let limit = own.need("limit", "1000/min").and_then(|node| limit(node, algorithm, findings));
        let (Some(conditions), Some(limit)) = (conditions, limit) else { continue };
        let in_flight = |limit: &Option<Limit>| limit.as_ref().is_some_and(Limit::is_concurrency);
        if limit.is_some() && base.is_some_and(|base| in_flight(base) != in_flight(&limit)) {
            let message = "this override and its policy count differently: one of them what is in flight";
            findings.error(own.at, message).help("give these callers a policy of their own");
        } else if conditions.is_empty() {
            let mut finding = findings.error(own.at, "this override matches every caller");
            finding.help("change the limit of the policy, or name a `match`");
        } else if !seen.insert(format!("{conditions:?}")) {
            findings.warn(own.at, "this override is never used: one above has the same `match`");
        } else if base == Some(&limit) {
            findings.warn(own.at, "this override changes nothing: the limit is that of the policy");
        }
        rule = match limit {
            Some(limit) => rule.override_limit(conditions, limit).expect("it is a limit already"),
            None => rule.override_unlimited(conditions),
        };
    }
    rule
}

/// The limit, `Some(None)` for `unlimited`; `None` if it is invalid.
fn limit(node: &Node, algorithm: Option<Algorithm>, findings: &Report) -> Option<Option<Limit>> {
    let (written, at) = node.text("`limit`", findings)?;
    if written.trim() == "unlimited" {
        return Some(None);
    }
    match Limit::parse_with(written, algorithm) {
        Ok(limit) => Some(Some(limit)),
        Err(error) => {
            // Without the caret, which needs a line of its own.
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
