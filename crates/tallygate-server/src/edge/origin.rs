//! Web pages must not use a listener that only this machine can reach: `Host` and `Origin` are checked (ADR 0024).

use std::net::IpAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::response::Response;
use http::header::{HOST, ORIGIN};
use http::uri::Authority;
use http::{HeaderMap, Version};
use tallygate_http::{Problem, ProblemCode};

use super::Refused;

/// What is checked on a listener.
#[derive(Debug, Clone)]
pub(crate) struct Origins {
    /// Whether `Host` must be an address, `localhost`, or one of `hosts`.
    pub(crate) check_host: bool,
    /// Names that are allowed as well, in lower case.
    pub(crate) hosts: Arc<[String]>,
}

impl Origins {
    /// Refuses requests of web pages to `router`.
    pub(crate) fn guard(self, router: Router) -> Router {
        router.layer(middleware::from_fn_with_state(Arc::new(self), guard))
    }

    fn check(&self, version: Version, headers: &HeaderMap) -> Result<(), Problem> {
        let written = |name| headers.get(name).map(|value: &http::HeaderValue| value.to_str().unwrap_or_default());
        let host = written(HOST);
        // A name that somebody else can point to this machine. With TLS the certificate protects, and without it no browser
        // speaks HTTP/2, while gRPC does, with any authority.
        if self.check_host && version < Version::HTTP_2 && !host.is_none_or(|host| self.allows(host)) {
            let detail = "The name in `Host` is not allowed here: ask by address or `localhost`, or start the server with \
                          --allowed-hosts.";
            return Err(Problem::new(ProblemCode::HostNotAllowed, detail));
        }
        let Some(origin) = written(ORIGIN) else { return Ok(()) };
        let authority = origin.split_once("://").map(|(_, authority)| authority);
        if authority.is_some() && authority == host {
            return Ok(());
        }
        let detail = "This is not for web pages of other sites: send it without `Origin`.";
        Err(Problem::new(ProblemCode::OriginNotAllowed, detail))
    }

    fn allows(&self, host: &str) -> bool {
        let Ok(authority) = host.parse::<Authority>() else { return false };
        let name = authority.host().trim_end_matches('.').to_ascii_lowercase();
        let address = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        address.is_ok() || name == "localhost" || name.ends_with(".localhost") || self.hosts.contains(&name)
    }
}

async fn guard(State(origins): State<Arc<Origins>>, request: Request, next: Next) -> Result<Response, Refused> {
    // Proxies ask forward-auth with the headers of their clients. Probes tell nothing.
    let open = matches!(request.uri().path(), "/v1/forward-auth" | "/livez" | "/readyz" | "/healthcheck");
    if !open {
        origins.check(request.version(), request.headers())?;
    }
    Ok(next.run(request).await)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(version: Version, headers: &[(&str, &str)]) -> Option<ProblemCode> {
        let origins = Origins { check_host: true, hosts: Arc::new(["limits.internal".to_owned()]) };
        let header = |(name, value): &(&str, &str)| (name.parse().unwrap(), value.parse().unwrap());
        let headers: HeaderMap = headers.iter().map(header).collect();
        origins.check(version, &headers).err().map(|problem| problem.code())
    }

    #[test]
    fn names_that_others_can_point_here_are_refused() {
        for host in
            ["127.0.0.1:8080", "127.0.0.1", "[::1]:8080", "localhost:1", "LOCALHOST", "a.localhost", "192.0.2.7"]
        {
            assert_eq!(code(Version::HTTP_11, &[("host", host)]), None, "{host}");
        }
        assert_eq!(code(Version::HTTP_11, &[("host", "Limits.Internal:8080")]), None);
        for host in ["evil.example", "evil.example:8080", "127.0.0.1.evil.example", "localhost.evil.example", "", "a b"]
        {
            assert_eq!(code(Version::HTTP_11, &[("host", host)]), Some(ProblemCode::HostNotAllowed), "{host}");
        }
        assert_eq!(code(Version::HTTP_2, &[("host", "tallygate_cluster")]), None, "gRPC");
    }

    #[test]
    fn pages_of_other_sites_are_refused() {
        let at = |origin| code(Version::HTTP_11, &[("host", "127.0.0.1:8080"), ("origin", origin)]);
        assert_eq!(at("http://127.0.0.1:8080"), None);
        for origin in ["http://evil.example", "http://127.0.0.1:3000", "null", "", "127.0.0.1:8080"] {
            assert_eq!(at(origin), Some(ProblemCode::OriginNotAllowed), "{origin}");
        }
        let without_host = code(Version::HTTP_2, &[("origin", "http://evil.example")]);
        assert_eq!(without_host, Some(ProblemCode::OriginNotAllowed));
    }
}
