//! The client's address: the peer of the connection, or what trusted proxies report.

mod entry;
mod prefixes;
mod proxies;

use std::net::IpAddr;

use http::HeaderMap;
use http::header::{FORWARDED, HeaderName};
use ipnet::IpNet;

pub use prefixes::Prefixes;
pub use proxies::{InvalidProxies, TrustedProxies};

use proxies::Trusted;

static X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// Which proxies are trusted, and which header they write. By default none is trusted.
///
/// ```
/// use tallygate_http::{ForwardedHeader, Trust};
///
/// let trust = Trust { proxies: "10.0.0.0/8".parse()?, header: ForwardedHeader::XForwardedFor };
/// assert!(!trust.proxies.is_none());
/// assert!(Trust::default().proxies.is_none());
/// # Ok::<(), tallygate_http::InvalidProxies>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Trust {
    /// The trusted proxies.
    pub proxies: TrustedProxies,
    /// The header they write. Only this one is read: a client may have sent any other.
    pub header: ForwardedHeader,
}

/// The header in which proxies report the client.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ForwardedHeader {
    /// `X-Forwarded-For: client, proxy, proxy`.
    #[default]
    XForwardedFor,
    /// `Forwarded: for=client, for=proxy` of RFC 7239.
    Forwarded,
    /// A header of one address that the edge overwrites, such as `CF-Connecting-IP`. Ignored if it occurs twice.
    Single(HeaderName),
}

impl ForwardedHeader {
    /// The name of the header.
    pub fn name(&self) -> &HeaderName {
        match self {
            Self::XForwardedFor => &X_FORWARDED_FOR,
            Self::Forwarded => &FORWARDED,
            Self::Single(name) => name,
        }
    }
}

/// The address of the client, in canonical form: `::ffff:192.0.2.7` is `192.0.2.7`.
///
/// It is the peer unless the peer is trusted. Then the header is read from the right, where the nearest proxy wrote, and
/// the first address that is not trusted is the client. What is further left was written by the client and is never
/// read. If an entry is not an address (`unknown`, `_hidden`, garbage), the last trusted hop counts as the client. If all
/// are trusted, the left-most is the client.
///
/// With a number of hops it is exactly that entry, counted from the right, or the peer if there is no such entry or it is
/// not an address.
///
/// ```
/// use http::HeaderMap;
/// use tallygate_http::{Trust, client_address};
///
/// let mut headers = HeaderMap::new();
/// headers.insert("x-forwarded-for", "6.6.6.6, 203.0.113.7, 10.0.0.2".parse()?);
/// let proxy = "10.0.0.1".parse()?;
/// assert_eq!(client_address(proxy, &headers, &Trust::default()), proxy);
///
/// let trust = Trust { proxies: "10.0.0.0/8".parse()?, ..Trust::default() };
/// assert_eq!(client_address(proxy, &headers, &trust).to_string(), "203.0.113.7");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn client_address(peer: IpAddr, headers: &HeaderMap, trust: &Trust) -> IpAddr {
    let peer = peer.to_canonical();
    if !trust.proxies.trusts(peer) {
        return peer;
    }
    match (&trust.header, &trust.proxies.0) {
        (ForwardedHeader::Single(name), _) => single(headers, name).unwrap_or(peer),
        (list, Trusted::Networks(networks)) => walk(peer, networks, entries(headers, list)),
        (list, Trusted::Hops(count)) => entries(headers, list).nth(count.get() - 1).flatten().unwrap_or(peer),
        (_, Trusted::Nobody) => peer,
    }
}

fn walk(peer: IpAddr, networks: &[IpNet], entries: impl Iterator<Item = Option<IpAddr>>) -> IpAddr {
    let mut hop = peer;
    for entry in entries {
        let Some(address) = entry else { return hop };
        hop = address;
        if !contain(networks, hop) {
            return hop;
        }
    }
    hop
}

/// The entries of all lines, as if joined in order, from the right; `None` for one that is not an address.
fn entries<'a>(headers: &'a HeaderMap, header: &ForwardedHeader) -> impl Iterator<Item = Option<IpAddr>> + use<'a> {
    let read = if *header == ForwardedHeader::Forwarded { entry::forwarded_for } else { entry::address };
    let lines = headers.get_all(header.name()).iter().rev();
    lines.flat_map(|line| entry::from_the_right(line.as_bytes())).map(read)
}

fn single(headers: &HeaderMap, name: &HeaderName) -> Option<IpAddr> {
    let mut lines = headers.get_all(name).iter();
    match (lines.next(), lines.next()) {
        (Some(line), None) => entry::address(line.as_bytes()),
        _ => None,
    }
}

fn contain(networks: &[IpNet], address: IpAddr) -> bool {
    networks.iter().any(|network| network.contains(&address))
}
