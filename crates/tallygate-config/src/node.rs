//! YAML as a tree in which every node knows its place.

use std::fmt;
use std::sync::Arc;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::options::NonFiniteFloatPolicy;
use serde_saphyr::{Error, Location, Spanned};

use crate::finding::{Place, Report};

pub(crate) const MAX_BYTES: u64 = 1 << 20;
/// How many nodes aliases may add: enough for shared blocks, too few for an alias bomb.
const MAX_REPLAYED: usize = 200_000;
/// Deeper files are refused, because they are read by recursion.
const MAX_DEPTH: usize = 64;

#[derive(Debug, Clone)]
pub(crate) struct Node {
    pub kind: Kind,
    pub at: Place,
}

#[derive(Debug, Clone)]
pub(crate) enum Kind {
    Null,
    /// A text, quoted or not.
    Text(String),
    /// A number, `true` and the like, as it was written.
    Bare(String),
    List(Vec<Node>),
    Map(Vec<(Node, Node)>),
}

impl Node {
    pub fn scalar(&self) -> Option<&str> {
        match &self.kind {
            Kind::Text(text) | Kind::Bare(text) => Some(text),
            _ => None,
        }
    }

    pub fn text(&self, what: &str, findings: &Report) -> Option<(&str, &Place)> {
        let found = self.scalar();
        if found.is_none() {
            findings.error(&self.at, format!("{what} must be a string, not {}", self.what()));
        }
        Some((found?, &self.at))
    }

    pub fn list(&self, what: &str, findings: &Report) -> &[Node] {
        match &self.kind {
            Kind::List(items) => items,
            _ => {
                let mut finding = findings.error(&self.at, format!("{what} must be a list, not {}", self.what()));
                if matches!(self.kind, Kind::Map(_)) {
                    finding.help("begin each item with `- `");
                }
                &[]
            }
        }
    }

    /// The value of a field of a mapping.
    pub fn child(&self, name: &str) -> Option<&Node> {
        let Kind::Map(entries) = &self.kind else { return None };
        entries.iter().find(|(key, _)| key.scalar() == Some(name)).map(|(_, value)| value)
    }

    pub fn is_null(&self) -> bool {
        matches!(self.kind, Kind::Null)
    }

    /// What it is, for messages.
    pub fn what(&self) -> &'static str {
        match self.kind {
            Kind::Null => "nothing",
            Kind::Text(_) => "a string",
            Kind::Bare(_) => "a number or a boolean",
            Kind::List(_) => "a list",
            Kind::Map(_) => "a mapping",
        }
    }
}

/// Parses `text`. Errors are reported with their place in `file`.
pub(crate) fn parse(file: &str, text: &str, findings: &Report) -> Option<Node> {
    if text.len() as u64 > MAX_BYTES {
        findings.error(&Place::start_of(file), "the file is larger than 1 MiB").help("split it");
        return None;
    }
    let options = serde_saphyr::options! {
        with_snippet: false,
        non_finite_float_policy: NonFiniteFloatPolicy::PassThrough,
        budget: serde_saphyr::budget! { max_depth: MAX_DEPTH },
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: MAX_REPLAYED },
    };
    let origin = Origin { file: file.into(), text };
    match serde_saphyr::from_str_with_options::<Spanned<Written>>(text, options) {
        Ok(written) => Some(origin.node(written)),
        Err(error) => {
            origin.refuse(&error, findings);
            None
        }
    }
}

/// A node as the parser returns it, without the text it came from.
enum Written {
    Null,
    Text(String),
    Bare,
    List(Vec<Spanned<Written>>),
    Map(Vec<(Spanned<Written>, Spanned<Written>)>),
}

struct Origin<'t> {
    file: Arc<str>,
    text: &'t str,
}

impl Origin<'_> {
    fn place(&self, location: Location) -> Place {
        let count = |n: u64| u32::try_from(n).unwrap_or(u32::MAX).max(1);
        Place { file: Arc::clone(&self.file), line: count(location.line()), column: count(location.column()) }
    }

    fn node(&self, written: Spanned<Written>) -> Node {
        let at = self.place(written.referenced);
        let kind = match written.value {
            Written::Null => Kind::Null,
            Written::Text(text) => Kind::Text(text),
            Written::Bare => Kind::Bare(self.slice(written.defined)),
            Written::List(items) => Kind::List(items.into_iter().map(|item| self.node(item)).collect()),
            Written::Map(entries) => {
                Kind::Map(entries.into_iter().map(|(key, value)| (self.node(key), self.node(value))).collect())
            }
        };
        Node { kind, at }
    }

    /// A scalar that the parser took for a number or a boolean, as it was written: `1.50` is not `1.5`.
    fn slice(&self, defined: Location) -> String {
        let span = defined.span();
        let found = span.byte_offset().zip(span.byte_len()).and_then(|(start, len)| {
            let start = usize::try_from(start).ok()?;
            self.text.get(start..start.checked_add(usize::try_from(len).ok()?)?)
        });
        found.unwrap_or_default().trim_matches(['"', '\'']).to_owned()
    }

    fn refuse(&self, error: &Error, findings: &Report) {
        let at = error.location().map_or_else(|| Place::start_of(&self.file), |location| self.place(location));
        match error.without_snippet() {
            Error::DuplicateMappingKey { key, .. } => {
                let key = key.as_deref().unwrap_or("key");
                findings.error(&at, format!("there are two `{key}` in one mapping")).help("drop one");
            }
            Error::MultipleDocuments { .. } => {
                findings.error(&at, "a second document starts here").help("one file holds one document: split it");
            }
            other => {
                let text = other.to_string();
                // The place is already in front of the message.
                let message = text.split(" at line ").next().unwrap_or_default();
                let (line, before) = (at.line as usize, self.text.lines().take(at.line as usize));
                let near: Vec<&str> = before.skip(line.saturating_sub(2)).collect();
                findings
                    .error(&at, format!("invalid YAML: {message}"))
                    .help(remedy(&near, self.text.lines().nth(line)));
            }
        }
    }
}

/// What is probably wrong with a line that cannot be parsed, or the one before it. A value that goes on in the `next` line is
/// reported where it begins.
fn remedy(lines: &[&str], next: Option<&str>) -> &'static str {
    let count = |wanted: &[char]| lines.iter().map(|line| line.matches(wanted).count()).sum::<usize>();
    let tab = |line: &&str| line[..line.len() - line.trim_start().len()].contains('\t');
    let star = |line: &&str| [": *", "- *", "[*", ", *"].iter().any(|before| line.contains(before));
    if lines.last().is_some_and(star) {
        "quote a value that begins with `*`, for example `\"*\"`"
    } else if lines.iter().chain(&next).any(tab) {
        "indent with spaces, not with tabs"
    } else if count(&['[', '{']) != count(&[']', '}']) || count(&['"']) % 2 == 1 || count(&['\'']) % 2 == 1 {
        "close every bracket and quote"
    } else {
        "check the indentation of this line and the one above, and quote values that contain `: ` or ` #`"
    }
}

impl<'de> Deserialize<'de> for Written {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Anything)
    }
}

struct Anything;

macro_rules! bare {
    ($($visit:ident: $type:ty,)+) => {
        $(fn $visit<E>(self, _: $type) -> Result<Written, E> {
            Ok(Written::Bare)
        })+
    };
}

impl<'de> Visitor<'de> for Anything {
    type Value = Written;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string, a number, a list or a mapping")
    }

    bare! { visit_bool: bool, visit_i64: i64, visit_u64: u64, visit_i128: i128, visit_u128: u128, visit_f64: f64, }

    fn visit_unit<E>(self) -> Result<Written, E> {
        Ok(Written::Null)
    }

    fn visit_none<E>(self) -> Result<Written, E> {
        Ok(Written::Null)
    }

    fn visit_str<E>(self, text: &str) -> Result<Written, E> {
        Ok(Written::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Written, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(Written::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Written, A::Error> {
        let mut map = Vec::new();
        while let Some(entry) = entries.next_entry()? {
            map.push(entry);
        }
        Ok(Written::Map(map))
    }
}
