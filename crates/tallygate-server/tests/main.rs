//! The server: its parts over real sockets, the whole of it on real ports, and the files it is deployed with.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on must stop")]

mod cancellation; // callers that leave at any moment
mod deploy; // the files in `deploy/`, read by the tools that they are for
mod store; // the store of a server, while Redis comes late, hangs, crashes and refuses
mod store_log;
mod store_watch; // what a server knows of its store: findings, and whether it can be charged // what the log says of a store, and of listeners

/// The accept loop over real sockets.
mod listen {
    mod bodies; // those that do not arrive
    mod client; // raw and HTTP/2 clients
    mod ending; // connections end by age, and when the server drains
    mod limits; // connections, requests, bytes
    mod server; // a listener with handlers that misbehave on request
    mod timeouts; // headers, bodies, answers, the next request
    mod tls; // who gets in, and certificates that change
    mod versions; // HTTP/1 and HTTP/2, any tower service
}

/// The whole server under tools of others, under load and under hostile names.
mod live {
    mod hostile; // names that contain control characters and markup
    mod openapi; // Schemathesis against the API description
    mod overload; // more calls than may be in flight
    mod scraped; // Prometheus reads the metrics
}

/// The configurations in `examples/`, run by the proxies as they stand, but for ports and timeouts.
mod proxies {
    mod caddy; // `forward_auth`
    mod caller; // callers, each with an address of its own
    mod envoy; // the rate limit service
    mod forward_auth; // what holds behind every proxy that asks over HTTP
    mod nginx; // `auth_request`
    mod rig; // a proxy, the server beside it, and a service behind it
    mod traefik; // `forwardAuth`
}

/// The whole server, in this process.
mod serve {
    mod admin; // what operators see
    mod allotments; // units taken in advance by two servers
    mod forward_auth; // questions of proxies
    mod holds; // units that are reserved and settled later
    mod http; // the JSON API
    mod invalid_requests; // requests that are refused
    mod leases; // what is in flight, renewed and released
    mod metrics_reference; // the page that lists every metric has all of them, and no others
    mod outage; // several servers whose store is gone
    mod overrides; // limits that are changed live
    mod pages; // web pages, refunds, and guessed tokens
    mod payers; // policies with several payers
    mod reload; // policies that change while calls come in
    mod requests; // calls that are repeated under their id
    mod sharing; // several servers, one limit
    mod store_down; // a store that dies, hangs, or never accepts
}

/// Shared by the others.
mod support {
    pub mod certificates; // an authority and its certificates
    pub mod running; // a server of this process
    pub mod served; // the same, with a client to it
}
