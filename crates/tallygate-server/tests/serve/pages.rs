//! Web pages that would use a server on this machine, and tokens that are guessed.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};

use serde_json::json;
use tallygate_server::Refunds;
use tallygate_testkit::http::request;

use crate::support::served::{Served, TOKEN, bearer, body};

const POLICIES: &str = "policies: [{name: own, domain: api, partition: [user], limit: 2/h}]";

/// The status of a request with these header lines and no others.
fn status(to: SocketAddr, first: &str, headers: &str, body: &str) -> u16 {
    let mut stream = TcpStream::connect(to).unwrap();
    let length = body.len();
    write!(stream, "{first} HTTP/1.1\r\n{headers}content-length: {length}\r\nconnection: close\r\n\r\n{body}").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer[9..12].parse().unwrap()
}

/// A page whose name points to 127.0.0.1 read `/v1/config` and `/metrics`.
#[test]
fn names_that_others_can_point_to_this_machine_are_refused() {
    let server = Served::start(POLICIES, |settings| {
        settings.token = None;
        settings.allowed_hosts = vec!["limits.internal".to_owned()];
    });
    for (at, path) in [(server.admin, "/metrics"), (server.admin, "/v1/config"), (server.http, "/v1/counters/a")] {
        let get = |host: &str| status(at, &format!("GET {path}"), &format!("host: {host}\r\n"), "");
        assert_eq!([get("evil.example"), get("evil.example:6070")], [421; 2], "{path}");
        assert_eq!([get("localhost"), get(&at.to_string()), get("limits.internal:80")], [200; 3], "{path}");
        let origin = format!("host: {at}\r\norigin: http://evil.example\r\n");
        assert_eq!(status(at, &format!("GET {path}"), &origin, ""), 403, "{path}");
    }
    for open in ["/livez", "/readyz"] {
        assert_eq!(status(server.http, &format!("GET {open}"), "host: anything.example\r\n", ""), 200);
    }
    let proxied = "host: shop.example\r\norigin: https://shop.example\r\nx-forwarded-for: 192.0.2.1\r\n";
    assert_eq!(status(server.http, "GET /v1/forward-auth?domain=api", proxied, ""), 200, "a proxy forwards them");
}

/// `/json` took `text/plain`, which any page may send, and a refund in it.
#[test]
fn json_for_envoy_needs_its_content_type_too() {
    let server = Served::with(POLICIES);
    let question = json!({"domain": "api", "descriptors": [{"entries": [{"key": "user", "value": "w"}]}]}).to_string();
    let post =
        |content_type| request(server.http, "POST", "/json", &[("content-type", content_type)], question.as_bytes());
    assert_eq!([post("text/plain").status, post("application/json").status], [415, 200]);
}

#[test]
fn a_refund_needs_a_token_unless_refunds_are_open() {
    for (refunds, expected) in [(Some(Refunds::Token), 401), (Some(Refunds::Open), 200), (None, 200)] {
        let server = Served::start(POLICIES, |settings| settings.refunds = refunds);
        let question = json!({"domain": "api", "descriptors": [{"user": "w"}]});
        assert_eq!([server.check("w").status, server.check("w").status, server.check("w").status], [200, 200, 429]);
        assert_eq!(server.post("/v1/refund", &question).status, expected, "{refunds:?}");
        assert_eq!(server.check("w").status, if expected == 200 { 200 } else { 429 }, "{refunds:?}");
        let negative = json!({"domain": "api", "descriptors": [{"entries": [{"key": "user", "value": "w"}], "isNegativeHits": true}]});
        assert_eq!(server.post("/json", &negative).status, expected, "{refunds:?}");
        assert_eq!(server.post_with("/v1/refund", &question, &[bearer()]).status, 200);
        assert_eq!(server.check("w").status, 200);
    }
}

#[test]
fn guessed_tokens_are_counted_and_soon_not_looked_at() {
    let server = Served::with(POLICIES);
    let guess = |at: usize| {
        let token = format!("Bearer a guess of many {at}");
        request(server.admin, "POST", "/-/reload", &[("authorization", token.as_str())], b"")
    };
    let answers: Vec<u16> = (0..60).map(|at| guess(at).status).collect();
    assert!(answers.starts_with(&[401; 20]), "{answers:?}");
    assert!(answers.contains(&429), "{answers:?}");
    let refused = (0..).map(guess).find(|answer| answer.status == 429).unwrap();
    assert_eq!(body(&refused)["code"], "too_many_wrong_tokens");
    assert!(!refused.text().contains(TOKEN));
    // Guessing has ended: the operator waits a moment, not longer.
    let page = tallygate_testkit::wait::until("the operator", std::time::Duration::from_secs(10), || {
        Some(server.admin_get("/metrics")).filter(|page| page.status == 200)
    });
    let count = |outcome: &str| {
        let start = format!("tallygate_wrong_tokens_total{{outcome=\"{outcome}\"}} ");
        page.text()
            .lines()
            .find_map(|line| line.strip_prefix(&start).map(|count| count.parse::<u64>().unwrap()))
            .unwrap()
    };
    assert!(count("wrong") >= 20 && count("unchecked") >= 1);
}
