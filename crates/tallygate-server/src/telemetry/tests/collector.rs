//! For tests: a collector on a free port, that keeps what it is sent.

use std::time::Duration;

use http::HeaderMap;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::trace::v1::Span;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::super::OtlpSettings;

/// What it answers if all is well.
pub(super) const FINE: &str = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}";

/// Answers every request with the same text, and keeps the connection open.
pub(super) struct Collector {
    url: String,
    received: mpsc::UnboundedReceiver<Received>,
    task: JoinHandle<()>,
}

/// One request, as it came and as those who define OTLP read it.
pub(super) struct Received {
    pub(super) line: String,
    pub(super) headers: HeaderMap,
    pub(super) body: String,
    pub(super) request: ExportTraceServiceRequest,
}

impl Received {
    pub(super) fn spans(&self) -> &[Span] {
        let [resource] = self.request.resource_spans.as_slice() else { panic!("one resource: {}", self.body) };
        let [scope] = resource.scope_spans.as_slice() else { panic!("one scope: {}", self.body) };
        &scope.spans
    }
}

impl Collector {
    pub(super) async fn start(answer: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (sender, received) = mpsc::unbounded_channel();
        let task = tokio::spawn(async move {
            let mut open = Vec::new();
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                // The test may have ended.
                let _ = sender.send(read(&mut stream).await);
                stream.write_all(answer.as_bytes()).await.unwrap();
                open.push(stream);
            }
        });
        Self { url, received, task }
    }

    pub(super) fn settings(&self) -> OtlpSettings {
        OtlpSettings::new(&self.url).unwrap().with_ratio("1".parse().unwrap())
    }

    pub(super) async fn next(&mut self) -> Received {
        let received = timeout(Duration::from_secs(20), self.received.recv()).await;
        received.expect("a batch comes").expect("the collector runs")
    }

    /// All that came until now.
    pub(super) fn all(mut self) -> Vec<Received> {
        self.task.abort();
        std::iter::from_fn(|| self.received.try_recv().ok()).collect()
    }
}

async fn read(stream: &mut TcpStream) -> Received {
    let mut bytes = Vec::new();
    let end = loop {
        if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            break end;
        }
        assert_ne!(stream.read_buf(&mut bytes).await.unwrap(), 0, "the head ends");
    };
    let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
    let mut lines = head.split("\r\n");
    let line = lines.next().unwrap().to_owned();
    let headers = lines.map(|line| line.split_once(": ").unwrap());
    let headers: HeaderMap = headers.map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect();
    let length: usize = headers["content-length"].to_str().unwrap().parse().unwrap();
    let mut body = bytes.split_off(end + 4);
    while body.len() < length {
        assert_ne!(stream.read_buf(&mut body).await.unwrap(), 0, "the body ends");
    }
    let body = String::from_utf8(body).unwrap();
    Received { line, headers, request: serde_json::from_str(&body).unwrap(), body }
}
