//! The layer: what is limited, how, and what refused callers are told.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::request::Parts;
use http::{Response, response};
use tollgate::{Cost, Descriptor, Domain, Limit, MemoryStore, PolicySet, Rules, Store};
use tollgate_http::{Dialect, Prefixes, Trust};
use tower_layer::Layer;

use crate::caller::Addresses;
use crate::refusal::Refusal;
use crate::rule::Rule;
use crate::service::RateLimited;

/// Limits how often the service behind it is called. Cheap to clone; clones share everything.
///
/// ```
/// use tollgate_tower::RateLimit;
///
/// let layer = RateLimit::per_client("100/min".parse()?);
/// # Ok::<(), tollgate::LimitError>(())
/// ```
pub struct RateLimit<S = MemoryStore> {
    pub(crate) settings: Arc<Settings<S>>,
}

/// Everything a layer was told.
pub(crate) struct Settings<S> {
    pub(crate) store: Arc<S>,
    /// Decides for rules that say so while the store cannot.
    pub(crate) local: Arc<MemoryStore>,
    pub(crate) plan: Plan,
    pub(crate) addresses: Addresses,
    pub(crate) cost: Option<CostOf>,
    pub(crate) skip: Option<Skip>,
    pub(crate) counts: Option<Counts>,
    pub(crate) dialect: Dialect,
    pub(crate) expose: bool,
    pub(crate) preflight: bool,
    pub(crate) responder: Option<Responder>,
}

/// What limits a request.
#[derive(Clone)]
pub(crate) enum Plan {
    /// The layer's own rules; told, if closures of theirs want to see the request.
    Rules { domain: String, rules: Vec<Rule>, compiled: Arc<Domain>, told: bool },
    /// Policies that others wrote.
    Policies { source: PolicySource, domain: String, describe: Describe },
}

pub(crate) type PolicySource = Arc<dyn Fn() -> Arc<PolicySet> + Send + Sync>;
pub(crate) type Describe = Arc<dyn Fn(&Parts) -> Descriptor + Send + Sync>;
pub(crate) type CostOf = Arc<dyn Fn(&Parts) -> Cost + Send + Sync>;
pub(crate) type Skip = Arc<dyn Fn(&Parts) -> bool + Send + Sync>;
pub(crate) type Counts = Arc<dyn Fn(&response::Parts) -> bool + Send + Sync>;
pub(crate) type Responder = Arc<dyn Fn(&Refusal) -> Response<Bytes> + Send + Sync>;

impl RateLimit {
    /// One limit for each address that calls, on the embedded store.
    pub fn per_client(limit: Limit) -> Self {
        Self::new().rule(Rule::new("per-client", limit))
    }

    /// No limits yet, on an embedded store of its own.
    pub fn new() -> Self {
        Self {
            settings: Arc::new(Settings {
                store: Arc::new(MemoryStore::new()),
                local: Arc::new(MemoryStore::new()),
                plan: Plan::compile("http".to_owned(), Vec::new()),
                addresses: Addresses::default(),
                cost: None,
                skip: None,
                counts: None,
                dialect: Dialect::default(),
                expose: false,
                preflight: false,
                responder: None,
            }),
        }
    }
}

impl Default for RateLimit {
    fn default() -> Self {
        Self::new()
    }
}

impl Plan {
    fn compile(domain: String, rules: Vec<Rule>) -> Self {
        let mut policies = Vec::with_capacity(rules.len());
        for (at, rule) in rules.iter().enumerate() {
            // Two rules of one name would be one state.
            let taken = rules[..at].iter().filter(|earlier| earlier.name == rule.name).count();
            let name = if taken == 0 { rule.name.clone() } else { format!("{}-{}", rule.name, taken + 1) };
            policies.push(rule.policy(&domain, name));
        }
        // Which rules apply is found here, by request: nothing is left to match.
        let compiled = Arc::new(Domain::new(domain.clone(), policies, Box::new(Rules::default())));
        let told = rules.iter().any(Rule::is_told);
        Self::Rules { domain, rules, compiled, told }
    }
}

impl<S> RateLimit<S> {
    /// The settings, to be changed: clones keep what they were told.
    fn change(&mut self) -> &mut Settings<S> {
        Arc::make_mut(&mut self.settings)
    }

    /// One limit more. All of them make one decision: all are charged, or none.
    #[must_use]
    pub fn rule(mut self, rule: Rule) -> Self {
        let (domain, mut rules) = match &self.settings.plan {
            Plan::Rules { domain, rules, .. } => (domain.clone(), rules.clone()),
            Plan::Policies { domain, .. } => (domain.clone(), Vec::new()),
        };
        rules.push(rule);
        self.change().plan = Plan::compile(domain, rules);
        self
    }

    /// The namespace of the rules' states. `http` unless said: layers of one store and one domain share the states of rules
    /// of the same name.
    #[must_use]
    pub fn domain(mut self, domain: impl Into<String>) -> Self {
        let mut domain: String = domain.into();
        if domain.is_empty() {
            domain.push_str("http");
        }
        let plan = match &self.settings.plan {
            Plan::Rules { rules, .. } => Plan::compile(domain, rules.clone()),
            Plan::Policies { source, describe, .. } => {
                Plan::Policies { source: Arc::clone(source), domain, describe: Arc::clone(describe) }
            }
        };
        self.change().plan = plan;
        self
    }

    /// Policies of a set, such as one that a server uses, too, in the place of rules. `describe` says what is known of a
    /// request.
    #[must_use]
    pub fn policies(
        self,
        set: Arc<PolicySet>,
        domain: impl Into<String>,
        describe: impl Fn(&Parts) -> Descriptor + Send + Sync + 'static,
    ) -> Self {
        self.policies_from(move || Arc::clone(&set), domain, describe)
    }

    /// The same, with the set asked for on every request: for sets that are replaced.
    #[must_use]
    pub fn policies_from(
        mut self,
        source: impl Fn() -> Arc<PolicySet> + Send + Sync + 'static,
        domain: impl Into<String>,
        describe: impl Fn(&Parts) -> Descriptor + Send + Sync + 'static,
    ) -> Self {
        let (source, describe) = (Arc::new(source), Arc::new(describe));
        self.change().plan = Plan::Policies { source, domain: domain.into(), describe };
        self
    }

    /// Another store: one on Redis or Valkey shares the limits between processes and machines.
    #[must_use]
    pub fn store<T: Store>(self, store: T) -> RateLimit<T> {
        self.shared_store(Arc::new(store))
    }

    /// A store that others use, too.
    #[must_use]
    pub fn shared_store<T: Store>(self, store: Arc<T>) -> RateLimit<T> {
        RateLimit { settings: Arc::new(self.settings.with_store(store)) }
    }

    /// Whom to believe about the address of a caller. Nobody unless said: then it is the peer of the connection.
    #[must_use]
    pub fn trust(mut self, trust: Trust) -> Self {
        self.change().addresses.trust = trust;
        self
    }

    /// How much of an address counts as one caller. All of IPv4 and the /64 of IPv6 unless said.
    #[must_use]
    pub fn prefixes(mut self, prefixes: Prefixes) -> Self {
        self.change().addresses.prefixes = prefixes;
        self
    }

    /// Where the server puts the address of the peer: an extension of the request, by its type.
    ///
    /// ```
    /// use std::net::SocketAddr;
    /// # #[derive(Clone)] struct ConnectInfo<T>(T);
    /// use tollgate_tower::RateLimit;
    ///
    /// let layer = RateLimit::per_client("100/min".parse()?).peer(|info: &ConnectInfo<SocketAddr>| Some(info.0.ip()));
    /// # Ok::<(), tollgate::LimitError>(())
    /// ```
    #[must_use]
    pub fn peer<E: Send + Sync + 'static>(
        mut self,
        peer: impl Fn(&E) -> Option<IpAddr> + Send + Sync + 'static,
    ) -> Self {
        self.change().addresses.peer = Arc::new(move |extensions| extensions.get::<E>().and_then(&peer));
        self
    }

    /// How many units a request takes. One unless said.
    #[must_use]
    pub fn cost(mut self, cost: impl Fn(&Parts) -> Cost + Send + Sync + 'static) -> Self {
        self.change().cost = Some(Arc::new(cost));
        self
    }

    /// Which requests are not limited at all. None unless said, but for CORS preflights.
    #[must_use]
    pub fn skip(mut self, skip: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Self {
        self.change().skip = Some(Arc::new(skip));
        self
    }

    /// Limits CORS preflights, too.
    #[must_use]
    pub fn limit_preflights(mut self) -> Self {
        self.change().preflight = true;
        self
    }

    /// Only responses for which this is true stay counted; for others the units are given back. A caller that goes away before
    /// the response stays counted.
    #[must_use]
    pub fn count_if(mut self, counts: impl Fn(&response::Parts) -> bool + Send + Sync + 'static) -> Self {
        self.change().counts = Some(Arc::new(counts));
        self
    }

    /// Only failures stay counted: for logins.
    #[must_use]
    pub fn count_failures(self) -> Self {
        self.count_if(failed)
    }

    /// Only successes stay counted.
    #[must_use]
    pub fn count_successes(self) -> Self {
        self.count_if(|parts| !failed(parts))
    }

    /// How limits are told in headers. [`Dialect::Draft10`] unless said.
    #[must_use]
    pub fn headers(mut self, dialect: Dialect) -> Self {
        self.change().dialect = dialect;
        self
    }

    /// Lets scripts of other origins read the headers, by `Access-Control-Expose-Headers`.
    #[must_use]
    pub fn expose_headers(mut self) -> Self {
        self.change().expose = true;
        self
    }

    /// Another answer to refused callers. The headers of limits are added to it.
    #[must_use]
    pub fn respond(mut self, responder: impl Fn(&Refusal) -> Response<Bytes> + Send + Sync + 'static) -> Self {
        self.change().responder = Some(Arc::new(responder));
        self
    }
}

/// A status from 400 on, or of gRPC's own anything but OK.
fn failed(parts: &response::Parts) -> bool {
    let refused = parts.headers.get("grpc-status").is_some_and(|status| status != "0");
    refused || parts.status.is_client_error() || parts.status.is_server_error()
}

impl<S> Settings<S> {
    fn with_store<T>(&self, store: Arc<T>) -> Settings<T> {
        Settings {
            store,
            local: Arc::clone(&self.local),
            plan: self.plan.clone(),
            addresses: self.addresses.clone(),
            cost: self.cost.clone(),
            skip: self.skip.clone(),
            counts: self.counts.clone(),
            dialect: self.dialect,
            expose: self.expose,
            preflight: self.preflight,
            responder: self.responder.clone(),
        }
    }
}

impl<S> Clone for Settings<S> {
    fn clone(&self) -> Self {
        self.with_store(Arc::clone(&self.store))
    }
}

impl<S> Clone for RateLimit<S> {
    fn clone(&self) -> Self {
        Self { settings: Arc::clone(&self.settings) }
    }
}

impl<S> fmt::Debug for RateLimit<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut layer = f.debug_struct("RateLimit");
        match &self.settings.plan {
            Plan::Rules { domain, rules, .. } => layer.field("domain", domain).field("rules", rules),
            Plan::Policies { domain, .. } => layer.field("domain", domain),
        };
        layer.finish_non_exhaustive()
    }
}

impl<S, T> Layer<T> for RateLimit<S> {
    type Service = RateLimited<T, S>;

    fn layer(&self, inner: T) -> Self::Service {
        RateLimited::new(inner, Arc::clone(&self.settings))
    }
}
