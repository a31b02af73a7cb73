//! Who is at the other end of a connection.

use std::net::SocketAddr;

/// How a request reached us. In the extensions of every request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    addr: SocketAddr,
    transport: Transport,
}

/// What protects a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Nothing.
    Plain,
    /// TLS; the caller is anybody.
    Tls,
    /// TLS, and the caller showed a certificate of the operator's authority.
    MutualTls,
}

impl Peer {
    pub(super) fn new(addr: SocketAddr, transport: Transport) -> Self {
        Self { addr, transport }
    }

    /// The address of the socket: the caller's, or that of the nearest proxy. IPv4 is never written as IPv6.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// What protects the connection.
    pub fn transport(&self) -> Transport {
        self.transport
    }

    /// Whether the caller proved by certificate who it is.
    pub fn is_verified(&self) -> bool {
        self.transport == Transport::MutualTls
    }
}
