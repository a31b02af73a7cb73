//! Callers: one that writes bytes as it pleases, one that speaks HTTP/2.

use std::net::SocketAddr;

use axum::body::Body;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use super::server::within;

pub struct Raw<I>(pub I);

/// An answer over HTTP/1.1, names in small letters.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Answer {
    /// Of a header; empty when there is none.
    pub fn header(&self, name: &str) -> &str {
        let line = self.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        line.unwrap_or_default()
    }
}

pub async fn connect(addr: SocketAddr) -> Raw<TcpStream> {
    Raw(within(TcpStream::connect(addr)).await.unwrap())
}

impl<I: AsyncRead + AsyncWrite + Unpin> Raw<I> {
    pub async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        within(self.0.write_all(bytes.as_ref())).await.unwrap();
    }

    pub async fn get(&mut self, path: &str) -> Answer {
        self.send(format!("GET {path} HTTP/1.1\r\nhost: test\r\n\r\n")).await;
        self.answer().await
    }

    pub async fn answer(&mut self) -> Answer {
        self.try_answer().await.expect("closed without an answer")
    }

    /// `None` when the connection is closed or reset instead.
    pub async fn try_answer(&mut self) -> Option<Answer> {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(within(self.0.read_u8()).await.ok()?);
        }
        let head = String::from_utf8(head).unwrap().to_lowercase();
        let status = head[9..12].parse().unwrap();
        let mut answer = Answer { status, head, body: String::new() };
        let mut body = vec![0; answer.header("content-length").parse().unwrap_or(0)];
        within(self.0.read_exact(&mut body)).await.ok()?;
        answer.body = String::from_utf8(body).unwrap();
        Some(answer)
    }

    /// What still comes until the server closes, or resets, the connection.
    pub async fn rest(&mut self) -> Vec<u8> {
        let mut rest = Vec::new();
        let _ = within(self.0.read_to_end(&mut rest)).await;
        rest
    }
}

/// One HTTP/2 connection; the task ends when it does.
pub async fn http2(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> (SendRequest<Body>, JoinHandle<hyper::Result<()>>) {
    let (sender, connection) = within(http2::handshake(TokioExecutor::new(), TokioIo::new(stream))).await.unwrap();
    (sender, tokio::spawn(connection))
}

pub async fn connect_http2(addr: SocketAddr) -> (SendRequest<Body>, JoinHandle<hyper::Result<()>>) {
    http2(connect(addr).await.0).await
}

pub fn request(method: &str, path: &str, body: impl Into<Body>) -> Request<Body> {
    Request::builder().method(method).uri(format!("http://test{path}")).body(body.into()).unwrap()
}

pub fn grpc(path: &str, body: impl Into<Body>) -> Request<Body> {
    let mut request = request("POST", path, body);
    request.headers_mut().insert("content-type", "application/grpc".parse().unwrap());
    request
}

pub async fn send(sender: &mut SendRequest<Body>, request: Request<Body>) -> Response<Incoming> {
    within(sender.ready()).await.unwrap();
    within(sender.send_request(request)).await.unwrap()
}

/// The gRPC status in the header of an answer.
pub fn grpc_status(response: &Response<Incoming>) -> &str {
    assert_eq!(response.status(), 200);
    response.headers().get("grpc-status").map_or("", |status| status.to_str().unwrap())
}
