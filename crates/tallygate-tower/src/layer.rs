//! The layer: what is limited, how, and what refused callers are told.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::request::Parts;
use http::{Response, response};
use tallygate::{Cost, Descriptor, Limit, MemoryStore, PolicySet, Store, Stores, Verdict};
use tallygate_http::{Dialect, Prefixes, Trust, VerdictHeaders};
use tower_layer::Layer;

use crate::decide::Limits;
use crate::refusal::Refusal;
use crate::rule::Rule;
use crate::service::RateLimited;
use crate::settings::{Counts, Plan, Settings};

/// Limits how often the service behind it is called. Cheap to clone; clones share everything.
///
/// ```
/// use tallygate_tower::RateLimit;
///
/// let layer = RateLimit::per_client("100/min".parse()?);
/// # Ok::<(), tallygate::LimitError>(())
/// ```
pub struct RateLimit<S = MemoryStore> {
    limits: Arc<Limits<S>>,
}

impl RateLimit {
    /// One limit for each address that calls, on the embedded store.
    pub fn per_client(limit: Limit) -> Self {
        Self::new().rule(Rule::new("per-client", limit))
    }

    /// No limits yet, on an embedded store of its own.
    pub fn new() -> Self {
        Self { limits: Arc::new(Limits { settings: Settings::default(), stores: Stores::new(Arc::default()) }) }
    }
}

impl Default for RateLimit {
    fn default() -> Self {
        Self::new()
    }
}

impl<S: Store> RateLimit<S> {
    /// Changes the settings: clones keep what they were told.
    fn with(self, change: impl FnOnce(&mut Settings)) -> Self {
        let mut settings = self.limits.settings.clone();
        change(&mut settings);
        settings.derive();
        Self { limits: Arc::new(Limits { settings, stores: self.limits.stores.clone() }) }
    }

    /// One limit more. All of them make one decision: all are charged, or none. Takes the place of
    /// [`policies`](Self::policies).
    #[must_use]
    pub fn rule(self, rule: Rule) -> Self {
        let (domain, mut rules) = match &self.limits.settings.plan {
            Plan::Rules { rules, compiled } => (compiled.name().to_owned(), rules.clone()),
            Plan::Policies { domain, .. } => (domain.clone(), Vec::new()),
        };
        rules.push(rule);
        self.with(|settings| settings.plan = Plan::compile(domain, rules))
    }

    /// The namespace of the rules' states. `http` unless said: layers of one store and one domain share the states of rules
    /// of the same name. [`policies`](Self::policies) name a domain of their own.
    #[must_use]
    pub fn domain(self, domain: impl Into<String>) -> Self {
        let mut domain: String = domain.into();
        if domain.is_empty() {
            domain.push_str("http");
        }
        match &self.limits.settings.plan {
            Plan::Rules { rules, .. } => {
                let plan = Plan::compile(domain, rules.clone());
                self.with(|settings| settings.plan = plan)
            }
            Plan::Policies { .. } => self,
        }
    }

    /// Policies of a set, such as one that a server uses, too, in the place of rules. `describe` says what is known of a
    /// request; a request that is described by nothing that the policies count is not limited. The caller's address is in its
    /// extensions, as [`ClientAddress`](crate::ClientAddress), if it is known.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use tallygate::{Descriptor, PolicySet};
    /// use tallygate_tower::{ClientAddress, RateLimit};
    ///
    /// # let set = Arc::new(PolicySet::default());
    /// let layer = RateLimit::new().policies(set, "api", |parts| {
    ///     let address = parts.extensions.get::<ClientAddress>().map_or("unknown", ClientAddress::as_str);
    ///     Descriptor::new().with("remote_address", address).with("path", parts.uri.path())
    /// });
    /// ```
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
        self,
        source: impl Fn() -> Arc<PolicySet> + Send + Sync + 'static,
        domain: impl Into<String>,
        describe: impl Fn(&Parts) -> Descriptor + Send + Sync + 'static,
    ) -> Self {
        let (source, describe) = (Arc::new(source), Arc::new(describe));
        self.with(|settings| settings.plan = Plan::Policies { source, domain: domain.into(), describe })
    }

    /// Another store: one on Redis or Valkey shares the limits between processes and machines. An `Arc` of a store is a store,
    /// which others can use too.
    #[must_use]
    pub fn store<T: Store>(self, store: T) -> RateLimit<T> {
        let (settings, stores) = (self.limits.settings.clone(), self.limits.stores.with_shared(Arc::new(store)));
        RateLimit { limits: Arc::new(Limits { settings, stores }) }
    }

    /// Whom to believe about the address of a caller. Nobody unless said: then it is the peer of the connection.
    #[must_use]
    pub fn trust(self, trust: Trust) -> Self {
        // What was a trap may be none now, and the other way round.
        self.with(|settings| {
            (settings.addresses.trust, settings.addresses.traps) = (trust, Arc::default());
        })
    }

    /// How much of an address counts as one caller. All of IPv4 and the /64 of IPv6 unless said.
    #[must_use]
    pub fn prefixes(self, prefixes: Prefixes) -> Self {
        self.with(|settings| settings.addresses.prefixes = prefixes)
    }

    /// Where the server puts the address of the peer: an extension of the request, by its type.
    ///
    /// ```
    /// use std::net::SocketAddr;
    /// # #[derive(Clone)] struct ConnectInfo<T>(T);
    /// use tallygate_tower::RateLimit;
    ///
    /// let layer = RateLimit::per_client("100/min".parse()?).peer(|info: &ConnectInfo<SocketAddr>| Some(info.0.ip()));
    /// # Ok::<(), tallygate::LimitError>(())
    /// ```
    #[must_use]
    pub fn peer<E: Send + Sync + 'static>(self, peer: impl Fn(&E) -> Option<IpAddr> + Send + Sync + 'static) -> Self {
        self.with(|settings| {
            settings.addresses.peer = Some(Arc::new(move |extensions| extensions.get::<E>().and_then(&peer)))
        })
    }

    /// How many units a request takes. One unless said.
    #[must_use]
    pub fn cost(self, cost: impl Fn(&Parts) -> Cost + Send + Sync + 'static) -> Self {
        self.with(|settings| settings.cost = Some(Arc::new(cost)))
    }

    /// Which requests are not limited at all. None unless said, but for CORS preflights.
    #[must_use]
    pub fn skip(self, skip: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Self {
        self.with(|settings| settings.skip = Some(Arc::new(skip)))
    }

    /// Limits CORS preflights, too.
    #[must_use]
    pub fn limit_preflights(self) -> Self {
        self.with(|settings| settings.preflight = true)
    }

    /// Only responses for which this is true stay counted; for others the units are given back. A caller that goes away before
    /// the response stays counted, and so does a call that the service behind fails without a response.
    #[must_use]
    pub fn count_if(self, counts: impl Fn(&response::Parts) -> bool + Send + Sync + 'static) -> Self {
        self.with(|settings| settings.counts = Some(Counts { response: Arc::new(counts), error: true }))
    }

    /// Only failures stay counted: for logins.
    #[must_use]
    pub fn count_failures(self) -> Self {
        self.count_if(failed)
    }

    /// Only successes stay counted.
    #[must_use]
    pub fn count_successes(self) -> Self {
        let counts = Counts { response: Arc::new(|parts| !failed(parts)), error: false };
        self.with(|settings| settings.counts = Some(counts))
    }

    /// How limits are told in headers. [`Dialect::Draft10`] unless said.
    #[must_use]
    pub fn headers(self, dialect: Dialect) -> Self {
        self.with(|settings| settings.headers = VerdictHeaders::new(dialect, &[]))
    }

    /// Lets scripts of other origins read the headers, by `Access-Control-Expose-Headers`.
    #[must_use]
    pub fn expose_headers(self) -> Self {
        self.with(|settings| settings.expose = true)
    }

    /// Puts the [`Verdict`] into the extensions of the request, for handlers, and of the response, for layers
    /// outside. A response that refuses has it anyway.
    #[must_use]
    pub fn share_verdict(self) -> Self {
        self.with(|settings| settings.shared = true)
    }

    /// Called with each verdict before the service is, for metrics and logs: what was decided, by which rule, and from where.
    ///
    /// ```
    /// # use std::sync::atomic::{AtomicU64, Ordering};
    /// use tallygate_tower::RateLimit;
    ///
    /// static REFUSED: AtomicU64 = AtomicU64::new(0);
    /// let layer = RateLimit::per_client("100/min".parse()?).observe(|verdict| {
    ///     REFUSED.fetch_add(u64::from(!verdict.allowed()), Ordering::Relaxed);
    /// });
    /// # Ok::<(), tallygate::LimitError>(())
    /// ```
    #[must_use]
    pub fn observe(self, observe: impl Fn(&Verdict) + Send + Sync + 'static) -> Self {
        self.with(|settings| settings.observe = Some(Arc::new(observe)))
    }

    /// Another answer to refused callers. The headers of limits are added to it.
    #[must_use]
    pub fn respond(self, responder: impl Fn(&Refusal) -> Response<Bytes> + Send + Sync + 'static) -> Self {
        self.with(|settings| settings.responder = Some(Arc::new(responder)))
    }
}

/// A status from 400 on, or of gRPC's own anything but OK.
fn failed(parts: &response::Parts) -> bool {
    let refused = parts.headers.get("grpc-status").is_some_and(|status| status != "0");
    refused || parts.status.is_client_error() || parts.status.is_server_error()
}

impl<S> Clone for RateLimit<S> {
    fn clone(&self) -> Self {
        Self { limits: Arc::clone(&self.limits) }
    }
}

impl<S> fmt::Debug for RateLimit<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut layer = f.debug_struct("RateLimit");
        match &self.limits.settings.plan {
            Plan::Rules { rules, compiled } => layer.field("domain", &compiled.name()).field("rules", rules),
            Plan::Policies { domain, .. } => layer.field("domain", domain),
        };
        layer.finish_non_exhaustive()
    }
}

impl<S, T> Layer<T> for RateLimit<S> {
    type Service = RateLimited<T, S>;

    fn layer(&self, inner: T) -> Self::Service {
        RateLimited::new(inner, Arc::clone(&self.limits))
    }
}
