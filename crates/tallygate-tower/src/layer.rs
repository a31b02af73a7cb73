//! The layer: what is limited, how, and the answer to refused callers.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use http::request::Parts;
use http::{Response, response};
use tallygate::hold::Holds;
use tallygate::limit::{IntoLimit, LimitError};
use tallygate::policy::{Descriptor, Instances, PolicySet, Stores, Verdict};
use tallygate::{Cost, MemoryStore, Store};
use tallygate_http::{Dialect, Prefixes, Trust, VerdictHeaders};
use tower_layer::Layer;

use crate::body::RefusalBody;
use crate::decide::Limits;
use crate::refusal::Refusal;
use crate::reserve::{Reserve, ReserveLimit};
use crate::rule::Rule;
use crate::service::RateLimited;
use crate::settings::{Counts, Plan, Settings};

/// Limits how often the service behind it is called. Cheap to clone; clones share everything.
///
/// ```
/// use tallygate_tower::RateLimit;
///
/// let layer = RateLimit::per_client("100/min")?;
/// # Ok::<(), tallygate_tower::LimitError>(())
/// ```
pub struct RateLimit<S = MemoryStore> {
    limits: Arc<Limits<S>>,
}

impl RateLimit {
    /// One limit for each client address, on the embedded store. `limit` is a [`Limit`](tallygate::Limit) or its text.
    ///
    /// # Errors
    /// If the text is not a limit.
    pub fn per_client(limit: impl IntoLimit) -> Result<Self, LimitError> {
        Ok(Self::new().rule(Rule::new("per-client", limit)?))
    }

    /// A layer without rules, on its own embedded store.
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
    /// Changes the settings of this layer; clones keep theirs.
    fn with(self, change: impl FnOnce(&mut Settings)) -> Self {
        let mut settings = self.limits.settings.clone();
        change(&mut settings);
        settings.derive();
        Self { limits: Arc::new(Limits { settings, stores: self.limits.stores.clone() }) }
    }

    /// Adds a limit. All rules make one decision: all are charged, or none. Replaces
    /// [`policies`](Self::policies).
    #[must_use]
    pub fn rule(self, rule: Rule) -> Self {
        let (domain, mut rules) = match &self.limits.settings.plan {
            Plan::Rules { domain, rules } => (domain.clone(), rules.iter().map(|(rule, _)| rule.clone()).collect()),
            Plan::Policies { domain, .. } => (domain.clone(), Vec::new()),
        };
        rules.push(rule);
        self.with(|settings| settings.plan = Plan::compile(domain, rules))
    }

    /// The namespace of the rules' states; `http` by default. Layers with the same store and domain share the states of rules
    /// with the same name. [`policies`](Self::policies) have their own domain.
    #[must_use]
    pub fn domain(self, domain: impl Into<String>) -> Self {
        let mut domain: String = domain.into();
        if domain.is_empty() {
            domain.push_str("http");
        }
        match &self.limits.settings.plan {
            Plan::Rules { rules, .. } => {
                let plan = Plan::compile(domain, rules.iter().map(|(rule, _)| rule.clone()).collect());
                self.with(|settings| settings.plan = plan)
            }
            Plan::Policies { .. } => self,
        }
    }

    /// Uses the policies of a set, for example one that a server also uses, instead of rules. `describe` turns a request into a
    /// descriptor; a request that no policy matches is not limited. The client address, if known, is in the extensions of the
    /// request as [`ClientAddress`](crate::ClientAddress).
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use tallygate::policy::{Descriptor, PolicySet};
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

    /// Like [`policies`](Self::policies), but asks `source` for the set on every request: for sets that are reloaded.
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

    /// Reserves what a request is estimated to use, and settles what it used: see [`Reserve`]. This is the last setting, after
    /// [`store`](Self::store).
    ///
    /// ```
    /// use tallygate_tower::{RateLimit, Reserve, Rule};
    ///
    /// // Ten megabytes a minute. A megabyte is reserved for each download, and what passed is what it used.
    /// let bytes = RateLimit::new().rule(Rule::new("bytes", "10000000/min")?);
    /// let layer = bytes.reserve(Reserve::units(|_| 1_000_000).settle_by_size());
    /// # Ok::<(), tallygate_tower::LimitError>(())
    /// ```
    pub fn reserve(self, reserve: Reserve) -> ReserveLimit<S>
    where
        S: Holds,
    {
        let plan = match &self.limits.settings.plan {
            Plan::Rules { domain, rules } => {
                Plan::compile(domain.clone(), rules.iter().map(|(rule, _)| rule.clone().reserved()).collect())
            }
            policies @ Plan::Policies { .. } => policies.clone(),
        };
        ReserveLimit::new(self.with(|settings| settings.plan = plan).limits, reserve)
    }

    /// How many processes share the store; one by default. While it is unreachable, a rule with
    /// [`OnError::Local`](tallygate::policy::OnError::Local) allows its limit divided by this number.
    #[must_use]
    pub fn instances(self, count: u32) -> Self {
        let stores = self.limits.stores.clone().with_instances(Instances::new(count));
        Self { limits: Arc::new(Limits { settings: self.limits.settings.clone(), stores }) }
    }

    /// Another store. A store on Redis or Valkey shares the limits between processes and machines. An `Arc` of a store is a store
    /// too, for sharing it within the process.
    #[must_use]
    pub fn store<T: Store>(self, store: T) -> RateLimit<T> {
        let (settings, stores) = (self.limits.settings.clone(), self.limits.stores.with_shared(Arc::new(store)));
        RateLimit { limits: Arc::new(Limits { settings, stores }) }
    }

    /// The proxies that are trusted to report the client address. None by default: the client is the peer of the connection.
    #[must_use]
    pub fn trust(self, trust: Trust) -> Self {
        // Other mistakes are possible now.
        self.with(|settings| {
            (settings.addresses.trust, settings.addresses.diagnostics) = (trust, Arc::default());
        })
    }

    /// How much of an address identifies a caller. By default the whole IPv4 address and the /64 of IPv6.
    #[must_use]
    pub fn prefixes(self, prefixes: Prefixes) -> Self {
        self.with(|settings| settings.addresses.prefixes = prefixes)
    }

    /// Where the server puts the peer's address: an extension of the request, by its type.
    ///
    /// ```
    /// use std::net::SocketAddr;
    /// # #[derive(Clone)] struct ConnectInfo<T>(T);
    /// use tallygate_tower::RateLimit;
    ///
    /// let layer = RateLimit::per_client("100/min")?.peer(|info: &ConnectInfo<SocketAddr>| Some(info.0.ip()));
    /// # Ok::<(), tallygate_tower::LimitError>(())
    /// ```
    #[must_use]
    pub fn peer<E: Send + Sync + 'static>(self, peer: impl Fn(&E) -> Option<IpAddr> + Send + Sync + 'static) -> Self {
        self.with(|settings| {
            settings.addresses.peer = Some(Arc::new(move |extensions| extensions.get::<E>().and_then(&peer)))
        })
    }

    /// How many units a request takes. Defaults to one.
    #[must_use]
    pub fn cost(self, cost: impl Fn(&Parts) -> Cost + Send + Sync + 'static) -> Self {
        self.with(|settings| settings.cost = Some(Arc::new(cost)))
    }

    /// Requests that are not limited at all. By default only CORS preflights.
    #[must_use]
    pub fn skip(self, skip: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Self {
        self.with(|settings| settings.skip = Some(Arc::new(skip)))
    }

    /// Limits CORS preflights too.
    #[must_use]
    pub fn limit_preflights(self) -> Self {
        self.with(|settings| settings.preflight = true)
    }

    /// Counts only calls whose response fulfils this; the units of others are refunded. A call stays counted if the caller
    /// disconnects before the response, or if the inner service fails without one.
    #[must_use]
    pub fn count_if(self, counts: impl Fn(&response::Parts) -> bool + Send + Sync + 'static) -> Self {
        self.with(|settings| settings.counts = Some(Counts { response: Arc::new(counts), error: true }))
    }

    /// Counts only failures, for example wrong passwords.
    #[must_use]
    pub fn count_failures(self) -> Self {
        self.count_if(failed)
    }

    /// Counts only successes.
    #[must_use]
    pub fn count_successes(self) -> Self {
        let counts = Counts { response: Arc::new(|parts| !failed(parts)), error: false };
        self.with(|settings| settings.counts = Some(counts))
    }

    /// How limits are reported in headers. Defaults to [`Dialect::Draft10`].
    #[must_use]
    pub fn headers(self, dialect: Dialect) -> Self {
        self.with(|settings| settings.headers = VerdictHeaders::new(dialect, []))
    }

    /// Lets scripts of other origins read the headers, through `Access-Control-Expose-Headers`.
    #[must_use]
    pub fn expose_headers(self) -> Self {
        self.with(|settings| settings.expose = true)
    }

    /// Puts the [`Verdict`] into the extensions of the request, for handlers, and of the response, for outer
    /// layers. A refusal always carries it.
    #[must_use]
    pub fn share_verdict(self) -> Self {
        self.with(|settings| settings.shared = true)
    }

    /// Called with each verdict, before the service: for metrics and logs. It has the outcome, the rules, and where the answer came
    /// from.
    ///
    /// ```
    /// # use std::sync::atomic::{AtomicU64, Ordering};
    /// use tallygate_tower::RateLimit;
    ///
    /// static REFUSED: AtomicU64 = AtomicU64::new(0);
    /// let layer = RateLimit::per_client("100/min")?.observe(|verdict| {
    ///     REFUSED.fetch_add(u64::from(!verdict.allowed()), Ordering::Relaxed);
    /// });
    /// # Ok::<(), tallygate_tower::LimitError>(())
    /// ```
    #[must_use]
    pub fn observe(self, observe: impl Fn(&Verdict) + Send + Sync + 'static) -> Self {
        self.with(|settings| settings.observe = Some(Arc::new(observe)))
    }

    /// Your own answer to refused callers. The headers of limits are added to it.
    ///
    /// The closure returns a response whose body is `Bytes`, text, or, with the feature `axum`, axum's own; any other body takes
    /// `response.map(RefusalBody::new)`.
    ///
    #[cfg_attr(feature = "axum", doc = "```")]
    #[cfg_attr(not(feature = "axum"), doc = "```ignore")]
    /// use axum::response::IntoResponse;
    /// use tallygate_tower::RateLimit;
    ///
    /// let layer = RateLimit::per_client("100/min")?.respond(|refusal| {
    ///     let wait = refusal.retry_after_seconds();
    ///     (refusal.status(), format!("slow down, retry in {wait:?} seconds")).into_response()
    /// });
    /// # Ok::<(), tallygate_tower::LimitError>(())
    /// ```
    #[must_use]
    pub fn respond<B: Into<RefusalBody>>(
        self,
        responder: impl Fn(&Refusal) -> Response<B> + Send + Sync + 'static,
    ) -> Self {
        self.with(|settings| settings.responder = Some(Arc::new(move |refusal| responder(refusal).map(Into::into))))
    }
}

/// A status of 400 or above, or any gRPC status but OK.
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
            Plan::Rules { domain, rules } => layer.field("domain", domain).field("rules", rules),
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
