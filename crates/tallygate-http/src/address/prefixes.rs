//! How much of an address identifies one client.

use std::net::{IpAddr, Ipv6Addr};

use ipnet::IpNet;

/// The leading bits of an address that identify one client. Defaults to all 32 of IPv4 and 64 of IPv6, where one client
/// can use a whole /64. More bits than an address has count as all.
///
/// ```
/// use tallygate_http::Prefixes;
///
/// let prefixes = Prefixes::default();
/// assert_eq!(prefixes.mask("2001:db8:1:2:aaaa::1".parse()?), "2001:db8:1:2::/64");
/// assert_eq!(prefixes.mask("203.0.113.7".parse()?), "203.0.113.7");
/// assert_eq!(prefixes.mask("::ffff:203.0.113.7".parse()?), "203.0.113.7");
/// assert_eq!(Prefixes { v4: 24, v6: 56 }.mask("203.0.113.7".parse()?), "203.0.113.0/24");
/// # Ok::<(), std::net::AddrParseError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Prefixes {
    /// Of an IPv4 address.
    pub v4: u8,
    /// Of an IPv6 address.
    pub v6: u8,
}

impl Default for Prefixes {
    fn default() -> Self {
        Self { v4: 32, v6: 64 }
    }
}

impl Prefixes {
    /// The text that identifies the client: the address if all bits count, else its network. IPv4-mapped IPv6 addresses are
    /// IPv4 addresses.
    pub fn mask(self, address: IpAddr) -> String {
        let address = address.to_canonical();
        let (prefix, whole) = match address {
            IpAddr::V4(_) => (self.v4, 32),
            IpAddr::V6(_) => (self.v6, Ipv6Addr::BITS),
        };
        match IpNet::new(address, prefix) {
            Ok(network) if u32::from(prefix) < whole => network.trunc().to_string(),
            _ => address.to_string(),
        }
    }
}
