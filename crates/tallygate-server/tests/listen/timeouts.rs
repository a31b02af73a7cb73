//! How long is waited: for headers, bodies, answers, the next request.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tallygate_server::listen::ListenSettings;
use tokio::time::{Instant, sleep};

use super::client::{connect, connect_http2, grpc, grpc_status, request, send};
use super::server::{Server, brief, within};

/// So that nothing else can be what cut a connection.
fn only_headers_are_urgent() -> ListenSettings {
    ListenSettings { header_timeout: brief().header_timeout, ..ListenSettings::default() }
}

#[tokio::test]
async fn a_silent_caller_is_cut() {
    let settings = only_headers_are_urgent();
    let server = Server::start(settings.clone());
    let began = Instant::now();
    assert!(connect(server.addr).await.rest().await.is_empty());
    assert!(began.elapsed() >= settings.header_timeout);
}

#[tokio::test]
async fn a_header_that_trickles_is_cut_however_steadily() {
    let settings = only_headers_are_urgent();
    let server = Server::start(settings.clone());
    for served_before in [false, true] {
        let mut raw = connect(server.addr).await;
        if served_before {
            assert_eq!(raw.get("/livez").await.status, 200);
        }
        let began = Instant::now();
        raw.send("GET /livez HTTP/1.1\r\n").await;
        let (mut reader, mut writer) = raw.0.into_split();
        let trickle = tokio::spawn(async move {
            use tokio::io::AsyncWriteExt as _;
            while writer.write_all(b"x: y\r\n").await.is_ok() {
                sleep(Duration::from_millis(20)).await;
            }
        });
        let mut answered = Vec::new();
        let _ = within(tokio::io::AsyncReadExt::read_to_end(&mut reader, &mut answered)).await;
        assert!(answered.is_empty());
        assert!(began.elapsed() >= settings.header_timeout);
        within(trickle).await.unwrap();
    }
}

#[tokio::test]
async fn an_idle_connection_is_kept_longer_than_a_header_may_take_and_then_closed() {
    // Far longer than a busy machine may keep us from the next request.
    let settings = ListenSettings { idle_timeout: Duration::from_secs(3), ..brief() };
    let server = Server::start(settings.clone());
    let mut raw = connect(server.addr).await;
    let (mut sender, connection) = connect_http2(server.addr).await;
    for _ in 0..2 {
        assert_eq!(raw.get("/livez").await.status, 200);
        assert_eq!(send(&mut sender, request("GET", "/livez", "")).await.status(), 200);
        sleep(settings.header_timeout + Duration::from_millis(50)).await;
    }
    assert!(raw.rest().await.is_empty());
    // GOAWAY, not a cut.
    within(connection).await.unwrap().unwrap();
    server.until_connections_are(0).await;
}

#[tokio::test]
async fn a_preface_without_requests_counts_as_idle() {
    let settings = brief();
    let server = Server::start(settings.clone());
    let began = Instant::now();
    let (_sender, connection) = connect_http2(server.addr).await;
    within(connection).await.unwrap().unwrap();
    assert!(began.elapsed() >= settings.idle_timeout);
}

#[tokio::test]
async fn an_open_stream_keeps_its_connection() {
    let settings = brief();
    let server = Server::start(settings.clone());
    let (mut sender, connection) = connect_http2(server.addr).await;
    let watching = send(&mut sender, grpc("/grpc.health.v1.Health/Watch", "")).await;
    sleep(settings.idle_timeout * 2).await;
    assert_eq!(send(&mut sender, request("GET", "/livez", "")).await.status(), 200);
    drop(watching);
    within(connection).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_body_that_does_not_come_is_the_callers_fault() {
    let server = Server::start(brief());
    let mut raw = connect(server.addr).await;
    raw.send("POST /length HTTP/1.1\r\nhost: test\r\ncontent-length: 5\r\n\r\nabc").await;
    let answer = raw.answer().await;
    assert_eq!((answer.status, answer.header("connection")), (408, "close"));
    assert!(raw.rest().await.is_empty());
}

#[tokio::test]
async fn an_answer_that_does_not_come_is_ours() {
    let server = Server::start(brief());
    let mut raw = connect(server.addr).await;
    assert_eq!(raw.get("/never").await.status, 504);
    assert_eq!(raw.get("/livez").await.status, 200, "on the same connection");
    let (mut sender, _) = connect_http2(server.addr).await;
    assert_eq!(grpc_status(&send(&mut sender, grpc("/never", "")).await), "4");
}

#[tokio::test]
async fn an_answer_that_is_not_read_is_given_up() {
    let server = Server::start(brief());
    let mut raw = connect(server.addr).await;
    raw.send("GET /large HTTP/1.1\r\nhost: test\r\n\r\n").await;
    server.until_connections_are(1).await;
    server.until_connections_are(0).await;
    assert_eq!(server.stats.requests.load(Relaxed), 1);
}
