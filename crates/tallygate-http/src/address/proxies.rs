//! Which proxies are trusted: networks, or a number of hops.

use std::fmt;
use std::net::IpAddr;
use std::num::NonZeroUsize;
use std::str::FromStr;

use ipnet::{IpNet, Ipv4Net};

/// Which proxies are trusted to report the client. By default none.
///
/// Written as networks and addresses (`10.0.0.0/8, 192.0.2.7, fd00::/8`), as a number of hops (`2`), or as `none`.
///
/// ```
/// use tallygate_http::TrustedProxies;
///
/// let networks: TrustedProxies = "10.0.0.0/8, 192.0.2.7".parse()?;
/// assert_eq!(networks.to_string(), "10.0.0.0/8,192.0.2.7/32");
/// assert_eq!("2".parse::<TrustedProxies>()?, TrustedProxies::hops(2));
/// assert_eq!("none".parse::<TrustedProxies>()?, TrustedProxies::none());
/// assert!("10.0.0/8".parse::<TrustedProxies>().is_err());
/// # Ok::<(), tallygate_http::InvalidProxies>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TrustedProxies(pub(super) Trusted);

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) enum Trusted {
    #[default]
    Nobody,
    Networks(Vec<IpNet>),
    Hops(NonZeroUsize),
}

impl TrustedProxies {
    /// No proxy: the peer of the connection is the client.
    pub fn none() -> Self {
        Self(Trusted::Nobody)
    }

    /// Exactly so many proxies, whatever their addresses. Zero is [`none`](Self::none).
    ///
    /// Use this only if all traffic passes through all of these proxies: a client that connects directly can forge the header.
    pub fn hops(count: usize) -> Self {
        Self(NonZeroUsize::new(count).map_or(Trusted::Nobody, Trusted::Hops))
    }

    /// Whether a peer of this address is trusted. With a number of hops, every peer is.
    pub fn trusts(&self, peer: IpAddr) -> bool {
        match &self.0 {
            Trusted::Nobody => false,
            Trusted::Networks(networks) => super::contain(networks, peer.to_canonical()),
            Trusted::Hops(_) => true,
        }
    }

    /// Whether no proxy is trusted, so that no header is read.
    pub fn is_none(&self) -> bool {
        matches!(self.0, Trusted::Nobody)
    }

    /// Whether every address is trusted, so that every client can forge its address. Worth a warning.
    ///
    /// ```
    /// use tallygate_http::TrustedProxies;
    ///
    /// assert!("0.0.0.0/0".parse::<TrustedProxies>()?.trusts_everybody());
    /// assert!(!"10.0.0.0/8".parse::<TrustedProxies>()?.trusts_everybody());
    /// # Ok::<(), tallygate_http::InvalidProxies>(())
    /// ```
    pub fn trusts_everybody(&self) -> bool {
        matches!(&self.0, Trusted::Networks(networks) if networks.iter().any(|network| network.prefix_len() == 0))
    }
}

/// The text is not a list of proxies.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid proxy `{part}`: write networks or addresses, for example `10.0.0.0/8,192.0.2.7`, a number of hops, or `none`"
)]
#[non_exhaustive]
pub struct InvalidProxies {
    /// The invalid part.
    pub part: String,
}

impl FromStr for TrustedProxies {
    type Err = InvalidProxies;

    fn from_str(text: &str) -> Result<Self, InvalidProxies> {
        let text = text.trim();
        if text.is_empty() || text == "none" {
            return Ok(Self::none());
        }
        if let Ok(hops) = text.parse::<u16>() {
            return Ok(Self::hops(hops.into()));
        }
        let networks = text
            .split(',')
            .map(|part| network(part.trim()).ok_or_else(|| InvalidProxies { part: part.trim().to_owned() }));
        Ok(Self(Trusted::Networks(networks.collect::<Result<_, _>>()?)))
    }
}

impl fmt::Display for TrustedProxies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Trusted::Nobody => f.write_str("none"),
            Trusted::Hops(count) => write!(f, "{count}"),
            Trusted::Networks(networks) => {
                let written: Vec<String> = networks.iter().map(IpNet::to_string).collect();
                f.write_str(&written.join(","))
            }
        }
    }
}

/// Addresses are compared in canonical form, so `::ffff:10.0.0.0/104` has to be `10.0.0.0/8`.
fn network(text: &str) -> Option<IpNet> {
    let network = match text.parse::<IpAddr>() {
        Ok(address) => IpNet::from(address),
        Err(_) => text.parse::<IpNet>().ok()?.trunc(),
    };
    match (network.addr().to_canonical(), network) {
        (IpAddr::V4(address), IpNet::V6(mapped)) if mapped.prefix_len() >= 96 => {
            Ipv4Net::new(address, mapped.prefix_len() - 96).ok().map(IpNet::V4)
        }
        _ => Some(network),
    }
}
