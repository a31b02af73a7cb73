//! Where to listen, as it is written on the command line.

use std::net::SocketAddr;
use std::str::FromStr;

use anyhow::{anyhow, bail};
use tallygate_server::listen::Listener;

/// An address and port, or `off`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Address(Option<SocketAddr>);

/// Binds listeners; each comes with the option that names it.
pub(crate) fn bind(addresses: [(&str, Address); 3]) -> anyhow::Result<[Option<Listener>; 3]> {
    let given = addresses.map(|(option, address)| address.0.map(|address| (option, address)));
    let mut given = given.into_iter().flatten().peekable();
    if given.peek().is_none() {
        bail!("--http, --grpc and --admin are all `off`: there is nothing to serve");
    }
    let given: Vec<_> = given.collect();
    for (at, (option, address)) in given.iter().enumerate() {
        if let Some((other, _)) = given[..at].iter().find(|(_, other)| other == address && address.port() != 0) {
            bail!("{other} and {option} are both {address}: use another port for one of them");
        }
    }
    let [http, grpc, admin] = addresses.map(|(option, Address(address))| {
        // As text: the message already contains its cause.
        address.map(|address| Listener::bind(address).map_err(|error| anyhow!("{option}: {error}"))).transpose()
    });
    Ok([http?, grpc?, admin?])
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "off" {
            return Ok(Self(None));
        }
        // Elsewhere this means all interfaces, which nobody should get by accident.
        if let Ok(port) = text.trim_start_matches(':').parse::<u16>() {
            return Err(format!(
                "name the address, too: 127.0.0.1:{port} for this machine only, or 0.0.0.0:{port} for all interfaces"
            ));
        }
        let address = text.replace("localhost:", "127.0.0.1:").parse().map(|address| Self(Some(address)));
        address.map_err(|_| "write ADDRESS:PORT, for example 127.0.0.1:8080 or [::1]:8080, or `off`".to_owned())
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
        assert_eq!(read("localhost:1"), at("127.0.0.1:1"));
        assert_eq!(read("0.0.0.0:80"), at("0.0.0.0:80"));
        assert_eq!(read("[::1]:80"), at("[::1]:80"));
        assert!(read("example").is_err() && read("1.2.3.4").is_err() && read("70000").is_err());
    }

    #[test]
    fn a_port_alone_is_refused_because_it_does_not_say_who_may_connect() {
        for text in ["8080", ":8080"] {
            let refused = text.parse::<Address>().unwrap_err();
            assert!(refused.contains("127.0.0.1:8080") && refused.contains("0.0.0.0:8080"), "{refused}");
        }
    }
}
