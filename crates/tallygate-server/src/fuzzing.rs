//! The bodies of the fuzz targets: whole requests, from their bytes to the answer. Compiled for tests and by `cargo xtask fuzz` only.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::body::{Body, Bytes, to_bytes};
use axum::extract::ConnectInfo;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode};
use prost::Message;
use tallygate::MemoryStore;
use tallygate::clock::{ManualClock, Timestamp};
use tallygate_config::Config;
use tokio::runtime::{Builder, Runtime};
use tower::ServiceExt;

use crate::app::App;
use crate::edge;
use crate::proto::envoy::service::ratelimit::v3::rate_limit_response::Code;
use crate::proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use crate::settings::Settings;
use crate::token::{Refunds, Token};

/// All modes, and every way to match.
const POLICIES: &str = "
policies:
  - {name: per-user, domain: edge, partition: [user], limit: 3/min, algorithm: fixed_window}
  - {name: login, domain: edge, match: {path: /login*}, limit: 1/90s, overrides: [{match: {user: vip}, limit: 5/s}]}
  - {name: watched, domain: edge, partition: [watched], limit: 1/h, algorithm: sliding_window, mode: shadow}
  - {name: free, domain: edge, partition: [free], limit: 5/day, algorithm: sliding_counter, mode: quota}
  - {name: paid, domain: edge, partition: [paid], limit: 1/7d, algorithm: sliding_log, mode: quota}
  - {name: nobody, domain: edge, match: {role: nobody}, limit: 0/s}
  - {name: drained, domain: edge, partition: [drained], limit: 4/min, excess: drain}
";
const TOKEN: &str = "0123456789abcdef0123456789abcdef";

thread_local! {
    static RUNTIME: Runtime = Builder::new_current_thread().enable_time().build().expect("a runtime");
}

/// A new one for each input, with a clock that stands still, so that an input means the same every time.
fn app() -> Arc<App> {
    let clock = ManualClock::new(Timestamp::from_micros(1_728_000_010_000_000));
    let store = MemoryStore::builder().capacity(1000).clock(clock).build();
    let policies = Config::from_texts(&[("fuzz.yaml", POLICIES)]).expect("valid policies").policies;
    let token = Token::new(TOKEN).expect("a token");
    let settings = Settings { token: Some(token), refunds: Some(Refunds::Open), ..Settings::default() };
    App::new(store.into(), policies, &settings)
}

async fn read(response: Response<Body>) -> (StatusCode, HeaderMap, Bytes) {
    let (parts, body) = response.into_parts();
    (parts.status, parts.headers, to_bytes(body, usize::MAX).await.expect("a body that is there"))
}

/// A request over HTTP: the first byte chooses the path; then a line with the rest of it, lines of headers up to an empty line, and the
/// body. It is answered twice.
pub fn http_requests(input: &[u8]) {
    let Some(request) = http_request(input) else { return };
    RUNTIME.with(|runtime| {
        runtime.block_on(async {
            let router = edge::router(app());
            for _ in 0..2 {
                let (parts, body) = request.clone().into_parts();
                let asked = Request::from_parts(parts, Body::from(body));
                let Ok(response) = router.clone().oneshot(asked).await;
                let (status, headers, body) = read(response).await;
                is_an_answer(&request, status, &headers, &body, input.len());
            }
        });
    });
}

fn http_request(input: &[u8]) -> Option<Request<Bytes>> {
    let (&choice, input) = input.split_first()?;
    let mut rest = input;
    let mut line = || {
        let end = rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len());
        let line = &rest[..end];
        rest = rest.get(end + 1..).unwrap_or_default();
        line
    };
    let tail = String::from_utf8_lossy(line()).into_owned();
    let (method, path) = match choice % 12 {
        0 => ("POST", format!("/v1/check{tail}")),
        1 => ("POST", format!("/v1/peek{tail}")),
        2 => ("POST", format!("/v1/refund{tail}")),
        3 => ("POST", format!("/v1/reset{tail}")),
        4 => ("POST", format!("/json{tail}")),
        5 => ("POST", format!("/v1/counters/{tail}")),
        6 => ("GET", format!("/v1/counters/{tail}")),
        7 => ("DELETE", format!("/v1/counters/{tail}")),
        8 => ("GET", format!("/v1/forward-auth?{tail}")),
        9 => ("POST", format!("/v1/forward-auth?domain=edge&{tail}")),
        10 => ("GET", format!("/{tail}")),
        _ => ("PUT", format!("/{tail}")),
    };
    let mut request = Request::builder().method(method).uri(path);
    let headers = request.headers_mut()?;
    // What most inputs should have, so that they are read at all; their own headers replace it.
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if choice >= 128 {
        headers.insert("authorization", HeaderValue::try_from(format!("Bearer {TOKEN}")).expect("plain text"));
    }
    loop {
        let line = line();
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { break };
        let name = HeaderName::from_bytes(&line[..colon]).ok()?;
        headers.insert(name, HeaderValue::from_bytes(line[colon + 1..].trim_ascii()).ok()?);
    }
    headers.remove(CONTENT_LENGTH);
    let peer = ConnectInfo(SocketAddr::from(([127, 0, 0, 1], 4711)));
    request.extension(peer).body(Bytes::copy_from_slice(rest)).ok()
}

/// Never a failure of ours; what is refused says why in JSON; and no answer is much larger than its question.
fn is_an_answer(request: &Request<Bytes>, status: StatusCode, headers: &HeaderMap, body: &Bytes, asked: usize) {
    let forward_auth = request.uri().path() == "/v1/forward-auth";
    // Forward-auth answers any status that its query names.
    let known = [200, 400, 401, 403, 404, 405, 409, 415, 422, 429, 507];
    assert!(forward_auth || known.contains(&status.as_u16()), "{status} {body:?}");
    assert!(!forward_auth || (status != 500 && status.as_u16() >= 200), "{status} {body:?}");
    assert!(body.len() <= 128 * 1024 + 64 * asked, "{} bytes for {asked}", body.len());
    assert!(headers.values().map(HeaderValue::len).sum::<usize>() <= 16 * 1024, "{headers:?}");
    if let Some(wait) = headers.get(RETRY_AFTER) {
        let seconds: u64 = wait.to_str().ok().and_then(|wait| wait.parse().ok()).expect("a number of seconds");
        assert!(seconds >= 1, "{headers:?}");
    }
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    if kind.contains("json") {
        let json: serde_json::Value = serde_json::from_slice(body).expect("JSON");
        assert!(status == 200 || json.is_object(), "{json}");
    } else {
        assert!(status == 200 || request.method() == "HEAD", "{status} as `{kind}`: {body:?}");
    }
}

/// A message of Envoy's protocol: the first byte of the input says whether it is framed here. What a client of the proxy can cause
/// is always a decision, because proxies let requests pass on errors.
pub fn grpc_requests(input: &[u8]) {
    let Some((&choice, message)) = input.split_first() else { return };
    let framed = choice & 1 == 0;
    let body = if framed {
        let length = u32::try_from(message.len()).expect("a short input").to_be_bytes();
        [&[0], &length[..], message].concat()
    } else {
        message.to_vec()
    };
    let request = Request::builder()
        .method("POST")
        .uri("/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit")
        .header(CONTENT_TYPE, "application/grpc")
        .header("grpc-timeout", format!("{choice}S"))
        .body(Body::from(body))
        .expect("a request");
    RUNTIME.with(|runtime| {
        runtime.block_on(async {
            let Ok(response) = edge::rls::service(app()).oneshot(request).await;
            let (status, headers, body) = read(response).await;
            assert_eq!(status, 200);
            let asked = framed.then(|| RateLimitRequest::decode(message).ok()).flatten();
            match headers.get("grpc-status").map(|status| status.as_bytes().to_vec()) {
                None => is_a_decision(&body, asked.as_ref(), input.len()),
                // Compressed, which only the configuration of a proxy can cause.
                Some(status) if status == b"12" => assert!(!framed && message.first() != Some(&0)),
                Some(status) => {
                    assert_eq!(status, b"3", "{headers:?}");
                    assert!(asked.is_none_or(|asked| is_misconfigured(&asked)), "{headers:?}");
                }
            }
        });
    });
}

/// No domain, no descriptors, or a limit without a unit.
fn is_misconfigured(asked: &RateLimitRequest) -> bool {
    let unit = |limit: &i32| (1..=6).contains(limit);
    asked.domain.is_empty()
        || asked.descriptors.is_empty()
        || asked.descriptors.iter().any(|one| one.limit.as_ref().is_some_and(|limit| !unit(&limit.unit)))
}

fn is_a_decision(body: &Bytes, asked: Option<&RateLimitRequest>, length: usize) {
    let (prefix, message) = body.split_first_chunk::<5>().expect("a frame");
    assert_eq!(u32::from_be_bytes([prefix[1], prefix[2], prefix[3], prefix[4]]) as usize, message.len());
    let answer = RateLimitResponse::decode(message).expect("a message");
    assert!(matches!(answer.overall_code(), Code::Ok | Code::OverLimit), "{answer:?}");
    assert!(message.len() <= 128 * 1024 + 64 * length, "{} bytes for {length}", message.len());
    if let Some(asked) = asked {
        assert_eq!(answer.statuses.len(), asked.descriptors.len().min(32), "32 are allowed");
        assert!(!asked.domain.is_empty(), "decided without a domain");
    }
    for header in &answer.response_headers_to_add {
        assert!(HeaderName::from_bytes(header.key.as_bytes()).is_ok(), "{header:?}");
        assert!(HeaderValue::from_str(&header.value).is_ok(), "{header:?}");
    }
}

#[cfg(test)]
mod tests {
    use tallygate_testkit::corpus::replay;

    #[test]
    fn every_http_request_has_an_answer() {
        replay("http_requests", super::http_requests);
    }

    #[test]
    fn whatever_a_client_of_a_proxy_causes_is_a_decision() {
        replay("grpc_requests", super::grpc_requests);
    }
}
