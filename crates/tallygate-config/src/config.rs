//! All files together: the format of each, and which may be combined.

use std::collections::HashMap;
use std::fmt;
use std::path::Path;

use tallygate::call::Call;
use tallygate::policy::{Descriptor, Domain, Mode, Policy, PolicySet, Rule};

use crate::crowd::{self, Conditions};
use crate::envoy::{self, Tree};
use crate::finding::{Finding, Findings, Place, Report, Severity};
use crate::limitador::{self, LimitadorRules};
use crate::node::{self, Kind, Node};
use crate::own;
use crate::source;

const MAX_POLICIES: usize = 10_000;

/// The content of policy files.
pub struct Config {
    /// The store: `memory`, or the URL of Redis or Valkey. It may contain a password.
    pub store: Option<String>,
    /// The policies.
    pub policies: PolicySet,
    /// What is accepted, but probably not what was meant.
    pub warnings: Vec<Finding>,
    store_at: Option<Place>,
    example: Option<Example>,
}

/// A call that falls under a policy.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Example {
    /// The domain of the policy.
    pub domain: String,
    /// The name of the policy.
    pub policy: String,
    /// The descriptor of the call.
    pub descriptor: Descriptor,
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let store = self.store.as_ref().map(|_| "(hidden: it may contain a password)");
        let Self { policies, warnings, .. } = self;
        f.debug_struct("Config").field("store", &store).field("policies", policies).field("warnings", warnings).finish()
    }
}

impl Config {
    /// Reads a file, or the visible YAML files of a folder; see [`read`](source::read). Skipped files are warnings.
    pub fn load(path: &Path) -> Result<Self, Findings> {
        let mut config = Self::from_texts(&source::read(path)?)?;
        config.warnings.extend(source::skipped(path));
        Ok(config)
    }

    /// Reads texts, each with the name that findings have for it.
    pub fn from_texts<N: AsRef<str>, T: AsRef<str>>(texts: &[(N, T)]) -> Result<Self, Findings> {
        let findings = Report::default();
        let mut draft = Draft::new(&findings);
        for (name, text) in texts {
            draft.read(name.as_ref(), text.as_ref());
        }
        let Draft { store, domains, .. } = draft;
        domains.iter().for_each(|domain| domain.warn_of_crowds(&findings));
        let warnings = findings.settle()?;
        let (domains, examples): (Vec<Domain>, Vec<Vec<Named>>) = domains.into_iter().map(DomainDraft::finish).unzip();
        let policies = PolicySet::new(domains).expect("names are checked where they are read");
        let example = example(&policies, &examples.concat());
        let (store, store_at) = store.unzip();
        Ok(Self { store, policies, warnings, store_at, example })
    }

    /// A call that falls under the first policy that can deny it, if one could be made up.
    pub fn example(&self) -> Option<&Example> {
        self.example.as_ref()
    }

    /// The finding that the store of the files cannot be used, with its place.
    pub fn invalid_store(&self, message: &str) -> Finding {
        let at = self.store_at.clone().unwrap_or_else(|| Place::whole("store"));
        at.finding(Severity::Error, message)
    }

    /// The policies of a server without files: ten calls a minute for each `client`, in the domain `default`.
    pub fn built_in() -> Self {
        let texts = [("(built-in)", include_str!("built_in.yaml"))];
        Self::from_texts(&texts).expect("the built-in policies are read in every test run")
    }
}

/// How many made-up calls are tried.
const MOST_EXAMPLES: usize = 100;

/// The first made-up call that falls under its policy, preferably one that the policy can deny.
fn example(policies: &PolicySet, examples: &[Named]) -> Option<Example> {
    let mut all = examples.iter().take(MOST_EXAMPLES).filter_map(|(domain, name, call)| {
        let found = policies.domain(domain)?.matcher().find(&[call]).into_iter();
        Some((found.map(|found| found.policy).find(|policy| policy.name() == name)?, call))
    });
    let denies = |policy: &Policy| policy.limit().is_some() && policy.mode() == Mode::Enforce;
    // Each is matched with every policy of its domain, so the search ends with the first that can be denied.
    let first = all.next()?;
    let better = if denies(&first.0) { None } else { all.find(|(policy, _)| denies(policy)) };
    let (policy, call) = better.unwrap_or(first);
    let (domain, policy) = (policy.domain().to_owned(), policy.name().to_owned());
    Some(Example { domain, policy, descriptor: call.clone() })
}

/// A domain, the name of one of its policies, and a call that should fall under it.
type Named = (String, String, Descriptor);

/// A value that a pattern matches.
pub(crate) fn fill_in(pattern: &str) -> String {
    pattern.replace('*', "x")
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
    /// The name of each policy, and a descriptor that should fall under it.
    pub examples: Vec<(String, Descriptor)>,
    /// The names that are taken, and where.
    pub names: HashMap<String, Place>,
    /// The conditions of the policies that can refuse a call. Empty for envoyproxy/ratelimit's format, where at most one applies
    /// to a descriptor.
    pub refusing: Vec<Conditions>,
    pub matching: Matching,
}

impl DomainDraft {
    fn warn_of_crowds(&self, findings: &Report) {
        let most = crowd::most(&self.refusing);
        if most > Call::MAX_CHECKS {
            let (name, room) = (&self.name, Call::MAX_CHECKS);
            let message = format!(
                "a call in domain `{name}` may fall under {most} policies; one that falls under more than {room} is denied"
            );
            let mut finding = findings.warn(&self.at, message);
            finding.help(match self.matching {
                Matching::Limitador(_) => "let their conditions exclude each other, or use another namespace",
                _ => "let them exclude each other by `match`, give some `mode: shadow`, or use another domain",
            });
        }
    }

    fn finish(self) -> (Domain, Vec<Named>) {
        let Self { name, examples, matching, .. } = self;
        let examples = examples.into_iter().map(|(policy, call)| (name.clone(), policy, call)).collect();
        let domain = match matching {
            Matching::Own(rules) => Domain::new(name, rules),
            Matching::Envoy(tree) => Domain::with_matcher(name, tree.policies().to_vec(), Box::new(tree)),
            Matching::Limitador(rules) => Domain::with_matcher(name, rules.policies(), Box::new(rules)),
        };
        (domain.expect("a domain has a name, and its policies are of it"), examples)
    }
}

/// How the policies of a domain are found, by format.
#[derive(Debug)]
pub(crate) enum Matching {
    Own(Vec<(Policy, Rule)>),
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
}

/// The name, with a number if it is taken.
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
        let has = |node: &Node, names: &[&str]| names.iter().any(|name| node.child(name).is_some());
        match &node.kind {
            Kind::Null => {
                // A half-saved file is empty: reading it as "no limits" would turn all limits off.
                self.findings.error(&node.at, "the file is empty").help("write `policies: []` if that is meant");
            }
            Kind::List(items) if items.iter().any(|item| has(item, &["namespace"])) => limitador::read(items, self),
            Kind::List(_) => {
                let message = "a list at the top level is limitador's format, but no item has a `namespace`";
                self.findings.error(&node.at, message).help("put our own policies under `policies:`");
            }
            _ if has(&node, &["policies", "store"]) => own::read(&node, self),
            _ if has(&node, &["domain", "descriptors"]) => envoy::read(&node, self),
            _ => own::read(&node, self),
        }
    }

    /// The store, which must be the same in all files.
    pub fn set_store(&mut self, node: &Node) {
        let Some((store, at)) = node.text("`store`", self.findings) else { return };
        match &self.store {
            // The values may contain passwords, so they are not shown.
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

    /// The domain of this name, created if needed; `None` if it exists in another format.
    pub fn domain(&mut self, name: &str, at: &Place, empty: Matching) -> Option<&mut DomainDraft> {
        let next = self.domains.len();
        let place = *self.places.entry(name.to_owned()).or_insert(next);
        if place == next {
            let (name, at) = (name.to_owned(), at.clone());
            // Limits that a request carries have a policy of their own in every domain.
            let names = HashMap::from([(Domain::REQUESTED.to_owned(), at.clone())]);
            self.domains.push(DomainDraft {
                name,
                at,
                examples: Vec::new(),
                names,
                refusing: Vec::new(),
                matching: empty,
            });
        } else if self.domains[place].matching.format() != empty.format() {
            let other = &self.domains[place];
            let (format, first) = (other.matching.format(), &other.at);
            let message = format!("domain `{name}` already exists in {format}'s format, at {first}");
            self.findings.error(at, message).help("a domain has one format: rename one of them, or rewrite it");
            return None;
        }
        Some(&mut self.domains[place])
    }

    pub fn has_domain(&self, name: &str) -> Option<&Place> {
        self.places.get(name).map(|&place| &self.domains[place].at)
    }

    /// Whether another policy is allowed; reports once that there are too many.
    pub fn has_room(&mut self, at: &Place) -> bool {
        self.policies += 1;
        if self.policies == MAX_POLICIES + 1 {
            let mut finding = self.findings.error(at, format!("there are more than {MAX_POLICIES} policies"));
            finding.help("one policy with `partition` counts any number of callers separately");
        }
        self.policies <= MAX_POLICIES
    }
}
