//! How much is borne: connections, requests, bytes.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tallygate_server::listen::ListenSettings;
use tokio::io::AsyncReadExt as _;

use super::client::{Raw, connect, connect_http2, grpc, grpc_status, request, send};
use super::server::Server;

const LIMIT: usize = 64 * 1024;

#[tokio::test]
async fn a_connection_too_many_is_told_so_and_closed() {
    let server = Server::start(ListenSettings { max_connections: 2, ..ListenSettings::default() });
    let (mut first, mut second) = (connect(server.addr).await, connect(server.addr).await);
    assert_eq!(first.get("/livez").await.status, 200);
    assert_eq!(second.get("/livez").await.status, 200);

    let mut third = connect(server.addr).await;
    let answer = third.get("/livez").await;
    assert_eq!((answer.status, answer.header("retry-after")), (503, "1"));
    assert!(third.rest().await.is_empty());
    assert_eq!((server.stats.shed.load(Relaxed), server.stats.connections.load(Relaxed)), (1, 2));

    assert_eq!(second.get("/livez").await.status, 200, "those inside stay");
    drop(first);
    server.until_connections_are(1).await;
    assert_eq!(connect(server.addr).await.get("/livez").await.status, 200, "there is room again");
}

#[tokio::test]
async fn one_peer_cannot_take_every_connection() {
    let settings = ListenSettings { max_connections_per_peer: 1, cap_loopback: true, ..ListenSettings::default() };
    let server = Server::start(settings);
    let mut first = connect(server.addr).await;
    assert_eq!(first.get("/livez").await.status, 200);
    assert_eq!(connect(server.addr).await.get("/livez").await.status, 503);
    assert_eq!(server.stats.shed.load(Relaxed), 1);
}

#[tokio::test]
async fn overload_is_shed_at_once_and_probes_get_through() {
    let server = Server::start(ListenSettings { max_in_flight: 1, ..ListenSettings::default() });
    let mut busy = connect(server.addr).await;
    busy.send("GET /wait HTTP/1.1\r\nhost: test\r\n\r\n").await;
    server.arrival().await;

    let mut other = connect(server.addr).await;
    let answer = other.get("/peer").await;
    assert_eq!((answer.status, answer.header("retry-after")), (503, "1"));
    assert_eq!(answer.header("content-type"), "application/problem+json");
    assert!(answer.body.contains(r#""status":503"#), "{answer:?}");
    assert_eq!(other.get("/livez").await.body, "alive", "on the same connection");

    let (mut sender, _) = connect_http2(server.addr).await;
    assert_eq!(grpc_status(&send(&mut sender, grpc("/any.Service/Method", "")).await), "14");
    assert_eq!(grpc_status(&send(&mut sender, grpc("/grpc.health.v1.Health/Watch", "")).await), "", "a stream began");
    assert_eq!(server.stats.shed.load(Relaxed), 2);

    server.let_one_go();
    assert_eq!(busy.answer().await.body, "done");
    assert_eq!(other.get("/peer").await.status, 200);
}

async fn post(raw: &mut Raw<impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin>, length: usize) {
    raw.send(format!("POST /length HTTP/1.1\r\nhost: test\r\ncontent-length: {length}\r\n\r\n")).await;
    raw.send(vec![b'x'; length]).await;
}

#[tokio::test]
async fn a_body_of_declared_length_is_read_up_to_the_limit() {
    let server = Server::start(ListenSettings::default());
    let mut raw = connect(server.addr).await;
    post(&mut raw, LIMIT).await;
    assert_eq!(raw.answer().await.body, LIMIT.to_string());
    post(&mut raw, LIMIT + 1024).await;
    let answer = raw.answer().await;
    assert_eq!((answer.status, answer.header("connection")), (413, "close"));
    assert_eq!(answer.header("content-type"), "application/problem+json");
    assert!(raw.rest().await.is_empty());
}

#[tokio::test]
async fn a_caller_may_send_its_body_to_the_end_before_it_is_refused() {
    let server = Server::start(ListenSettings::default());
    let mut raw = connect(server.addr).await;
    raw.send(format!("POST /length HTTP/1.1\r\nhost: test\r\ncontent-length: {}\r\n\r\n", LIMIT + 1)).await;
    raw.send(vec![b'x'; LIMIT]).await;
    let early = tokio::time::timeout(Duration::from_millis(100), raw.0.readable()).await;
    assert!(early.is_err(), "an answer now would be lost on a caller that is still sending");
    raw.send("x").await;
    assert_eq!(raw.answer().await.status, 413);
    assert_eq!(raw.0.read(&mut [0]).await.unwrap(), 0, "closed, not reset");
}

#[tokio::test]
async fn a_body_that_was_only_announced_is_refused_unread() {
    let server = Server::start(ListenSettings::default());
    let mut raw = connect(server.addr).await;
    raw.send("POST /length HTTP/1.1\r\nhost: test\r\nexpect: 100-continue\r\ncontent-length: 70000\r\n\r\n").await;
    assert_eq!(raw.answer().await.status, 413, "not 100");
    // So much that nobody waits for it.
    let mut raw = connect(server.addr).await;
    raw.send("POST /length HTTP/1.1\r\nhost: test\r\ncontent-length: 99999999999\r\n\r\n").await;
    assert_eq!(raw.answer().await.status, 413);
}

#[tokio::test]
async fn a_body_of_unknown_length_is_counted_as_it_comes() {
    let server = Server::start(ListenSettings::default());
    for (chunks, status) in [(64, 200), (65, 413)] {
        let mut raw = connect(server.addr).await;
        raw.send("POST /length HTTP/1.1\r\nhost: test\r\ntransfer-encoding: chunked\r\n\r\n").await;
        for _ in 0..chunks {
            raw.send(format!("400\r\n{}\r\n", "x".repeat(1024))).await;
        }
        raw.send("0\r\n\r\n").await;
        assert_eq!(raw.answer().await.status, status, "{chunks} KiB");
    }
}

#[tokio::test]
async fn the_limit_of_a_body_holds_over_http2() {
    let server = Server::start(ListenSettings::default());
    let (mut sender, _) = connect_http2(server.addr).await;
    for (length, status) in [(LIMIT, 200), (LIMIT + 1, 413)] {
        let response = send(&mut sender, request("POST", "/length", vec![0; length])).await;
        assert_eq!(response.status(), status, "{length} bytes");
    }
    let response = send(&mut sender, grpc("/length", vec![0; LIMIT + 1])).await;
    assert_eq!(grpc_status(&response), "8");
    assert_eq!(send(&mut sender, request("GET", "/livez", "")).await.status(), 200, "the connection lives");
}

/// Both were answered, where RFC 9112 requires 400.
#[tokio::test]
async fn a_request_without_a_host_or_with_two_is_refused() {
    let server = Server::start(ListenSettings::default());
    for headers in ["", "host: a\r\nhost: b\r\n"] {
        let mut raw = connect(server.addr).await;
        raw.send(format!("GET /livez HTTP/1.1\r\n{headers}\r\n")).await;
        let answer = raw.answer().await;
        assert_eq!((answer.status, answer.header("connection")), (400, "close"), "{headers:?}");
        assert!(answer.body.contains("invalid_host"), "{answer:?}");
    }
    let mut old = connect(server.addr).await;
    old.send("GET /livez HTTP/1.0\r\n\r\n").await;
    assert_eq!(old.answer().await.status, 200, "HTTP/1.0 has no such rule");
}

/// `chunked, chunked` was read as `chunked`.
#[tokio::test]
async fn a_body_that_is_encoded_otherwise_than_chunked_once_is_refused() {
    let server = Server::start(ListenSettings::default());
    let encoded = |headers: &str| format!("POST /length HTTP/1.1\r\nhost: a\r\n{headers}\r\n3\r\nabc\r\n0\r\n\r\n");
    for headers in [
        "transfer-encoding: chunked, chunked\r\n",
        "transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n",
        "transfer-encoding: gzip, chunked\r\n",
    ] {
        let mut raw = connect(server.addr).await;
        raw.send(encoded(headers)).await;
        let answer = raw.answer().await;
        assert_eq!((answer.status, answer.header("connection")), (400, "close"), "{headers:?}");
        assert!(answer.body.contains("invalid_transfer_encoding"), "{answer:?}");
    }
    let mut raw = connect(server.addr).await;
    raw.send(encoded("transfer-encoding: Chunked\r\n")).await;
    assert_eq!(raw.answer().await.status, 200);
}

#[tokio::test]
async fn a_header_too_large_is_refused() {
    let server = Server::start(ListenSettings::default());
    let many: String = (0..101).map(|n| format!("x-{n}: y\r\n")).collect();
    for headers in [many, format!("x: {}\r\n", "y".repeat(17 * 1024))] {
        let mut raw = connect(server.addr).await;
        raw.send(format!("GET /livez HTTP/1.1\r\nhost: test\r\n{headers}\r\n")).await;
        assert!(raw.try_answer().await.is_none_or(|answer| answer.status == 431));
    }
    let (mut sender, _) = connect_http2(server.addr).await;
    let mut large = request("GET", "/livez", "");
    large.headers_mut().insert("x", "y".repeat(17 * 1024).parse().unwrap());
    let answered = sender.send_request(large).await;
    assert!(answered.is_err() || answered.is_ok_and(|response| response.status() == 431));
    assert_eq!(connect(server.addr).await.get("/livez").await.status, 200);
}

#[tokio::test]
async fn a_panic_is_an_answer_without_details_and_the_server_lives() {
    let server = Server::start(ListenSettings::default());
    let mut raw = connect(server.addr).await;
    let answer = raw.get("/panic").await;
    assert_eq!(answer.status, 500);
    assert!(!answer.body.contains("secret"), "{answer:?}");
    assert_eq!(raw.get("/livez").await.status, 200, "on the same connection");

    let (mut sender, _) = connect_http2(server.addr).await;
    let mut panic = grpc("/panic", "");
    *panic.method_mut() = http::Method::GET;
    assert_eq!(grpc_status(&send(&mut sender, panic).await), "14");
    assert_eq!(send(&mut sender, request("GET", "/livez", "")).await.status(), 200);
    assert_eq!((server.stats.panics.load(Relaxed), server.stats.requests.load(Relaxed)), (2, 4));
}

/// A request with this many header fields.
fn with_fields(mut request: http::Request<axum::body::Body>, fields: usize) -> http::Request<axum::body::Body> {
    let headers = request.headers_mut();
    for field in headers.len()..fields {
        headers.insert(http::HeaderName::try_from(format!("f{field}")).unwrap(), "v".parse().unwrap());
    }
    request
}

/// 490 tiny ones fit into 16 KiB, and took 36 KiB of memory each time.
#[tokio::test]
async fn http2_had_no_limit_on_the_number_of_header_fields() {
    let server = Server::start(ListenSettings::default());
    let (mut sender, _) = connect_http2(server.addr).await;
    for (fields, status) in [(100, 200), (101, 431), (400, 431)] {
        let response = send(&mut sender, with_fields(request("GET", "/peer", ""), fields)).await;
        assert_eq!(response.status(), status, "{fields} fields");
    }
    let response = send(&mut sender, with_fields(grpc("/any.Service/Method", ""), 101)).await;
    assert_eq!(grpc_status(&response), "8");
}
