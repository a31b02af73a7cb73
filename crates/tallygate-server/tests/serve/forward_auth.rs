//! What proxies ask.

use std::net::SocketAddr;

use tallygate_server::Settings;
use tallygate_testkit::http::{self, Response};

use crate::support::served::{Served, body};

const POLICIES: &str = "
policies:
  - {name: per-address, domain: edge, partition: [remote_address], limit: 2/min}
  - {name: logins, domain: edge, match: {path: /login, method: POST}, limit: 1/min}
  - {name: per-key, domain: keys, partition: [x-api-key], limit: 1/min}
";

fn ask(addr: SocketAddr, query: &str, headers: &[(&str, &str)]) -> Response {
    http::request(addr, "GET", &format!("/v1/forward-auth?{query}"), headers, b"")
}

#[test]
fn the_address_that_the_nearest_proxy_saw_is_counted_whatever_the_caller_writes() {
    let server = Served::with(POLICIES);
    let from = |chain: &str| ask(server.http, "domain=edge", &[("x-forwarded-for", chain)]).status;
    assert_eq!([from("203.0.113.7"), from("6.6.6.6, 203.0.113.7"), from("7.7.7.7, 203.0.113.7")], [200, 200, 429]);
    assert_eq!(from("203.0.113.8"), 200);
    // All of a /64 is one caller.
    assert_eq!([from("2001:db8::1"), from("2001:db8::2"), from("2001:db8::ffff:3")], [200, 200, 429]);
}

#[test]
fn method_path_and_host_are_those_of_the_request_that_waits() {
    let server = Served::with(POLICIES);
    let login = |address: &str, uri: &str, names: [&str; 2]| {
        let headers = [("x-forwarded-for", address), (names[0], "POST"), (names[1], uri)];
        ask(server.http, "domain=edge", &headers).status
    };
    let traefik = ["x-forwarded-method", "x-forwarded-uri"];
    let nginx = ["x-original-method", "x-original-uri"];
    assert_eq!(login("203.0.113.1", "/login?next=/", traefik), 200);
    assert_eq!(login("203.0.113.2", "/login", nginx), 429);
    assert_eq!(login("203.0.113.3", "/other", nginx), 200);
    // However the path is written.
    assert_eq!(login("203.0.113.4", "/x/..//%6Cogin", nginx), 429);
}

/// A target that was not ASCII was skipped: the path was `/`, or what the client wrote into the next header.
#[test]
fn bytes_that_are_no_text_are_no_way_around_a_limit() {
    let server = Served::with("policies: [{name: p, domain: edge, match: {path: /login}, limit: 2/min}]");
    let get = |uri: &str| {
        let headers = [("x-forwarded-uri", uri), ("x-original-uri", "/elsewhere")];
        ask(server.http, "domain=edge", &headers).status
    };
    assert_eq!([get("/login"), get("/login?é"), get("/login?é"), get("/login")], [200, 200, 429, 429]);
}

#[test]
fn a_denial_has_the_status_that_the_proxy_understands() {
    let server = Served::with(POLICIES);
    let headers = [("x-forwarded-for", "203.0.113.9")];
    for _ in 0..2 {
        let allowed = ask(server.http, "domain=edge", &headers);
        assert!(allowed.header("ratelimit").is_some() && allowed.body.is_empty());
    }
    let denied = ask(server.http, "domain=edge", &headers);
    assert_eq!((denied.status, &body(&denied)["status"]), (429, &429.into()));
    assert!(denied.header("retry-after").is_some());
    // The body said 429, which RFC 9457 does not allow beside another status.
    let forbidden = ask(server.http, "domain=edge&deny_status=403", &headers);
    assert_eq!((forbidden.status, &body(&forbidden)["status"]), (403, &403.into()));
    assert_eq!(body(&forbidden)["code"], "quota_exceeded");
    let head = http::request(server.http, "HEAD", "/v1/forward-auth?domain=edge", &headers, b"");
    assert_eq!((head.status, head.body.len()), (429, 0));
}

#[test]
fn a_secret_header_is_counted_and_never_kept() {
    let server = Served::with(POLICIES);
    let with = |key: &str| ask(server.http, "domain=keys&secret=X-Api-Key", &[("x-api-key", key)]).status;
    assert_eq!([with("k1"), with("k1"), with("k2")], [200, 429, 200]);
}

#[test]
fn a_long_path_is_no_way_around_a_limit() {
    let server = Served::with("policies: [{name: p, domain: edge, partition: [path], limit: 1/min}]");
    let uri = format!("/{}", "a".repeat(3000));
    let get = || ask(server.http, "domain=edge", &[("x-forwarded-uri", &uri)]).status;
    assert_eq!([get(), get()], [200, 429]);
}

#[test]
fn only_trusted_proxies_may_ask_and_settings_are_checked() {
    let server = Served::start(POLICIES, |settings: &mut Settings| settings.trust = tallygate_http::Trust::default());
    let refused = ask(server.http, "domain=edge", &[]);
    assert_eq!(refused.status, 421);
    assert!(refused.text().contains("--trusted-proxies"), "{}", refused.text());
    let server = Served::with(POLICIES);
    for (query, status, says) in [
        ("domain=egde", 404, "did you mean `edge`?"),
        ("domain=edge&deny_status=200", 400, "400 to 599"),
        ("domain=edge&denystatus=403", 400, "did you mean `deny_status`?"),
        ("foo=1", 400, "Unknown parameter `foo`: use one of domain, deny_status, cost, header, secret."),
        ("domain=edge&cost=0", 400, "peek"),
        ("domain=edge&header=a%20b", 400, "Invalid header name `a b`."),
        ("", 404, "add `?domain=`; use one of `edge`, `keys`."),
    ] {
        let response = ask(server.http, query, &[]);
        assert_eq!(response.status, status, "{query}");
        assert!(response.text().contains(says), "{query}: {}", response.text());
    }
}
