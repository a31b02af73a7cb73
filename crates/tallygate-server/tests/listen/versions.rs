//! What is served to whom: both versions of HTTP, any tower service, on any bound socket.

use std::error::Error as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use http_body_util::BodyExt as _;
use tallygate_server::listen::{ListenSettings, ListenStats, Listener, serve};
use tokio_util::sync::CancellationToken;

use super::client::{connect, connect_http2, grpc, grpc_status, request, send};
use super::server::{Server, within};

#[tokio::test]
async fn both_versions_are_spoken_on_one_port_and_the_peer_is_known() {
    let server = Server::start(ListenSettings::default());
    let mut raw = connect(server.addr).await;
    let own = raw.0.local_addr().unwrap();
    assert_eq!(raw.get("/peer").await.body, own.to_string());

    let (mut sender, _) = connect_http2(server.addr).await;
    let response = send(&mut sender, request("GET", "/peer", "")).await;
    assert_eq!(response.version(), http::Version::HTTP_2);
    let body = within(response.into_body().collect()).await.unwrap().to_bytes();
    assert!(body.starts_with(b"127.0.0.1:"));
}

#[tokio::test]
async fn many_requests_share_one_http2_connection() {
    let server = Server::start(ListenSettings::default());
    let (sender, _) = connect_http2(server.addr).await;
    let calls: Vec<_> = (0..500)
        .map(|_| {
            let mut sender = sender.clone();
            tokio::spawn(async move { send(&mut sender, request("GET", "/livez", "")).await.status() })
        })
        .collect();
    for call in calls {
        assert_eq!(within(call).await.unwrap(), 200);
    }
    assert_eq!((server.stats.connections.load(Relaxed), server.stats.requests.load(Relaxed)), (1, 500));
}

#[tokio::test]
async fn services_of_tonic_fit_on_a_socket_bound_by_others() {
    let bound = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let listener = Listener::from_std(bound).unwrap();
    assert!(listener.is_loopback());
    let (addr, shutdown) = (listener.local_addr(), CancellationToken::new());
    let _stop = shutdown.clone().drop_guard();
    tokio::spawn(async move {
        let service = tonic::service::Routes::default().into_axum_router();
        let stats = Arc::new(ListenStats::default());
        serve(listener, "grpc", service, &ListenSettings::default(), None, shutdown, stats).await
    });
    let (mut sender, _) = connect_http2(addr).await;
    assert_eq!(grpc_status(&send(&mut sender, grpc("/no.Service/Method", "")).await), "12", "unimplemented");
}

#[tokio::test]
async fn a_port_in_use_is_named_with_the_remedy() {
    let taken = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let error = Listener::bind(taken.local_addr()).unwrap_err().to_string();
    assert!(error.contains(&taken.local_addr().to_string()) && error.contains("another port"), "{error}");
    let everywhere = Listener::bind(SocketAddr::from(([0, 0, 0, 0], 0))).unwrap();
    assert!(!everywhere.is_loopback());
}

/// The message contained the error of the system, and a chain of errors printed it again.
#[tokio::test]
async fn a_taken_port_is_reported_with_the_error_of_the_system_once() {
    let taken = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let error = Listener::bind(taken.local_addr()).unwrap_err();
    let mut printed = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        printed += &format!(": {error}");
        cause = error.source();
    }
    assert!(printed.starts_with(&format!("cannot listen on {}: ", taken.local_addr())), "{printed}");
    assert_eq!(printed.matches("Address already in use").count(), 1, "{printed}");
}
