//! Where to listen, as people write it.

use std::net::{Ipv4Addr, SocketAddr};
use std::str::FromStr;

use tallygate_server::listen::Listener;

/// An address and port, or nowhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Address(Option<SocketAddr>);

impl Address {
    pub(crate) fn bind(self) -> anyhow::Result<Option<Listener>> {
        Ok(self.0.map(Listener::bind).transpose()?)
    }
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "off" {
            return Ok(Self(None));
        }
        if let Ok(port) = text.trim_start_matches(':').parse() {
            return Ok(Self(Some(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))));
        }
        let text = text.replace("localhost:", "127.0.0.1:");
        let address = text.parse().map(|address| Self(Some(address)));
        address
            .map_err(|_| "write ADDRESS:PORT, for example 127.0.0.1:8080 or [::1]:8080, or a port, or `off`".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_written_forms_mean_what_they_say() {
        let read = |text: &str| text.parse::<Address>().map(|address| address.0);
        let at = |text: &str| Ok(Some(text.parse::<SocketAddr>().unwrap()));
        assert_eq!(read("off"), Ok(None));
        assert_eq!(read("8080"), at("127.0.0.1:8080"));
        assert_eq!(read(":8080"), at("127.0.0.1:8080"));
        assert_eq!(read("localhost:1"), at("127.0.0.1:1"));
        assert_eq!(read("0.0.0.0:80"), at("0.0.0.0:80"));
        assert_eq!(read("[::1]:80"), at("[::1]:80"));
        assert!(read("example").is_err() && read("1.2.3.4").is_err() && read("70000").is_err());
    }
}
