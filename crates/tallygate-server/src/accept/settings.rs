//! Timeouts and limits of a listener.

use std::time::Duration;

/// Timeouts and limits of one listener. Limits are per listener, so that a flood on one does not affect the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenSettings {
    /// From the first byte of a request, or from the start of the connection, until its header is complete.
    pub header_timeout: Duration,
    /// From the header until the response begins, including reading the body.
    pub request_timeout: Duration,
    /// How long a connection may be idle.
    pub idle_timeout: Duration,
    /// For the TLS handshake.
    pub handshake_timeout: Duration,
    /// After this time, give or take a tenth, a connection is asked to end, so that clients spread over new servers.
    pub max_age: Duration,
    /// How long a connection that was asked to end may take to finish.
    pub age_grace: Duration,
    /// How long connections may take to finish once the listener drains.
    pub drain_timeout: Duration,
    /// The most open connections, handshakes included.
    pub max_connections: usize,
    /// The most open connections of one peer: an IPv4 address, or an IPv6 /64. Never more than half of
    /// [`max_connections`](Self::max_connections), so that no peer can take them all.
    pub max_connections_per_peer: usize,
    /// Whether the limit per peer applies to loopback. Defaults to false: a proxy on this machine acts for many clients.
    pub cap_loopback: bool,
    /// The most requests in flight: those whose body has arrived. The next is refused at once, not queued. Health endpoints
    /// are exempt.
    pub max_in_flight: usize,
    /// The most memory of request bodies, in bytes: of those that are arriving, each counted with its header and as 4 KiB at
    /// least, and of large ones that are being answered. For more, the oldest that are still arriving are refused.
    pub max_bodies: usize,
    /// The most bytes of a request body. For a gRPC stream, of all its messages.
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
            max_bodies: 32 * 1024 * 1024,
            max_body: 64 * 1024,
        }
    }
}
