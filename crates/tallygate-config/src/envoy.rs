//! The format of envoyproxy/ratelimit: a domain, and a tree of descriptors with limits on it.

mod tree;

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use serde_json::Value;
use tallygate::{Algorithm, Excess, Limit, Mode, Policy, nearest};

use crate::config::{Draft, Matching, unused_name};
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
/// Every key of the format, wherever it belongs.
const KEYS: [Names; 4] = [TOP, DESCRIPTOR, RATE_LIMIT, REPLACES];

const DAY: u64 = 86_400;
/// Months and years are as long as the reference takes them to be.
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
        let message = format!("domain `{}` is already there, at {first}", domain.escape_debug());
        findings.error(at, message).help("join the two files, or rename one domain");
        return;
    }
    let names = HashSet::from([tallygate::Domain::REQUESTED.to_owned()]);
    let mut reading = Reading { domain, draft, findings, policies: Vec::new(), names, told_of_metrics: false };
    let mut root = Branch::default();
    reading.descriptors(top.list("descriptors"), "", &mut root);
    let policies = reading.policies;
    let tree = Tree::new(root, policies.iter().map(|policy| policy.name().to_owned()).collect());
    for name in tree.replaced_by_none() {
        let message = format!("a rule replaces `{}`, and no rule of the domain has that name", name.escape_debug());
        findings.warn(at, message);
    }
    if let Some(domain) = draft.domain(domain, at, Matching::Envoy(tree)) {
        domain.policies = policies;
    }
}

/// A key that belongs elsewhere is passed over by the reference, so it only warns; a key of no meaning is an error there
/// too.
fn fields<'n>(node: &'n Node, what: &'static str, known: Names, findings: &'n Report) -> Option<Fields<'n>> {
    let fields = Fields::open(node, what, known, findings)?;
    let all = KEYS.concat();
    for (key, _) in fields.unknown() {
        match key.scalar() {
            Some(word) if all.contains(&word) => {
                findings.warn(&key.at, format!("`{word}` has no meaning in {what} and is passed over"));
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
    policies: Vec<Policy>,
    names: HashSet<String>,
    told_of_metrics: bool,
}

impl Reading<'_, '_> {
    /// `path` is that of the rules above, each with a `.` after it.
    fn descriptors(&mut self, nodes: &[Node], path: &str, into: &mut Branch) {
        let mut seen: HashMap<String, &Place> = HashMap::new();
        for node in nodes {
            let Some(fields) = fields(node, "a descriptor", DESCRIPTOR, self.findings) else { continue };
            let Some((key, _)) = fields.need_text("key", "remote_address") else { continue };
            let value = fields.some_text("value");
            let own = value.map_or_else(|| key.to_owned(), |value| format!("{key}_{value}"));
            let full = format!("{path}{own}");
            if let Some(first) = seen.get(&own) {
                let message = format!("`{}` is already there, at {first}", full.escape_debug());
                let mut finding = self.findings.error(fields.at, message);
                finding.help("a key and its value stand once in a list: join the two");
                continue;
            }
            let mut branch = Branch::default();
            if let Some(at) = fields.flag("share_threshold") {
                if !own.contains('*') {
                    let mut finding = self.findings.error(at, "`share_threshold` needs a `*` in the value");
                    finding.help("values that are equal share their count anyway");
                }
                branch.shared = true;
            }
            branch.leaf = self.leaf(fields, &full);
            self.descriptors(fields.list("descriptors"), &format!("{full}."), &mut branch);
            seen.insert(own.clone(), fields.at);
            into.add(own, branch);
        }
    }

    fn leaf(&mut self, fields: Fields<'_>, path: &str) -> Option<Leaf> {
        let mode = self.mode(fields);
        for flag in ["detailed_metric", "value_to_metric"] {
            if let Some(at) = fields.flag(flag)
                && !std::mem::replace(&mut self.told_of_metrics, true)
            {
                let message =
                    format!("`{flag}` is passed over: values of requests never become labels of metrics here");
                self.findings.warn(at, message);
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
        // `a.b` is written alike for one key and for two.
        let name_of_policy = unused_name(path, |name| self.names.contains(name));
        self.names.insert(name_of_policy.clone());
        let policy = Policy::new(name_of_policy, self.domain, limit).expect("neither name is empty");
        self.policies.push(policy.with_mode(mode).with_excess(Excess::Drain).with_metadata(metadata));
        let policy = self.policies.len() - 1;
        Some(Leaf { policy, name: name.map(str::to_owned), replaces, unlimited })
    }

    fn mode(&mut self, fields: Fields<'_>) -> Mode {
        let (shadow, quota) = (fields.flag("shadow_mode"), fields.flag("quota_mode"));
        if let (Some(_), Some(at)) = (shadow, quota) {
            let message = "`shadow_mode` and `quota_mode` together: it never refuses, and is not counted as a quota";
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
        (!entries.is_empty()).then(|| json(node).to_string())
    }
}

/// The limit of a rule, `Some(None)` for none at all; `None` if it makes no sense.
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
        findings.warn(fields.at, "there is no `requests_per_unit`: nothing is allowed, as with 0");
    }
    fields.need("unit", "minute")?;
    let (unit, unit_at) = unit?;
    let Some((_, seconds)) = UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit)) else {
        let help = suggestion(&unit.to_ascii_lowercase(), &UNITS.map(|(name, _)| name), "use one of");
        findings.error(unit_at, format!("`{}` is no unit", unit.escape_debug())).help(help);
        return None;
    };
    let (amount, at) = if absent { (0, fields.at) } else { requests? };
    match Limit::builder(amount, Duration::from_secs(*seconds)).algorithm(Algorithm::FixedWindow).build() {
        Ok(limit) => Some(Some(limit)),
        Err(error) => {
            findings.error(at, error.to_string()).help("if no limit is meant, write `unlimited: true` without a unit");
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
                findings.error(at, format!("`{}` cannot replace itself", name.escape_debug()));
            }
            Some((name, _)) => replaced.push(name.to_owned()),
        }
    }
    replaced
}

fn json(node: &Node) -> Value {
    match &node.kind {
        Kind::Null => Value::Null,
        Kind::Text(text) => Value::String(text.clone()),
        Kind::Bare(text) => match text.to_ascii_lowercase().as_str() {
            "true" | "yes" | "on" | "y" => Value::Bool(true),
            "false" | "no" | "off" | "n" => Value::Bool(false),
            number => serde_json::from_str(number).unwrap_or_else(|_| Value::String(text.clone())),
        },
        Kind::List(items) => Value::Array(items.iter().map(json).collect()),
        Kind::Map(entries) => {
            let named = entries.iter().map(|(key, value)| (key.scalar().unwrap_or_default().to_owned(), json(value)));
            Value::Object(named.collect())
        }
    }
}
