//! Who is calling.

use std::borrow::Cow;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use http::header::{GetAll, HeaderName, HeaderValue};
use http::request::Parts;
use http::{Extensions, Method};
use tallygate::Subject;
use tallygate_http::{Prefixes, Trust, client_address, digest};

use crate::request_view::RequestView;
use crate::traps::Traps;

/// Who is calling, as far as a limit is concerned: one thing known of a request, or several together.
///
/// Callers of whom it is not known share one state, so that leaving it out gains nothing.
#[derive(Clone)]
pub struct Caller {
    features: Vec<(Cow<'static, str>, Feature)>,
}

/// A text made of a request.
type Told = Arc<dyn Fn(&Parts) -> Option<String> + Send + Sync>;

#[derive(Clone)]
enum Feature {
    Address,
    Header(HeaderName),
    Method,
    Told(Told),
}

impl Caller {
    /// The address: of the peer, or of whom trusted proxies name ([`RateLimit::trust`](crate::RateLimit::trust)); IPv6 by
    /// its /64 ([`RateLimit::prefixes`](crate::RateLimit::prefixes)).
    pub fn address() -> Self {
        Self::of("address", Feature::Address)
    }

    /// The value of a header, such as an API key. It is hashed before it becomes part of a key. An empty one is unknown, and so are
    /// two: who authenticates by the other must not be counted by this one.
    ///
    /// # Panics
    /// If `name` is no header's name.
    #[track_caller]
    pub fn header(name: &str) -> Self {
        let Ok(header) = HeaderName::from_bytes(name.as_bytes()) else { panic!("`{name}` is no header's name") };
        Self::of(header.as_str().to_owned(), Feature::Header(header))
    }

    /// What an authentication layer before this one has put into the extensions of the request.
    ///
    /// ```
    /// # use tallygate_tower::Caller;
    /// #[derive(Clone)]
    /// struct User { id: u64 }
    ///
    /// let caller = Caller::extension(|user: &User| user.id.to_string());
    /// ```
    pub fn extension<E: Send + Sync + 'static>(told: impl Fn(&E) -> String + Send + Sync + 'static) -> Self {
        Self::from_fn("extension", move |parts| parts.extensions.get::<E>().map(&told))
    }

    /// The method, so that each is counted apart. Those that HTTP does not define are counted together, or a caller could invent
    /// as many as it likes.
    pub fn method() -> Self {
        Self::of("method", Feature::Method)
    }

    /// The template of the route, such as `/users/{id}`: each route is counted apart.
    #[cfg(feature = "axum")]
    pub fn route() -> Self {
        Self::from_fn("route", |parts| Some(parts.extensions.get::<axum::extract::MatchedPath>()?.as_str().to_owned()))
    }

    /// Everybody together.
    pub fn everybody() -> Self {
        Self { features: Vec::new() }
    }

    /// Whatever a request tells. `name` keeps it apart from other things of the same value.
    pub fn from_fn(name: &'static str, told: impl Fn(&Parts) -> Option<String> + Send + Sync + 'static) -> Self {
        Self::of(name, Feature::Told(Arc::new(told)))
    }

    /// Both together: each pair is counted apart.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.features.extend(other.features);
        self
    }

    /// Whether a closure wants to see the request.
    pub(crate) fn is_told(&self) -> bool {
        self.features.iter().any(|(_, feature)| matches!(feature, Feature::Told(_)))
    }

    fn of(name: impl Into<Cow<'static, str>>, feature: Feature) -> Self {
        Self { features: vec![(name.into(), feature)] }
    }

    /// Whether the address matters.
    pub(crate) fn is_by_address(&self) -> bool {
        self.features.iter().any(|(_, feature)| matches!(feature, Feature::Address))
    }

    /// What is known of the caller, and whether all of it is.
    #[inline(always)]
    pub(crate) fn subject(&self, request: RequestView<'_>, addresses: &Addresses) -> (Subject, bool) {
        if let [(_, Feature::Address)] = &self.features[..]
            && let Some(subject) = addresses.usual_subject(request)
        {
            return (subject, true);
        }
        self.combined(request, addresses)
    }

    fn combined(&self, request: RequestView<'_>, addresses: &Addresses) -> (Subject, bool) {
        let mut known = true;
        let values: Vec<(&str, String)> = self
            .features
            .iter()
            .map(|(name, feature)| {
                let value = feature.value(request, addresses);
                known &= value.is_some();
                // A digest or an address is never empty: nobody can pass for the unknown.
                (&**name, value.unwrap_or_default())
            })
            .collect();
        (Subject::new(values.iter().map(|(name, value)| (*name, value.as_str()))), known)
    }
}

impl Feature {
    fn value(&self, request: RequestView<'_>, addresses: &Addresses) -> Option<String> {
        match self {
            Self::Address => addresses.of(request).map(|address| addresses.prefixes.mask(address)),
            Self::Header(name) => only(request.headers.get_all(name)).map(|value| digest(value.as_bytes())),
            Self::Method => Some(standard(request.method).to_owned()),
            Self::Told(told) => told(request.parts()).filter(|value| !value.is_empty()),
        }
    }
}

/// The address of a caller as limits count it: the peer's, or whom trusted proxies name, IPv6 by its /64. Requests have it in their
/// extensions when they are [described](crate::RateLimit::policies).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientAddress(String);

impl ClientAddress {
    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The only value, unless it is empty.
fn only(values: GetAll<'_, HeaderValue>) -> Option<&HeaderValue> {
    let mut values = values.iter();
    values.next().filter(|value| values.next().is_none() && !value.is_empty())
}

fn standard(method: &Method) -> &str {
    const STANDARD: [Method; 9] = [
        Method::GET,
        Method::POST,
        Method::PUT,
        Method::DELETE,
        Method::HEAD,
        Method::OPTIONS,
        Method::CONNECT,
        Method::PATCH,
        Method::TRACE,
    ];
    if STANDARD.contains(method) { method.as_str() } else { "other" }
}

/// Whose address is the caller's.
#[derive(Clone, Default)]
pub(crate) struct Addresses {
    /// Where the peer's address is found, if not where servers put it.
    pub(crate) peer: Option<Peer>,
    pub(crate) trust: Trust,
    pub(crate) prefixes: Prefixes,
    pub(crate) traps: Arc<Traps>,
}

pub(crate) type Peer = Arc<dyn Fn(&Extensions) -> Option<IpAddr> + Send + Sync>;

impl Addresses {
    #[inline(always)]
    fn peer(&self, request: RequestView<'_>) -> Option<IpAddr> {
        match &self.peer {
            None => known_peer(request.extensions),
            Some(peer) => peer(request.extensions),
        }
    }

    /// The subject of most callers, in a fraction of the time: by the whole IPv4 address of the peer.
    #[inline(always)]
    fn usual_subject(&self, request: RequestView<'_>) -> Option<Subject> {
        let Some(IpAddr::V4(peer)) = self.peer(request) else { return None };
        if !self.trust.proxies.is_none() || u32::from(self.prefixes.v4) < Ipv4Addr::BITS {
            return None;
        }
        Some(Subject::of_ipv4(peer))
    }

    /// Looks for known traps: to be called once for each request.
    #[inline(always)]
    pub(crate) fn look(&self, request: RequestView<'_>) {
        if self.traps.are_looked_for() {
            self.look_closely(request);
        }
    }

    #[cold]
    fn look_closely(&self, request: RequestView<'_>) {
        if let Some(peer) = self.peer(request) {
            self.traps.look_at(request.headers, peer, &self.trust);
        }
    }

    fn of(&self, request: RequestView<'_>) -> Option<IpAddr> {
        let peer = self.peer(request);
        if peer.is_none() {
            self.traps.no_peer();
        }
        peer.map(|peer| client_address(peer, request.headers, &self.trust))
    }

    /// The address as limits count it, if it is known.
    pub(crate) fn client(&self, request: RequestView<'_>) -> Option<ClientAddress> {
        let peer = self.peer(request)?;
        Some(ClientAddress(self.prefixes.mask(client_address(peer, request.headers, &self.trust))))
    }
}

/// Where servers put it.
#[inline(always)]
fn known_peer(extensions: &Extensions) -> Option<IpAddr> {
    #[cfg(feature = "axum")]
    if let Some(info) = extensions.get::<axum::extract::ConnectInfo<std::net::SocketAddr>>() {
        return Some(info.0.ip());
    }
    extensions.get::<std::net::SocketAddr>().map(|peer| peer.ip()).or_else(|| extensions.get::<IpAddr>().copied())
}

impl fmt::Debug for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.features.iter().map(|(name, _)| name)).finish()
    }
}
