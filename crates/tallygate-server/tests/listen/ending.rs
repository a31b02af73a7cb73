//! How connections end: by age, and when the server drains.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use http_body_util::BodyExt as _;
use tallygate_server::listen::ListenSettings;
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::client::{connect, connect_http2, grpc, request, send};
use super::server::{Server, within};

const WAIT: &str = "GET /wait HTTP/1.1\r\nhost: test\r\n\r\n";
const NEVER: &str = "GET /never HTTP/1.1\r\nhost: test\r\n\r\n";

fn short_lived() -> ListenSettings {
    ListenSettings { max_age: Duration::from_millis(100), age_grace: Duration::from_millis(300), ..Default::default() }
}

#[tokio::test]
async fn an_old_connection_finishes_its_request_and_closes() {
    let server = Server::start(short_lived());
    let mut raw = connect(server.addr).await;
    raw.send(WAIT).await;
    server.arrival().await;
    tokio::time::sleep(Duration::from_millis(150)).await;
    server.let_one_go();
    let answer = raw.answer().await;
    assert_eq!((answer.status, answer.header("connection")), (200, "close"));
    assert!(raw.rest().await.is_empty());
}

#[tokio::test]
async fn an_old_http2_connection_is_told_to_go_away() {
    let server = Server::start(short_lived());
    let (mut sender, connection) = connect_http2(server.addr).await;
    assert_eq!(send(&mut sender, request("GET", "/livez", "")).await.status(), 200);
    within(connection).await.unwrap().unwrap();
}

#[tokio::test]
async fn age_waits_for_a_stuck_request_only_so_long() {
    let server = Server::start(short_lived());
    let mut raw = connect(server.addr).await;
    let began = Instant::now();
    raw.send(NEVER).await;
    assert!(raw.rest().await.is_empty());
    assert!(began.elapsed() >= Duration::from_millis(350) && began.elapsed() < Duration::from_secs(2));
}

#[tokio::test]
async fn a_drain_finishes_what_is_under_way_and_accepts_nothing_new() {
    let server = Server::start(ListenSettings::default());
    let mut idle = connect(server.addr).await;
    assert_eq!(idle.get("/livez").await.status, 200);
    let mut busy = connect(server.addr).await;
    busy.send(WAIT).await;
    server.arrival().await;
    let (mut sender, connection) = connect_http2(server.addr).await;
    let streaming = within(sender.send_request(request("GET", "/wait", "")));
    let streaming = tokio::spawn(streaming);
    server.arrival().await;

    server.drain();
    assert!(idle.rest().await.is_empty(), "an idle connection is closed at once");
    assert!(TcpStream::connect(server.addr).await.is_err());
    server.let_one_go();
    server.let_one_go();
    assert_eq!(busy.answer().await.body, "done");
    assert_eq!(streaming.await.unwrap().unwrap().status(), 200);
    assert_eq!(server.drained().await, 0);
    within(connection).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_drain_cuts_what_is_stuck_and_says_how_many() {
    let settings = ListenSettings { drain_timeout: Duration::from_millis(200), ..ListenSettings::default() };
    let server = Server::start(settings);
    let mut stuck = connect(server.addr).await;
    stuck.send(NEVER).await;
    server.arrival().await;
    let (mut sender, _) = connect_http2(server.addr).await;
    let streaming = tokio::spawn(within(sender.send_request(request("GET", "/never", ""))));
    server.arrival().await;
    // No request, no header: nothing worth waiting for.
    let mut silent = connect(server.addr).await;
    server.until_connections_are(3).await;

    let (began, stats) = (Instant::now(), server.stats.clone());
    assert_eq!(server.drained().await, 2);
    assert!(began.elapsed() >= Duration::from_millis(200) && began.elapsed() < Duration::from_secs(2));
    assert!(stuck.rest().await.is_empty());
    assert!(silent.rest().await.is_empty());
    assert!(streaming.await.unwrap().is_err());
    assert_eq!(stats.connections.load(Relaxed), 0);
}

#[tokio::test]
async fn a_watcher_of_the_health_service_does_not_hold_up_a_drain() {
    let server = Server::start(ListenSettings::default());
    let (mut sender, _) = connect_http2(server.addr).await;
    let mut watching = send(&mut sender, grpc("/grpc.health.v1.Health/Watch", "")).await.into_body();
    assert!(within(watching.frame()).await.unwrap().unwrap().is_data());
    let began = Instant::now();
    assert_eq!(server.drained().await, 0);
    assert!(began.elapsed() < Duration::from_secs(2));
    let trailers = within(watching.frame()).await.unwrap().unwrap().into_trailers().unwrap();
    assert_eq!(trailers["grpc-status"], "14");
}
