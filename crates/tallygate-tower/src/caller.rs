//! Who is calling.

use std::borrow::Cow;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use http::header::{GetAll, HeaderName, HeaderValue};
use http::request::Parts;
use http::{Extensions, Method};
use tallygate::policy::Subject;
use tallygate_http::{Prefixes, Trust, client_address, digest};

use crate::diagnostics::Diagnostics;
use crate::request_view::RequestView;

/// Who is calling, for a limit: one property of a request, or several together.
///
/// Callers without the property share one state, so leaving it out gains nothing.
#[derive(Clone)]
pub struct Caller {
    features: Vec<(Cow<'static, str>, Feature)>,
}

/// Text read from a request.
type Extractor = Arc<dyn Fn(&Parts) -> Option<String> + Send + Sync>;

#[derive(Clone)]
enum Feature {
    Address,
    Header(HeaderName),
    Method,
    Extracted(Extractor),
}

impl Caller {
    /// The client address: the peer's, or the one that trusted proxies report ([`RateLimit::trust`](crate::RateLimit::trust)).
    /// IPv6 by /64 ([`RateLimit::prefixes`](crate::RateLimit::prefixes)).
    pub fn address() -> Self {
        Self::of("address", Feature::Address)
    }

    /// The value of a header, such as an API key. It is hashed before it becomes part of a key. An empty header counts as absent, and so
    /// does a repeated one: authentication may read the other value.
    ///
    /// # Panics
    /// If `name` is not a valid header name.
    #[track_caller]
    pub fn header(name: &str) -> Self {
        let Ok(header) = HeaderName::from_bytes(name.as_bytes()) else { panic!("invalid header name `{name}`") };
        Self::of(header.as_str().to_owned(), Feature::Header(header))
    }

    /// What an outer layer, such as authentication, has put into the extensions of the request.
    ///
    /// ```
    /// # use tallygate_tower::Caller;
    /// #[derive(Clone)]
    /// struct User { id: u64 }
    ///
    /// let caller = Caller::extension(|user: &User| user.id.to_string());
    /// ```
    pub fn extension<E: Send + Sync + 'static>(extract: impl Fn(&E) -> String + Send + Sync + 'static) -> Self {
        Self::from_fn("extension", move |parts| parts.extensions.get::<E>().map(&extract))
    }

    /// The method: each is counted separately. Methods that HTTP does not define are counted together, or a caller could invent
    /// new ones to get around the limit.
    pub fn method() -> Self {
        Self::of("method", Feature::Method)
    }

    /// The template of the route, such as `/users/{id}`: each route is counted separately.
    #[cfg(feature = "axum")]
    pub fn route() -> Self {
        Self::from_fn("route", |parts| Some(parts.extensions.get::<axum::extract::MatchedPath>()?.as_str().to_owned()))
    }

    /// All callers together.
    pub fn everybody() -> Self {
        Self { features: Vec::new() }
    }

    /// Any text read from the request; `None` or an empty text counts as absent. `name` separates it from other properties with the
    /// same value.
    pub fn from_fn(name: &'static str, extract: impl Fn(&Parts) -> Option<String> + Send + Sync + 'static) -> Self {
        Self::of(name, Feature::Extracted(Arc::new(extract)))
    }

    /// Both together: each pair is counted separately.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.features.extend(other.features);
        self
    }

    /// Whether a closure needs the parts of the request.
    pub(crate) fn needs_parts(&self) -> bool {
        self.features.iter().any(|(_, feature)| matches!(feature, Feature::Extracted(_)))
    }

    fn of(name: impl Into<Cow<'static, str>>, feature: Feature) -> Self {
        Self { features: vec![(name.into(), feature)] }
    }

    /// Whether the address matters.
    pub(crate) fn is_by_address(&self) -> bool {
        self.features.iter().any(|(_, feature)| matches!(feature, Feature::Address))
    }

    /// The subject, and whether every property is known.
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
                // A digest or an address is never empty, so no known caller shares the state of unknown ones.
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
            Self::Extracted(extract) => extract(request.parts()).filter(|value| !value.is_empty()),
        }
    }
}

/// The client address as limits count it: the peer's, or the one that trusted proxies report; IPv6 by /64. It is in the extensions of
/// the request when [`RateLimit::policies`](crate::RateLimit::policies) describes it.
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

/// How the client address is found.
#[derive(Clone, Default)]
pub(crate) struct Addresses {
    /// Where the peer's address is, if not in a well-known extension.
    pub(crate) peer: Option<Peer>,
    pub(crate) trust: Trust,
    pub(crate) prefixes: Prefixes,
    pub(crate) diagnostics: Arc<Diagnostics>,
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

    /// Fast path for most callers: the whole IPv4 address of the peer.
    #[inline(always)]
    fn usual_subject(&self, request: RequestView<'_>) -> Option<Subject> {
        let Some(IpAddr::V4(peer)) = self.peer(request) else { return None };
        if !self.trust.proxies.is_none() || u32::from(self.prefixes.v4) < Ipv4Addr::BITS {
            return None;
        }
        Some(Subject::of_ipv4(peer))
    }

    /// Looks for misconfiguration; to be called once for each request.
    #[inline(always)]
    pub(crate) fn diagnose(&self, request: RequestView<'_>) {
        if self.diagnostics.are_active() {
            self.diagnose_slow(request);
        }
    }

    #[cold]
    fn diagnose_slow(&self, request: RequestView<'_>) {
        if let Some(peer) = self.peer(request) {
            self.diagnostics.inspect(request.headers, peer, &self.trust);
        }
    }

    fn of(&self, request: RequestView<'_>) -> Option<IpAddr> {
        let peer = self.peer(request);
        if peer.is_none() {
            self.diagnostics.no_peer();
        }
        peer.map(|peer| client_address(peer, request.headers, &self.trust))
    }

    /// The address as limits count it, if it is known.
    pub(crate) fn client(&self, request: RequestView<'_>) -> Option<ClientAddress> {
        let peer = self.peer(request)?;
        Some(ClientAddress(self.prefixes.mask(client_address(peer, request.headers, &self.trust))))
    }
}

/// The extensions in which servers put it.
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
