//! The format of envoyproxy/ratelimit: a domain, and a tree of descriptors with limits.

mod tree;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use serde::ser::{Serialize, SerializeMap, Serializer};
use tallygate::policy::{Description, Descriptor, Excess, Mode, Policy};
use tallygate::words::nearest;
use tallygate::{Algorithm, Limit};

use crate::config::{Draft, Matching, fill_in, unused_name};
use crate::fields::{Fields, Names, suggestion};
use crate::finding::{Place, Report};
use crate::node::{Kind, Node};
pub(crate) use tree::Tree;
use tree::{Branch, Leaf};

const TOP: Names = &["domain", "descriptors"];
const DESCRIPTOR: Names = &[
    "key",
    "value",
    "rate_limit",
    "descriptors",
    "shadow_mode",
    "quota_mode",
    "detailed_metric",
    "value_to_metric",
    "share_threshold",
    "metadata",
];
const RATE_LIMIT: Names = &["unit", "requests_per_unit", "unlimited", "name", "replaces"];
const REPLACES: Names = &["name"];
/// Every key of the format.
const KEYS: [Names; 4] = [TOP, DESCRIPTOR, RATE_LIMIT, REPLACES];

const DAY: u64 = 86_400;
/// Months and years have the length they have in the reference implementation.
const UNITS: [(&str, u64); 7] = [
    ("second", 1),
    ("minute", 60),
    ("hour", 3600),
    ("day", DAY),
    ("week", 7 * DAY),
    ("month", 30 * DAY),
    ("year", 365 * DAY),
];

pub(crate) fn read(file: &Node, draft: &mut Draft<'_>) {
    let findings = draft.findings;
    let Some(top) = fields(file, "the file", TOP, findings) else { return };
    let Some((domain, at)) = top.need_text("domain", "edge") else { return };
    if let Some(first) = draft.has_domain(domain) {
        let message = format!("domain `{domain}` already exists, at {first}");
        findings.error(at, message).help("merge the two files, or rename one domain");
        return;
    }
    let names = HashSet::from([tallygate::policy::Domain::REQUESTED.to_owned()]);
    let (descriptors, errors) = (top.list("descriptors"), findings.errors());
    let mut rule_names = HashMap::new();
    count_names(descriptors, &mut rule_names);
    let mut reading = Reading {
        domain,
        draft,
        findings,
        policies: Vec::new(),
        examples: Vec::new(),
        names,
        rule_names,
        metrics_reported: false,
    };
    let mut root = Branch::default();
    reading.descriptors(descriptors, "", &Descriptor::new(), &Description::default(), &mut root);
    let Reading { policies, examples, .. } = reading;
    if policies.is_empty() && findings.errors() == errors {
        findings.warn(top.at, "there are no limits here: nothing is limited");
    }
    let tree = Tree::new(root, policies);
    for name in tree.replaced_by_none() {
        findings.warn(at, format!("a rule replaces `{name}`, but no rule of the domain has that name"));
    }
    if let Some(domain) = draft.domain(domain, at, Matching::Envoy(tree)) {
        domain.examples = examples;
    }
}

/// How many rules have each `name`.
fn count_names(nodes: &[Node], names: &mut HashMap<String, usize>) {
    for node in nodes {
        if let Some(name) = node.child("rate_limit").and_then(|limit| limit.child("name")).and_then(Node::scalar) {
            *names.entry(name.to_owned()).or_default() += 1;
        }
        if let Some(Kind::List(below)) = node.child("descriptors").map(|below| &below.kind) {
            count_names(below, names);
        }
    }
}

/// A known key in the wrong place is ignored by the reference implementation, so it is a warning; an unknown key is an
/// error there too.
fn fields<'n>(node: &'n Node, what: &'static str, known: Names, findings: &'n Report) -> Option<Fields<'n>> {
    let fields = Fields::open(node, what, known, findings)?;
    let all = KEYS.concat();
    for (key, _) in fields.unknown() {
        match key.scalar() {
            Some(word) if all.contains(&word) => {
                let mut finding = findings.warn(&key.at, format!("`{word}` has no meaning in {what} and is ignored"));
                if DESCRIPTOR.contains(&word) {
                    finding.help("it is a field of a descriptor, beside `rate_limit`");
                }
            }
            word => {
                let near = |known| word.is_some_and(|word| nearest(word, known).is_some());
                let elsewhere = !near(known) && near(&all);
                fields.refuse(key, if elsewhere { &all } else { known });
            }
        }
    }
    Some(fields)
}

struct Reading<'d, 'r> {
    domain: &'d str,
    draft: &'d mut Draft<'r>,
    findings: &'r Report,
    policies: Vec<Arc<Policy>>,
    /// The name of each policy, and a descriptor that leads to it.
    examples: Vec<(String, Descriptor)>,
    names: HashSet<String>,
    /// How many rules have each `name`.
    rule_names: HashMap<String, usize>,
    metrics_reported: bool,
}

impl Reading<'_, '_> {
    /// `path` is that of the rules above, each with a `.` after it; `above` is a descriptor that leads to them, and
    /// `described` says which do.
    fn descriptors(
        &mut self,
        nodes: &[Node],
        path: &str,
        above: &Descriptor,
        described: &Description,
        into: &mut Branch,
    ) {
        let mut seen: HashMap<String, &Place> = HashMap::new();
        for node in nodes {
            let Some(fields) = fields(node, "a descriptor", DESCRIPTOR, self.findings) else { continue };
            let Some((key, _)) = fields.need_text("key", "remote_address") else { continue };
            let value = fields.some_text("value");
            let own = value.map_or_else(|| key.to_owned(), |value| format!("{key}_{value}"));
            let full = format!("{path}{own}");
            if let Some(first) = seen.get(&own) {
                let mut finding = self.findings.error(fields.at, format!("`{full}` already exists, at {first}"));
                finding.help("a list has each key and value once: merge the two");
                continue;
            }
            let mut branch = Branch::default();
            if let Some(at) = fields.flag("share_threshold") {
                if !own.contains('*') {
                    let mut finding = self.findings.error(at, "`share_threshold` needs a `*` in the value");
                    finding.help("equal values always share their count");
                }
                branch.shared = true;
            }
            let example = above.clone().with(key, value.map_or_else(|| "me".to_owned(), fill_in));
            let mut described = described.clone();
            described.conditions.extend(value.map(|value| format!("{key} = {value}")));
            if value.is_none_or(|value| value.contains('*') && !branch.shared) {
                described.partition.push(key.to_owned());
            }
            branch.leaf = self.leaf(fields, &full, &example, &described);
            let below = fields.list("descriptors");
            self.descriptors(below, &format!("{full}."), &example, &described, &mut branch);
            seen.insert(own.clone(), fields.at);
            into.add(own, branch);
        }
    }

    fn leaf(&mut self, fields: Fields<'_>, path: &str, example: &Descriptor, described: &Description) -> Option<Leaf> {
        let mode = self.mode(fields);
        for flag in ["detailed_metric", "value_to_metric"] {
            if let Some(at) = fields.flag(flag)
                && !std::mem::replace(&mut self.metrics_reported, true)
            {
                self.findings.warn(at, format!("`{flag}` is ignored: values of requests never become metric labels"));
            }
        }
        let metadata = fields.get("metadata").and_then(|node| self.metadata(node));
        let rate_limit = self::fields(fields.get("rate_limit")?, "`rate_limit`", RATE_LIMIT, self.findings)?;
        let limit = limit(rate_limit);
        let name = rate_limit.some_text("name");
        let replaces = replaces(rate_limit, name);
        let limit = limit?;
        if !self.draft.has_room(fields.at) {
            return None;
        }
        let unlimited = limit.is_none();
        // Several rules may share a `name`, to be replaced together: then their paths tell them apart. The paths of one
        // key `a.b`, and of `b` below `a`, are the same.
        let name_of_policy = name.filter(|name| self.rule_names.get(*name) == Some(&1)).unwrap_or(path);
        let name_of_policy = unused_name(name_of_policy, |name| self.names.contains(name));
        self.names.insert(name_of_policy.clone());
        self.examples.push((name_of_policy.clone(), example.clone()));
        let policy = match limit {
            Some(limit) => Policy::new(name_of_policy, self.domain, limit),
            None => Policy::unlimited(name_of_policy, self.domain),
        };
        let policy = policy.expect("neither name is empty").with_mode(mode).with_excess(Excess::Drain);
        let policy = Arc::new(policy.with_metadata(metadata).with_reported_name(name.unwrap_or_default()));
        self.policies.push(Arc::clone(&policy));
        let (name, description) = (name.map(str::to_owned), described.clone());
        Some(Leaf { policy, description, name, replaces, unlimited })
    }

    fn mode(&mut self, fields: Fields<'_>) -> Mode {
        let (shadow, quota) = (fields.flag("shadow_mode"), fields.flag("quota_mode"));
        if let (Some(_), Some(at)) = (shadow, quota) {
            let message = "both `shadow_mode` and `quota_mode`: the rule never refuses, and does not count as a quota";
            self.findings.warn(at, message);
        }
        match (shadow, quota) {
            (Some(_), _) => Mode::Shadow,
            (None, Some(_)) => Mode::Quota,
            (None, None) => Mode::Enforce,
        }
    }

    fn metadata(&mut self, node: &Node) -> Option<String> {
        let Kind::Map(entries) = &node.kind else {
            let message = format!("`metadata` must be a mapping, not {}", node.what());
            self.findings.error(&node.at, message);
            return None;
        };
        (!entries.is_empty()).then(|| serde_json::to_string(&Json(node)).expect("it has no keys but strings"))
    }
}

/// The limit of a rule, `Some(None)` for `unlimited`; `None` if it is invalid.
fn limit(fields: Fields<'_>) -> Option<Option<Limit>> {
    let findings = fields.findings;
    let unit = fields.text("unit");
    if fields.flag("unlimited").is_some() {
        if let Some((_, at)) = unit {
            findings.error(at, "`unit` has no meaning with `unlimited`").help("drop one of them");
        }
        return Some(None);
    }
    let requests = fields.number("requests_per_unit");
    let absent = fields.get("requests_per_unit").is_none();
    if absent && !fields.is_mistyped("requests_per_unit") {
        findings.warn(fields.at, "there is no `requests_per_unit`: every call is denied, as with 0");
    }
    fields.need("unit", "minute")?;
    let (unit, unit_at) = unit?;
    let Some((_, seconds)) = UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit)) else {
        let help = suggestion(&unit.to_ascii_lowercase(), &UNITS.map(|(name, _)| name), "use one of");
        findings.error(unit_at, format!("unknown unit `{unit}`")).help(help);
        return None;
    };
    let (amount, at) = if absent { (0, fields.at) } else { requests? };
    match Limit::builder(amount, Duration::from_secs(*seconds)).algorithm(Algorithm::FixedWindow).build() {
        Ok(limit) => Some(Some(limit)),
        Err(error) => {
            findings.error(at, error.to_string()).help("for no limit, write `unlimited: true` without a unit");
            None
        }
    }
}

fn replaces(fields: Fields<'_>, own: Option<&str>) -> Vec<String> {
    let findings = fields.findings;
    let mut replaced = Vec::new();
    for node in fields.list("replaces") {
        let Some(entry) = self::fields(node, "an entry of `replaces`", REPLACES, findings) else { continue };
        match entry.text("name") {
            None | Some(("", _)) => {
                findings.error(entry.at, "an entry of `replaces` needs the `name` of a rule");
            }
            Some((name, at)) if Some(name) == own => {
                findings.error(at, format!("`{name}` cannot replace itself"));
            }
            Some((name, _)) => replaced.push(name.to_owned()),
        }
    }
    replaced
}

/// A node as JSON, with the fields in the order in which they are written.
struct Json<'n>(&'n Node);

impl Serialize for Json<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.0.kind {
            Kind::Null => serializer.serialize_unit(),
            Kind::Text(text) => serializer.serialize_str(text),
            Kind::Bare(text) => match text.to_ascii_lowercase().as_str() {
                "true" | "yes" | "on" | "y" => serializer.serialize_bool(true),
                "false" | "no" | "off" | "n" => serializer.serialize_bool(false),
                number => match serde_json::from_str::<serde_json::Number>(number) {
                    Ok(number) => number.serialize(serializer),
                    Err(_) => serializer.serialize_str(text),
                },
            },
            Kind::List(items) => serializer.collect_seq(items.iter().map(Json)),
            Kind::Map(entries) => {
                let mut map = serializer.serialize_map(Some(entries.len()))?;
                for (key, value) in entries {
                    map.serialize_entry(key.scalar().unwrap_or_default(), &Json(value))?;
                }
                map.end()
            }
        }
    }
}
