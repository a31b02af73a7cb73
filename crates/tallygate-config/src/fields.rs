//! The fields of a mapping: known ones are found, all others refused with what was probably meant.

use tallygate::nearest;

use crate::finding::{Findings, Place};
use crate::node::{Kind, Node};

#[derive(Debug, Clone, Copy)]
pub(crate) struct Fields<'n> {
    entries: &'n [(Node, Node)],
    pub at: &'n Place,
    /// What the mapping is, for people: `a policy`.
    what: &'static str,
    known: &'static [&'static str],
}

impl<'n> Fields<'n> {
    /// The fields of `node`, unless it is no mapping. Every field that is not `known` is an error.
    pub fn of(
        node: &'n Node,
        what: &'static str,
        known: &'static [&'static str],
        findings: &mut Findings,
    ) -> Option<Self> {
        let fields = Self::open(node, what, known, findings)?;
        for (key, _) in fields.unknown() {
            unknown_field(key, what, known, findings);
        }
        Some(fields)
    }

    /// The same, and nothing is said of those that are not known.
    pub fn open(
        node: &'n Node,
        what: &'static str,
        known: &'static [&'static str],
        findings: &mut Findings,
    ) -> Option<Self> {
        match &node.kind {
            Kind::Map(entries) => Some(Self { entries, at: &node.at, what, known }),
            _ => {
                findings.error(&node.at, format!("expected {what} as a mapping, found {}", node.what()));
                None
            }
        }
    }

    /// Fields that are not known.
    pub fn unknown(self) -> impl Iterator<Item = &'n (Node, Node)> {
        self.entries.iter().filter(move |(key, _)| key.scalar().is_none_or(|key| !self.known.contains(&key)))
    }

    /// Whether a field is there that was probably meant to be this one.
    pub fn is_mistyped(self, name: &str) -> bool {
        self.unknown().any(|(key, _)| key.scalar().is_some_and(|key| nearest(key, self.known) == Some(name)))
    }

    /// The field, unless it is absent or empty.
    pub fn get(self, name: &str) -> Option<&'n Node> {
        let found = self.entries.iter().find(|(key, _)| key.scalar() == Some(name));
        found.map(|(_, value)| value).filter(|value| !value.is_null())
    }

    /// A field that must be there.
    pub fn need(self, name: &str, example: &str, findings: &mut Findings) -> Option<&'n Node> {
        let found = self.get(name);
        // A mistyped one has been told of.
        if found.is_none() && !self.is_mistyped(name) {
            findings.error(self.at, format!("{} needs `{name}`, for example `{name}: {example}`", self.what));
        }
        found
    }

    /// The text of a field that must be there and say something.
    pub fn need_text(self, name: &str, example: &str, findings: &mut Findings) -> Option<(&'n str, &'n Place)> {
        self.need(name, example, findings)?;
        let (found, at) = self.text(name, findings)?;
        if found.is_empty() {
            findings.error(at, format!("`{name}` is empty"));
        }
        Some((found, at)).filter(|_| !found.is_empty())
    }

    pub fn text(self, name: &str, findings: &mut Findings) -> Option<(&'n str, &'n Place)> {
        self.get(name).and_then(|node| text(node, &format!("`{name}`"), findings))
    }

    /// The items of a field that is a list.
    pub fn list(self, name: &str, findings: &mut Findings) -> &'n [Node] {
        match self.get(name) {
            None => &[],
            Some(node) => list(node, &format!("`{name}`"), findings),
        }
    }

    /// A field that says yes or no.
    pub fn flag(self, name: &str, findings: &mut Findings) -> Option<&'n Place> {
        let (word, at) = self.text(name, findings)?;
        match word.to_ascii_lowercase().as_str() {
            "true" | "yes" | "on" | "y" => Some(at),
            "false" | "no" | "off" | "n" | "" => None,
            _ => {
                findings.error(at, format!("`{name}` is `true` or `false`, not `{}`", word.escape_debug()));
                None
            }
        }
    }

    /// A field that is a whole number.
    pub fn number(self, name: &str, findings: &mut Findings) -> Option<(u64, &'n Place)> {
        let (digits, at) = self.text(name, findings)?;
        let value = digits.parse().ok();
        if value.is_none() {
            let written = digits.escape_debug();
            findings.error(at, format!("`{name}` must be a whole number in plain digits, not `{written}`"));
        }
        Some((value?, at))
    }
}

pub(crate) fn text<'n>(node: &'n Node, what: &str, findings: &mut Findings) -> Option<(&'n str, &'n Place)> {
    let found = node.scalar();
    if found.is_none() {
        findings.error(&node.at, format!("{what} must be a text, not {}", node.what()));
    }
    Some((found?, &node.at))
}

pub(crate) fn list<'n>(node: &'n Node, what: &str, findings: &mut Findings) -> &'n [Node] {
    match &node.kind {
        Kind::List(items) => items,
        _ => {
            findings.error(&node.at, format!("{what} must be a list, not {}", node.what()));
            &[]
        }
    }
}

pub(crate) fn unknown_field(key: &Node, what: &str, known: &[&str], findings: &mut Findings) {
    let Some(word) = key.scalar() else {
        findings.error(&key.at, format!("a field of {what} is named by a text, not by {}", key.what()));
        return;
    };
    let message = format!("{what} has no field `{}`", word.escape_debug());
    let finding = findings.error(&key.at, message);
    match nearest(word, known) {
        Some(near) => finding.help(format!("did you mean `{near}`?")),
        None => finding.help(format!("its fields are {}", known.join(", "))),
    }
}
