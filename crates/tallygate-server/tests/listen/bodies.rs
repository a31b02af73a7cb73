//! Bodies that do not arrive: whom they keep out, and what they hold.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use axum::body::{Body, Bytes};
use http::Response;
use http_body::Frame;
use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tallygate_server::listen::ListenSettings;
use tokio::task::JoinHandle;

use super::client::{connect, connect_http2, grpc, grpc_status, request, send};
use super::server::{Server, brief, within};

const KIB: usize = 1024;

/// A body of which only the beginning is sent.
struct Unfinished(Option<Bytes>);

impl http_body::Body for Unfinished {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        match self.0.take() {
            Some(beginning) => std::task::Poll::Ready(Some(Ok(Frame::data(beginning)))),
            None => std::task::Poll::Pending,
        }
    }
}

fn unfinished(bytes: usize) -> Body {
    Body::new(Unfinished(Some(vec![b'x'; bytes].into())))
}

/// So many requests whose body does not arrive, on one connection.
async fn hold(
    sender: &mut http2::SendRequest<Body>,
    count: usize,
    bytes: usize,
) -> Vec<JoinHandle<hyper::Result<Response<Incoming>>>> {
    let mut held = Vec::new();
    for _ in 0..count {
        within(sender.ready()).await.unwrap();
        held.push(tokio::spawn(sender.send_request(request("POST", "/length", unfinished(bytes)))));
    }
    held
}

/// 33 connections of 126 such requests shut the listener for ten seconds: everybody else got 503.
#[tokio::test]
async fn bodies_that_do_not_arrive_keep_nobody_out() {
    let server = Server::start(ListenSettings { max_in_flight: 4, ..ListenSettings::default() });
    let (mut attacker, _) = connect_http2(server.addr).await;
    let held = hold(&mut attacker, 100, 1).await;
    let mut slow = connect(server.addr).await;
    slow.send("POST /length HTTP/1.1\r\nhost: test\r\ncontent-length: 5\r\n\r\nabc").await;
    within(async {
        while server.stats.requests.load(Relaxed) < 101 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;

    let mut other = connect(server.addr).await;
    for _ in 0..10 {
        other.send("POST /length HTTP/1.1\r\nhost: test\r\ncontent-length: 5\r\n\r\nabcde").await;
        let answer = other.answer().await;
        assert_eq!((answer.status, answer.body.as_str()), (200, "5"));
    }
    let (mut sender, _) = connect_http2(server.addr).await;
    assert_eq!(send(&mut sender, request("POST", "/length", vec![0; 40 * KIB])).await.status(), 200);
    slow.send("de").await;
    assert_eq!(slow.answer().await.body, "5", "and what arrives late is answered");
    assert!(held.iter().all(|held| !held.is_finished()));
    assert_eq!(server.stats.shed.load(Relaxed), 0);
}

/// 5 connections took 617 MB.
#[tokio::test]
async fn bodies_that_do_not_arrive_hold_no_more_than_the_budget() {
    // Room for sixteen.
    let server = Server::start(ListenSettings { max_bodies: 16 * 40 * KIB, ..ListenSettings::default() });
    let (mut attackers, mut held) = (Vec::new(), Vec::new());
    for _ in 0..50 {
        let (mut attacker, connection) = connect_http2(server.addr).await;
        // A window of 64 KiB, of which these take most.
        held.extend(hold(&mut attacker, 1, 33 * KIB).await);
        attackers.push((attacker, connection));
    }
    within(async {
        while server.stats.shed.load(Relaxed) < 50 - 19 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
    // The oldest were refused.
    let first = within(held.swap_remove(0)).await.unwrap().unwrap();
    assert_eq!(first.status(), 503);
    assert!(held.iter().filter(|held| !held.is_finished()).count() >= 9);
    let (mut sender, _) = connect_http2(server.addr).await;
    assert_eq!(send(&mut sender, request("POST", "/length", vec![0; 64 * KIB])).await.status(), 200);
}

/// A body counted as 4 KiB, whatever the size of its header.
#[tokio::test]
async fn headers_of_bodies_that_do_not_arrive_were_not_counted() {
    // Room for sixteen, if they have small headers.
    let server = Server::start(ListenSettings { max_bodies: 64 * KIB, ..ListenSettings::default() });
    let (mut attacker, _) = connect_http2(server.addr).await;
    let mut held = Vec::new();
    for _ in 0..16 {
        let mut request = request("POST", "/length", unfinished(1));
        request.headers_mut().insert("cookie", "x".repeat(12 * KIB).parse().unwrap());
        within(attacker.ready()).await.unwrap();
        held.push(tokio::spawn(attacker.send_request(request)));
    }
    within(async {
        while server.stats.shed.load(Relaxed) < 11 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
    assert!(held.iter().filter(|held| !held.is_finished()).count() >= 4);
}

#[tokio::test]
async fn streams_are_bounded_apart_from_other_requests() {
    let server = Server::start(ListenSettings { max_in_flight: 1, max_bodies: 4 * KIB, ..ListenSettings::default() });
    let (mut sender, _) = connect_http2(server.addr).await;
    let watch = || grpc("/grpc.health.v1.Health/Watch", unfinished(0));
    let first = send(&mut sender, watch()).await;
    assert_eq!(grpc_status(&first), "", "a stream began");
    assert_eq!(send(&mut sender, request("GET", "/peer", "")).await.status(), 200);
}

/// It was open after 95 seconds.
#[tokio::test]
async fn a_peer_that_never_opens_its_window_is_cut() {
    let server = Server::start(brief());
    let stream = TokioIo::new(connect(server.addr).await.0);
    let mut builder = http2::Builder::new(TokioExecutor::new());
    let handshake = builder.initial_stream_window_size(0).handshake::<_, Body>(stream);
    let (mut sender, connection) = within(handshake).await.unwrap();
    let connection = tokio::spawn(connection);
    let waiting = send(&mut sender, request("GET", "/livez", "")).await;
    assert_eq!(waiting.status(), 200);
    let _ = within(connection).await.unwrap();
    server.until_connections_are(0).await;
}
