//! The settings of a layer, and what follows from them.

use std::sync::Arc;

use http::request::Parts;
use http::{Response, response};
use tallygate::Cost;
use tallygate::policy::{Descriptor, Policy, PolicySet, Verdict};
use tallygate_http::VerdictHeaders;

use crate::body::RefusalBody;
use crate::caller::Addresses;
use crate::refusal::Refusal;
use crate::rule::Rule;

/// The settings of a layer.
#[derive(Clone, Default)]
pub(crate) struct Settings {
    pub(crate) plan: Plan,
    pub(crate) addresses: Addresses,
    pub(crate) cost: Option<CostOf>,
    pub(crate) skip: Option<Skip>,
    pub(crate) counts: Option<Counts>,
    pub(crate) expose: bool,
    /// Whether handlers and outer layers see the verdict.
    pub(crate) shared: bool,
    pub(crate) preflight: bool,
    pub(crate) responder: Option<Responder>,
    pub(crate) observe: Option<Observe>,
    /// The headers of limits, with the constant parts rendered already.
    pub(crate) headers: VerdictHeaders,
    // Derived from the above.
    /// Whether a closure needs the parts of the request.
    pub(crate) needs_parts: bool,
    /// Whether a rule counts by client address.
    pub(crate) by_address: bool,
    /// Whether the fast path applies: nothing needs the verdict.
    pub(crate) fast: bool,
}

/// What limits a request.
#[derive(Clone)]
pub(crate) enum Plan {
    /// The layer's own rules, each with the policy that it is compiled to.
    Rules { domain: String, rules: Vec<(Rule, Arc<Policy>)> },
    /// Policies of a set.
    Policies { source: PolicySource, domain: String, describe: Describe },
}

pub(crate) type PolicySource = Arc<dyn Fn() -> Arc<PolicySet> + Send + Sync>;
pub(crate) type Describe = Arc<dyn Fn(&Parts) -> Descriptor + Send + Sync>;
pub(crate) type CostOf = Arc<dyn Fn(&Parts) -> Cost + Send + Sync>;
pub(crate) type Skip = Arc<dyn Fn(&Parts) -> bool + Send + Sync>;

/// Which calls stay counted.
#[derive(Clone)]
pub(crate) struct Counts {
    /// Those with such a response.
    pub(crate) response: Arc<dyn Fn(&response::Parts) -> bool + Send + Sync>,
    /// Those without a response.
    pub(crate) error: bool,
}

pub(crate) type Observe = Arc<dyn Fn(&Verdict) + Send + Sync>;
pub(crate) type Responder = Arc<dyn Fn(&Refusal) -> Response<RefusalBody> + Send + Sync>;

impl Default for Plan {
    fn default() -> Self {
        Self::compile("http".to_owned(), Vec::new())
    }
}

impl Plan {
    pub(crate) fn compile(domain: String, rules: Vec<Rule>) -> Self {
        let mut names: Vec<String> = Vec::with_capacity(rules.len());
        for (at, rule) in rules.iter().enumerate() {
            // Two rules of one name would share a state. Later ones are numbered, with names that no other rule has.
            let is_free = |name: &String| !names.contains(name) && rules.iter().all(|other| other.name != *name);
            let numbered = || (2..).map(|number| format!("{}-{number}", rule.name)).find(is_free);
            let repeated = rules[..at].iter().any(|earlier| earlier.name == rule.name);
            names.extend(if repeated { numbered() } else { Some(rule.name.clone()) });
        }
        let compile = |(rule, name): (Rule, String)| {
            let policy = Arc::new(rule.policy(&domain, name));
            (rule, policy)
        };
        let rules = rules.into_iter().zip(names).map(compile).collect();
        Self::Rules { domain, rules }
    }
}

impl Settings {
    /// Computes the derived fields.
    pub(crate) fn derive(&mut self) {
        let rules = match &self.plan {
            Plan::Rules { rules, .. } => &rules[..],
            // They may be reloaded at any time.
            Plan::Policies { .. } => &[],
        };
        self.headers = VerdictHeaders::new(self.headers.dialect(), rules.iter().map(|(_, policy)| policy));
        let described = matches!(self.plan, Plan::Policies { .. });
        self.needs_parts =
            described || self.skip.is_some() || self.cost.is_some() || rules.iter().any(|(rule, _)| rule.needs_parts());
        self.by_address = rules.iter().any(|(rule, _)| rule.caller.is_by_address());
        self.fast = !self.needs_parts && !self.shared && self.counts.is_none() && self.observe.is_none();
    }
}
