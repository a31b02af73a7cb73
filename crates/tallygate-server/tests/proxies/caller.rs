//! Callers of a proxy, each with an address of its own.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use axum::body::Body;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::BodyExt;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::Value;
use tokio::net::{TcpSocket, TcpStream};

/// Far longer than any answer takes.
const PATIENCE: Duration = Duration::from_secs(20);

/// Somebody at 127.0.0.x: all of them reach a proxy on this machine.
#[derive(Debug, Clone, Copy)]
pub struct Caller(IpAddr);

/// What a caller got, trailers among the headers.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: String,
}

impl Answer {
    /// Of the only header of this name.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.headers.get_all(name).iter();
        let line = lines.next()?.to_str().unwrap();
        assert_eq!(lines.next(), None, "{name} comes once: {:?}", self.headers);
        Some(line)
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

impl Caller {
    pub fn new(last: u8) -> Self {
        Self(Ipv4Addr::new(127, 0, 0, last).into())
    }

    pub fn get(self, addr: SocketAddr, path: &str) -> Answer {
        self.send(addr, "GET", path, &[])
    }

    pub fn get_with(self, addr: SocketAddr, path: &str, headers: &[(&str, &str)]) -> Answer {
        self.send(addr, "GET", path, headers)
    }

    /// Over HTTP/1.1, on a connection of its own.
    pub fn send(self, addr: SocketAddr, method: &str, path: &str, headers: &[(&str, &str)]) -> Answer {
        let request = request(method, path, &[&[("host", "shop.example")], headers].concat());
        alone(async {
            let stream = TokioIo::new(self.connect(addr).await);
            let (mut sender, connection) = hyper::client::conn::http1::handshake(stream).await.unwrap();
            tokio::spawn(connection);
            answer(sender.send_request(request).await.unwrap()).await
        })
    }

    /// As a gRPC client: over HTTP/2 without TLS, with an empty message.
    pub fn call(self, addr: SocketAddr, method: &str) -> Answer {
        let headers = [("content-type", "application/grpc"), ("te", "trailers")];
        let mut request = request("POST", &format!("http://shop.example{method}"), &headers);
        *request.body_mut() = Body::from(vec![0; 5]);
        alone(async {
            let stream = TokioIo::new(self.connect(addr).await);
            let http2 = hyper::client::conn::http2::handshake(TokioExecutor::new(), stream);
            let (mut sender, connection) = http2.await.unwrap();
            tokio::spawn(connection);
            answer(sender.send_request(request).await.unwrap()).await
        })
    }

    async fn connect(self, addr: SocketAddr) -> TcpStream {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind((self.0, 0).into()).unwrap();
        socket.connect(addr).await.unwrap()
    }
}

fn request(method: &str, uri: &str, headers: &[(&str, &str)]) -> Request<Body> {
    let request = Request::builder().method(method).uri(uri);
    let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
    request.body(Body::empty()).unwrap()
}

async fn answer(response: http::Response<hyper::body::Incoming>) -> Answer {
    let (head, body) = response.into_parts();
    let collected = body.collect().await.unwrap();
    let mut headers = head.headers;
    headers.extend(collected.trailers().cloned().unwrap_or_default());
    let body = String::from_utf8(collected.to_bytes().to_vec()).unwrap();
    Answer { status: StatusCode::as_u16(&head.status), headers, body }
}

fn alone<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(PATIENCE, work).await.expect("an answer in time") })
}
