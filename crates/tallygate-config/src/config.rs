//! All files together: which format each is in, and what may stand side by side.

use std::collections::HashMap;
use std::fmt;
use std::path::Path;

use tallygate::{Domain, Matcher, Policy, PolicySet, Rule, Rules};

use crate::envoy::{self, Tree};
use crate::finding::{Finding, Findings, Place, Report};
use crate::limitador::{self, LimitadorRules};
use crate::node::{self, Kind, Node};
use crate::own;
use crate::source;

const MAX_POLICIES: usize = 10_000;

/// What files say: where states are kept, and the policies.
pub struct Config {
    /// The store: `memory`, or the URL of Redis or Valkey. It may hold a password.
    pub store: Option<String>,
    /// The policies.
    pub policies: PolicySet,
    /// What is worth a look.
    pub warnings: Vec<Finding>,
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let store = self.store.as_ref().map(|_| "(hidden: it may hold a password)");
        let Self { policies, warnings, .. } = self;
        f.debug_struct("Config").field("store", &store).field("policies", policies).field("warnings", warnings).finish()
    }
}

impl Config {
    /// Reads a file, or the visible YAML files of a folder; see [`read`](source::read).
    pub fn load(path: &Path) -> Result<Self, Findings> {
        Self::from_texts(&source::read(path)?)
    }

    /// Reads texts, each under the name that findings call it by.
    pub fn from_texts<N: AsRef<str>, T: AsRef<str>>(texts: &[(N, T)]) -> Result<Self, Findings> {
        let findings = Report::default();
        let mut draft = Draft::new(&findings);
        for (name, text) in texts {
            draft.read(name.as_ref(), text.as_ref());
        }
        let Draft { store, domains, .. } = draft;
        let warnings = findings.settle()?;
        let domains =
            domains.into_iter().map(|domain| Domain::new(domain.name, domain.policies, domain.matching.into_matcher()));
        let policies = PolicySet::new(domains.collect()).expect("names are checked where they are read");
        Ok(Self { store: store.map(|(store, _)| store), policies, warnings })
    }

    /// What is served if nobody wrote a file: ten calls a minute for each `client`, in the domain `default`.
    pub fn built_in() -> Self {
        let texts = [("(built-in)", include_str!("built_in.yaml"))];
        Self::from_texts(&texts).expect("the built-in policies are read in every test run")
    }
}

#[derive(Debug)]
pub(crate) struct Draft<'r> {
    pub findings: &'r Report,
    store: Option<(String, Place)>,
    domains: Vec<DomainDraft>,
    places: HashMap<String, usize>,
    policies: usize,
}

#[derive(Debug)]
pub(crate) struct DomainDraft {
    pub name: String,
    pub at: Place,
    pub policies: Vec<Policy>,
    /// The names that are taken, and where.
    pub names: HashMap<String, Place>,
    pub matching: Matching,
}

/// How the policies of a domain are found: each format has its own way.
#[derive(Debug)]
pub(crate) enum Matching {
    Own(Vec<Rule>),
    Envoy(Tree),
    Limitador(LimitadorRules),
}

impl Matching {
    fn format(&self) -> &'static str {
        match self {
            Self::Own(_) => "Tallygate",
            Self::Envoy(_) => "envoyproxy/ratelimit",
            Self::Limitador(_) => "limitador",
        }
    }

    fn into_matcher(self) -> Box<dyn Matcher> {
        match self {
            Self::Own(rules) => Box::new(Rules(rules)),
            Self::Envoy(tree) => Box::new(tree),
            Self::Limitador(rules) => Box::new(rules),
        }
    }
}

/// The name, or the name and a number, if it is taken.
pub(crate) fn unused_name(name: &str, is_taken: impl Fn(&str) -> bool) -> String {
    let numbered = (2..).map(|number| format!("{name}#{number}"));
    let mut names = std::iter::once(name.to_owned()).chain(numbered);
    names.find(|name| !is_taken(name)).expect("there are more numbers than names")
}

impl<'r> Draft<'r> {
    fn new(findings: &'r Report) -> Self {
        Self { findings, store: None, domains: Vec::new(), places: HashMap::new(), policies: 0 }
    }

    fn read(&mut self, file: &str, text: &str) {
        let Some(node) = node::parse(file, text, self.findings) else { return };
        let has = |node: &Node, names: &[&str]| match &node.kind {
            Kind::Map(entries) => entries.iter().any(|(key, _)| key.scalar().is_some_and(|key| names.contains(&key))),
            _ => false,
        };
        match &node.kind {
            Kind::Null => {
                // Half-saved files are empty: taking one for "no limits" would switch everything off.
                self.findings.error(&node.at, "the file is empty").help("write `policies: []` if that is meant");
            }
            Kind::List(items) if items.iter().any(|item| has(item, &["namespace"])) => limitador::read(items, self),
            Kind::List(_) => {
                let message = "a list at the top is limitador's format, and no item here has a `namespace`";
                self.findings.error(&node.at, message).help("put our own policies under `policies:`");
            }
            _ if has(&node, &["policies", "store"]) => own::read(&node, self),
            _ if has(&node, &["domain", "descriptors"]) => envoy::read(&node, self),
            _ => own::read(&node, self),
        }
    }

    /// Where the states are kept: one place for all files.
    pub fn set_store(&mut self, node: &Node) {
        let Some((store, at)) = node.text("`store`", self.findings) else { return };
        match &self.store {
            // The values are not shown: they may hold passwords.
            Some((other, first)) if other != store => {
                let message = format!("`store` differs from the one at {first}");
                self.findings.error(at, message).help("name the store in one file only");
            }
            _ if store != "memory" && !store.contains("://") => {
                let mut finding = self.findings.error(at, "`store` is neither `memory` nor a URL");
                finding.help("for example `store: redis://127.0.0.1:6379`");
            }
            _ => self.store = Some((store.to_owned(), at.clone())),
        }
    }

    /// The domain of this name, new if there was none; `None` if it is there in another format.
    pub fn domain(&mut self, name: &str, at: &Place, empty: Matching) -> Option<&mut DomainDraft> {
        let next = self.domains.len();
        let place = *self.places.entry(name.to_owned()).or_insert(next);
        if place == next {
            let (name, at) = (name.to_owned(), at.clone());
            // What a request brings along has a policy of its own in every domain.
            let names = HashMap::from([(Domain::REQUESTED.to_owned(), at.clone())]);
            self.domains.push(DomainDraft { name, at, policies: Vec::new(), names, matching: empty });
        } else if self.domains[place].matching.format() != empty.format() {
            let other = &self.domains[place];
            let (format, first) = (other.matching.format(), &other.at);
            let message = format!("domain `{}` is already there in {format}'s format, at {first}", name.escape_debug());
            self.findings.error(at, message).help("one domain, one format: rename one or rewrite it");
            return None;
        }
        Some(&mut self.domains[place])
    }

    pub fn has_domain(&self, name: &str) -> Option<&Place> {
        self.places.get(name).map(|&place| &self.domains[place].at)
    }

    /// Whether there is room for one policy more; says so once if not.
    pub fn has_room(&mut self, at: &Place) -> bool {
        self.policies += 1;
        if self.policies == MAX_POLICIES + 1 {
            let mut finding = self.findings.error(at, format!("there are more than {MAX_POLICIES} policies"));
            finding.help("one policy with `partition` counts any number of callers apart");
        }
        self.policies <= MAX_POLICIES
    }
}
