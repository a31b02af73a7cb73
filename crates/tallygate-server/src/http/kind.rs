//! What a request is, by its method and path: how its body is read, and how it is refused.

use http::{HeaderMap, Method, Request};
use tallygate_http::is_grpc;

/// The method of Envoy's rate limit service.
pub(super) const SHOULD_RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// How the body of a request is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reading {
    /// Completely, before the request takes a place among those in flight.
    Whole,
    /// Not at all: there is none, or it does not matter. The service gets an empty one.
    Never,
    /// While it is answered, message by message.
    Stream,
}

impl Reading {
    pub(super) fn of<B>(request: &Request<B>) -> Self {
        let path = request.uri().path();
        if path == "/grpc.health.v1.Health/Watch" || path.starts_with("/grpc.reflection.") {
            return Self::Stream;
        }
        // A proxy may announce the body of its client to forward-auth, and never send it.
        let bodiless = matches!(*request.method(), Method::GET | Method::HEAD | Method::DELETE);
        if bodiless || path == "/v1/forward-auth" { Self::Never } else { Self::Whole }
    }
}

/// How a refusal is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// A problem, with its status.
    Problem,
    /// A status of gRPC.
    Grpc,
    /// OVER_LIMIT, because a proxy lets requests pass on errors.
    RateLimit,
    /// The same in JSON.
    RateLimitJson,
}

impl Form {
    pub(super) fn of(path: &str, headers: &HeaderMap) -> Self {
        match path {
            SHOULD_RATE_LIMIT => Self::RateLimit,
            "/json" => Self::RateLimitJson,
            _ if is_grpc(headers) => Self::Grpc,
            _ => Self::Problem,
        }
    }
}

/// An overloaded server is alive. A probe that is shed would have it restarted, and the load would move to the next one.
pub(super) fn asks_for_health(path: &str) -> bool {
    matches!(path, "/livez" | "/readyz" | "/healthcheck") || path.starts_with("/grpc.health.v1.Health/")
}
