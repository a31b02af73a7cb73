//! Everything a layer was told, and what follows from it.

use std::sync::Arc;

use bytes::Bytes;
use http::request::Parts;
use http::{Response, response};
use tallygate::{Cost, Descriptor, Domain, PolicySet, Rules, Verdict};
use tallygate_http::VerdictHeaders;

use crate::caller::Addresses;
use crate::refusal::Refusal;
use crate::rule::Rule;

/// Everything a layer was told.
#[derive(Clone, Default)]
pub(crate) struct Settings {
    pub(crate) plan: Plan,
    pub(crate) addresses: Addresses,
    pub(crate) cost: Option<CostOf>,
    pub(crate) skip: Option<Skip>,
    pub(crate) counts: Option<Counts>,
    pub(crate) expose: bool,
    /// Whether handlers and layers outside get to see the verdict.
    pub(crate) shared: bool,
    pub(crate) preflight: bool,
    pub(crate) responder: Option<Responder>,
    pub(crate) observe: Option<Observe>,
    /// How limits are told, with what does not change written already.
    pub(crate) headers: VerdictHeaders,
    // What follows from all that.
    /// Whether a closure wants to see the request.
    pub(crate) told: bool,
    /// Whether it matters from where requests come.
    pub(crate) by_address: bool,
    /// Whether the status of one rule is all that anybody wants to know.
    pub(crate) fast: bool,
}

/// What limits a request.
#[derive(Clone)]
pub(crate) enum Plan {
    /// The layer's own rules.
    Rules { rules: Vec<Rule>, compiled: Arc<Domain> },
    /// Policies that others wrote.
    Policies { source: PolicySource, domain: String, describe: Describe },
}

pub(crate) type PolicySource = Arc<dyn Fn() -> Arc<PolicySet> + Send + Sync>;
pub(crate) type Describe = Arc<dyn Fn(&Parts) -> Descriptor + Send + Sync>;
pub(crate) type CostOf = Arc<dyn Fn(&Parts) -> Cost + Send + Sync>;
pub(crate) type Skip = Arc<dyn Fn(&Parts) -> bool + Send + Sync>;

/// What stays counted.
#[derive(Clone)]
pub(crate) struct Counts {
    /// Such responses.
    pub(crate) response: Arc<dyn Fn(&response::Parts) -> bool + Send + Sync>,
    /// Calls that got none.
    pub(crate) error: bool,
}

pub(crate) type Observe = Arc<dyn Fn(&Verdict) + Send + Sync>;
pub(crate) type Responder = Arc<dyn Fn(&Refusal) -> Response<Bytes> + Send + Sync>;

impl Default for Plan {
    fn default() -> Self {
        Self::compile("http".to_owned(), Vec::new())
    }
}

impl Plan {
    pub(crate) fn compile(domain: String, rules: Vec<Rule>) -> Self {
        let mut names: Vec<String> = Vec::with_capacity(rules.len());
        for (at, rule) in rules.iter().enumerate() {
            // Two rules of one name would be one state. Who has a name of its own keeps it.
            let is_free = |name: &String| !names.contains(name) && rules.iter().all(|other| other.name != *name);
            let numbered = || (2..).map(|number| format!("{}-{number}", rule.name)).find(is_free);
            let repeated = rules[..at].iter().any(|earlier| earlier.name == rule.name);
            names.extend(if repeated { numbered() } else { Some(rule.name.clone()) });
        }
        let policies = rules.iter().zip(names).map(|(rule, name)| rule.policy(&domain, name)).collect();
        // Which rules apply is found here, by request: nothing is left to match.
        let compiled = Arc::new(Domain::new(domain, policies, Box::new(Rules::default())));
        Self::Rules { rules, compiled }
    }
}

impl Settings {
    /// Finds out what follows from what was told.
    pub(crate) fn derive(&mut self) {
        let (rules, policies) = match &self.plan {
            Plan::Rules { rules, compiled } => (&rules[..], compiled.policies()),
            // Others may replace them at any time.
            Plan::Policies { .. } => (&[][..], &[][..]),
        };
        self.headers = VerdictHeaders::new(self.headers.dialect(), policies);
        let described = matches!(self.plan, Plan::Policies { .. });
        self.told = described || self.skip.is_some() || self.cost.is_some() || rules.iter().any(Rule::is_told);
        self.by_address = rules.iter().any(|rule| rule.caller.is_by_address());
        self.fast = !self.told && !self.shared && self.counts.is_none() && self.observe.is_none();
    }
}
