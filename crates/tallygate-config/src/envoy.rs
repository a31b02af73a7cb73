//! The format of envoyproxy/ratelimit: a domain, and a tree of descriptors with limits on it.

mod tree;

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use serde_json::Value;
use tallygate::{Algorithm, Excess, Limit, Mode, Policy, nearest};

use crate::config::{Draft, Matching, unused_name};
use crate::fields::{Fields, unknown_field};
use crate::finding::{Findings, Place};
use crate::node::{Kind, Node};
pub(crate) use tree::Tree;
use tree::{Branch, Leaf};

const TOP: &[&str] = &["domain", "descriptors"];
const DESCRIPTOR: &[&str] = &[
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
const RATE_LIMIT: &[&str] = &["unit", "requests_per_unit", "unlimited", "name", "replaces"];
const REPLACES: &[&str] = &["name"];
/// Every key of the format, wherever it belongs.
const KEYS: [&[&str]; 4] = [TOP, DESCRIPTOR, RATE_LIMIT, REPLACES];

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

pub(crate) fn read(file: &Node, draft: &mut Draft) {
    let Some(top) = fields(file, "the file", TOP, &mut draft.findings) else { return };
    let Some((domain, at)) = top.need_text("domain", "edge", &mut draft.findings) else { return };
    if let Some(first) = draft.has_domain(domain).cloned() {
        let message = format!("domain `{}` is already there, at {first}", domain.escape_debug());
        draft.findings.error(at, message).help("join the two files, or rename one domain");
        return;
    }
    let mut reading = Reading { domain, draft, policies: Vec::new(), names: HashSet::new(), told_of_metrics: false };
    reading.names.insert(tallygate::Domain::REQUESTED.to_owned());
    let mut root = Branch::default();
    let descriptors = top.list("descriptors", &mut reading.draft.findings);
    reading.descriptors(descriptors, "", &mut root);
    let policies = reading.policies;
    let tree = Tree::new(root, policies.iter().map(|policy| policy.name().to_owned()).collect());
    for name in tree.replaced_by_none() {
        let message = format!("a rule replaces `{}`, and no rule of the domain has that name", name.escape_debug());
        draft.findings.warn(at, message);
    }
    if let Some((domain, _)) = draft.domain(domain, at, Matching::Envoy(tree)) {
        domain.policies = policies;
    }
}

/// A key that belongs elsewhere is passed over by the reference, so it only warns; a key of no meaning is an error there
/// too.
fn fields<'n>(
    node: &'n Node,
    what: &'static str,
    known: &'static [&'static str],
    findings: &mut Findings,
) -> Option<Fields<'n>> {
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
                unknown_field(key, what, if elsewhere { &all } else { known }, findings);
            }
        }
    }
    Some(fields)
}

struct Reading<'d> {
    domain: &'d str,
    draft: &'d mut Draft,
    policies: Vec<Policy>,
    names: HashSet<String>,
    told_of_metrics: bool,
}

impl Reading<'_> {
    fn findings(&mut self) -> &mut Findings {
        &mut self.draft.findings
    }

    /// `path` is that of the rules above, each with a `.` after it.
    fn descriptors(&mut self, nodes: &[Node], path: &str, into: &mut Branch) {
        let mut seen: HashMap<String, &Place> = HashMap::new();
        for node in nodes {
            let Some(fields) = fields(node, "a descriptor", DESCRIPTOR, self.findings()) else { continue };
            let Some((key, _)) = fields.need_text("key", "remote_address", self.findings()) else { continue };
            let value = fields.text("value", self.findings()).map(|(value, _)| value).filter(|value| !value.is_empty());
            let own = value.map_or_else(|| key.to_owned(), |value| format!("{key}_{value}"));
            let full = format!("{path}{own}");
            if let Some(first) = seen.get(&own) {
                let message = format!("`{}` is already there, at {first}", full.escape_debug());
                self.findings()
                    .error(fields.at, message)
                    .help("a key and its value stand once in a list: join the two");
                continue;
            }
            let mut branch = Branch::default();
            if let Some(at) = fields.flag("share_threshold", self.findings()) {
                if !own.contains('*') {
                    let finding = self.findings().error(at, "`share_threshold` needs a `*` in the value");
                    finding.help("values that are equal share their count anyway");
                }
                branch.shared = true;
            }
            branch.leaf = self.leaf(fields, &full);
            let below = fields.list("descriptors", self.findings());
            self.descriptors(below, &format!("{full}."), &mut branch);
            seen.insert(own.clone(), fields.at);
            into.add(own, branch);
        }
    }

    fn leaf(&mut self, fields: Fields<'_>, path: &str) -> Option<Leaf> {
        let mode = self.mode(fields);
        for flag in ["detailed_metric", "value_to_metric"] {
            if let Some(at) = fields.flag(flag, self.findings())
                && !std::mem::replace(&mut self.told_of_metrics, true)
            {
                let message =
                    format!("`{flag}` is passed over: values of requests never become labels of metrics here");
                self.findings().warn(at, message);
            }
        }
        let metadata = fields.get("metadata").and_then(|node| self.metadata(node));
        let rate_limit = self::fields(fields.get("rate_limit")?, "`rate_limit`", RATE_LIMIT, self.findings())?;
        let limit = limit(rate_limit, self.findings());
        let name = rate_limit.text("name", self.findings()).map(|(name, _)| name).filter(|name| !name.is_empty());
        let replaces = replaces(rate_limit, name, self.findings());
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
        let shadow = fields.flag("shadow_mode", self.findings()).is_some();
        match (shadow, fields.flag("quota_mode", self.findings())) {
            (true, Some(at)) => {
                let message =
                    "`shadow_mode` and `quota_mode` together: it never refuses, and is not counted as a quota";
                self.findings().warn(at, message);
                Mode::Shadow
            }
            (true, None) => Mode::Shadow,
            (false, Some(_)) => Mode::Quota,
            (false, None) => Mode::Enforce,
        }
    }

    fn metadata(&mut self, node: &Node) -> Option<String> {
        let Kind::Map(entries) = &node.kind else {
            let message = format!("`metadata` must be a mapping, not {}", node.what());
            self.findings().error(&node.at, message);
            return None;
        };
        (!entries.is_empty()).then(|| json(node).to_string())
    }
}

/// The limit of a rule, `Some(None)` for none at all; `None` if it makes no sense.
fn limit(fields: Fields<'_>, findings: &mut Findings) -> Option<Option<Limit>> {
    let unit = fields.text("unit", findings);
    if fields.flag("unlimited", findings).is_some() {
        if let Some((_, at)) = unit {
            findings.error(at, "`unit` has no meaning with `unlimited`").help("drop one of them");
        }
        return Some(None);
    }
    let requests = fields.number("requests_per_unit", findings);
    if fields.get("requests_per_unit").is_none() && !fields.is_mistyped("requests_per_unit") {
        findings.warn(fields.at, "there is no `requests_per_unit`: nothing is allowed, as with 0");
    }
    fields.need("unit", "minute", findings)?;
    let (unit, unit_at) = unit?;
    let Some((_, seconds)) = UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit)) else {
        let names = UNITS.map(|(name, _)| name);
        let finding = findings.error(unit_at, format!("`{}` is no unit", unit.escape_debug()));
        match nearest(&unit.to_ascii_lowercase(), &names) {
            Some(near) => finding.help(format!("did you mean `{near}`?")),
            None => finding.help(format!("use one of {}", names.join(", "))),
        }
        return None;
    };
    let (amount, at) = match (requests, fields.get("requests_per_unit")) {
        (Some(requests), _) => requests,
        (None, None) => (0, fields.at),
        (None, Some(_)) => return None,
    };
    let built = Limit::builder(amount, Duration::from_secs(*seconds)).algorithm(Algorithm::FixedWindow).build();
    match built {
        Ok(limit) => Some(Some(limit)),
        Err(error) => {
            findings.error(at, error.to_string()).help("if no limit is meant, write `unlimited: true` without a unit");
            None
        }
    }
}

fn replaces(fields: Fields<'_>, own: Option<&str>, findings: &mut Findings) -> Vec<String> {
    let mut replaced = Vec::new();
    for node in fields.list("replaces", findings) {
        let Some(entry) = self::fields(node, "an entry of `replaces`", REPLACES, findings) else { continue };
        match entry.text("name", findings) {
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
