//! How long and how much a listener bears.

use std::time::Duration;

/// Times and caps of one listener. Every cap is per listener, so that a flood on one leaves the others open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenSettings {
    /// From the first byte of a request, or from the connection's start, until its header is whole.
    pub header_timeout: Duration,
    /// From the header until the answer begins; reading the body is part of it.
    pub request_timeout: Duration,
    /// How long a connection may stay without a request.
    pub idle_timeout: Duration,
    /// For the TLS handshake.
    pub handshake_timeout: Duration,
    /// After this, give or take a tenth, a connection is asked to end, so that callers spread over new servers.
    pub max_age: Duration,
    /// What a connection that was asked to end may still take to finish.
    pub age_grace: Duration,
    /// What all connections may still take once the listener drains.
    pub drain_timeout: Duration,
    /// Open connections, handshakes included.
    pub max_connections: usize,
    /// Open connections of one peer: an IPv4 address, or the /64 of an IPv6 address, which one host has to itself.
    pub max_connections_per_peer: usize,
    /// Whether the cap per peer holds for loopback too. By default it does not: there it is a proxy on this machine,
    /// which speaks for many callers.
    pub cap_loopback: bool,
    /// Requests being decided at once; the next is refused at once instead of queued. Health endpoints are exempt.
    pub max_in_flight: usize,
    /// Bytes of a request's body. For a gRPC stream, of all its messages.
    pub max_body: usize,
}

impl Default for ListenSettings {
    fn default() -> Self {
        Self {
            header_timeout: Duration::from_secs(5),
            request_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(60),
            handshake_timeout: Duration::from_secs(5),
            max_age: Duration::from_secs(3600),
            age_grace: Duration::from_secs(30),
            drain_timeout: Duration::from_secs(10),
            max_connections: 10_000,
            max_connections_per_peer: 1_000,
            cap_loopback: false,
            max_in_flight: 4096,
            max_body: 64 * 1024,
        }
    }
}
