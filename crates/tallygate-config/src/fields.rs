//! The fields of a mapping: known ones are found, all others refused with what was probably meant.

use tallygate::nearest;

use crate::finding::{Place, Report};
use crate::node::{Kind, Node};

/// The fields that a kind of mapping may have.
pub(crate) type Names = &'static [&'static str];

#[derive(Debug, Clone, Copy)]
pub(crate) struct Fields<'n> {
    entries: &'n [(Node, Node)],
    pub at: &'n Place,
    /// What the mapping is, for people: `a policy`.
    what: &'static str,
    known: Names,
    pub findings: &'n Report,
}

impl<'n> Fields<'n> {
    /// The fields of `node`, unless it is no mapping. Every field that is not `known` is an error.
    pub fn of(node: &'n Node, what: &'static str, known: Names, findings: &'n Report) -> Option<Self> {
        let fields = Self::open(node, what, known, findings)?;
        for (key, _) in fields.unknown() {
            fields.refuse(key, known);
        }
        Some(fields)
    }

    /// The same, and nothing is said of those that are not known.
    pub fn open(node: &'n Node, what: &'static str, known: Names, findings: &'n Report) -> Option<Self> {
        match &node.kind {
            Kind::Map(entries) => Some(Self { entries, at: &node.at, what, known, findings }),
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

    /// `key` is not one of `known`.
    pub fn refuse(self, key: &Node, known: &[&str]) {
        let what = self.what;
        let Some(word) = key.scalar() else {
            self.findings.error(&key.at, format!("a field of {what} is named by a text, not by {}", key.what()));
            return;
        };
        let message = format!("{what} has no field `{}`", word.escape_debug());
        self.findings.error(&key.at, message).help(suggestion(word, known, "its fields are"));
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
    pub fn need(self, name: &str, example: &str) -> Option<&'n Node> {
        let found = self.get(name);
        // A mistyped one has been told of.
        if found.is_none() && !self.is_mistyped(name) {
            let message = format!("{} needs `{name}`, for example `{name}: {example}`", self.what);
            self.findings.error(self.at, message);
        }
        found
    }

    /// The text of a field that must be there and say something.
    pub fn need_text(self, name: &str, example: &str) -> Option<(&'n str, &'n Place)> {
        self.need(name, example)?;
        let (found, at) = self.text(name)?;
        if found.is_empty() {
            self.findings.error(at, format!("`{name}` is empty"));
        }
        Some((found, at)).filter(|_| !found.is_empty())
    }

    pub fn text(self, name: &str) -> Option<(&'n str, &'n Place)> {
        self.get(name).and_then(|node| node.text(&format!("`{name}`"), self.findings))
    }

    /// The text of a field, unless it says nothing.
    pub fn some_text(self, name: &str) -> Option<&'n str> {
        self.text(name).map(|(text, _)| text).filter(|text| !text.is_empty())
    }

    /// The items of a field that is a list.
    pub fn list(self, name: &str) -> &'n [Node] {
        self.get(name).map_or(&[], |node| node.list(&format!("`{name}`"), self.findings))
    }

    /// A field that says yes or no.
    pub fn flag(self, name: &str) -> Option<&'n Place> {
        let (word, at) = self.text(name)?;
        match word.to_ascii_lowercase().as_str() {
            "true" | "yes" | "on" | "y" => Some(at),
            "false" | "no" | "off" | "n" | "" => None,
            _ => {
                self.findings.error(at, format!("`{name}` is `true` or `false`, not `{}`", word.escape_debug()));
                None
            }
        }
    }

    /// A field that is a whole number.
    pub fn number(self, name: &str) -> Option<(u64, &'n Place)> {
        let (digits, at) = self.text(name)?;
        let value = digits.parse().ok();
        if value.is_none() {
            let written = digits.escape_debug();
            self.findings.error(at, format!("`{name}` must be a whole number in plain digits, not `{written}`"));
        }
        Some((value?, at))
    }
}

/// What was probably meant, or all there is, after the words `all`.
pub(crate) fn suggestion(word: &str, known: &[&str], all: &str) -> String {
    match nearest(word, known) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("{all} {}", known.join(", ")),
    }
}
