//! The fields of a mapping. Unknown ones are refused with what was probably meant.

use tallygate::words::nearest;

use crate::finding::{Place, Report};
use crate::node::{Kind, Node};

/// The fields that a kind of mapping may have.
pub(crate) type Names = &'static [&'static str];

#[derive(Debug, Clone, Copy)]
pub(crate) struct Fields<'n> {
    entries: &'n [(Node, Node)],
    pub at: &'n Place,
    /// What the mapping is, for messages: `a policy`.
    what: &'static str,
    known: Names,
    pub findings: &'n Report,
}

impl<'n> Fields<'n> {
    /// The fields of `node`; an error if it is not a mapping. Every field that is not `known` is an error.
    pub fn of(node: &'n Node, what: &'static str, known: Names, findings: &'n Report) -> Option<Self> {
        let fields = Self::open(node, what, known, findings)?;
        for (key, _) in fields.unknown() {
            fields.refuse(key, known);
        }
        Some(fields)
    }

    /// The same, but unknown fields are not reported.
    pub fn open(node: &'n Node, what: &'static str, known: Names, findings: &'n Report) -> Option<Self> {
        match &node.kind {
            Kind::Map(entries) => Some(Self { entries, at: &node.at, what, known, findings }),
            _ => {
                findings.error(&node.at, format!("expected {what} as a mapping, found {}", node.what()));
                None
            }
        }
    }

    /// The unknown fields.
    pub fn unknown(self) -> impl Iterator<Item = &'n (Node, Node)> {
        self.entries.iter().filter(move |(key, _)| key.scalar().is_none_or(|key| !self.known.contains(&key)))
    }

    /// Reports that `key` is not one of `known`.
    pub fn refuse(self, key: &Node, known: &[&str]) {
        self.refuse_with(key, |word| suggestion(word, known, "its fields are"));
    }

    /// Reports an unknown field, with what `help` says of it.
    pub fn refuse_with(self, key: &Node, help: impl FnOnce(&str) -> String) {
        let what = self.what;
        let Some(word) = key.scalar() else {
            self.findings.error(&key.at, format!("the name of a field of {what} must be a string, not {}", key.what()));
            return;
        };
        self.findings.error(&key.at, format!("{what} has no field `{word}`")).help(help(word));
    }

    /// Whether an unknown field was probably meant to be this one.
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
        // A mistyped one is already reported.
        if found.is_none() && !self.is_mistyped(name) {
            let message = format!("{} needs `{name}`, for example `{name}: {example}`", self.what);
            self.findings.error(self.at, message);
        }
        found
    }

    /// The text of a field that must be there and not be empty.
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

    /// The text of a field, unless it is empty.
    pub fn some_text(self, name: &str) -> Option<&'n str> {
        self.text(name).map(|(text, _)| text).filter(|text| !text.is_empty())
    }

    /// The items of a field that is a list.
    pub fn list(self, name: &str) -> &'n [Node] {
        self.get(name).map_or(&[], |node| node.list(&format!("`{name}`"), self.findings))
    }

    /// A boolean field: its place if it is true.
    pub fn flag(self, name: &str) -> Option<&'n Place> {
        let (word, at) = self.text(name)?;
        match word.to_ascii_lowercase().as_str() {
            "true" | "yes" | "on" | "y" => Some(at),
            "false" | "no" | "off" | "n" | "" => None,
            _ => {
                self.findings.error(at, format!("`{name}` must be `true` or `false`, not `{word}`"));
                None
            }
        }
    }

    /// A field that is a whole number.
    pub fn number(self, name: &str) -> Option<(u64, &'n Place)> {
        let (digits, at) = self.text(name)?;
        let value = digits.parse().ok();
        if value.is_none() {
            self.findings.error(at, format!("`{name}` must be a whole number in plain digits, not `{digits}`"));
        }
        Some((value?, at))
    }
}

/// What was probably meant, or all known words after the words `all`.
pub(crate) fn suggestion(word: &str, known: &[&str], all: &str) -> String {
    match nearest(word, known) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("{all} {}", known.join(", ")),
    }
}
