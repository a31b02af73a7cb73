//! For tests: a collector on a free port, that keeps what it is sent.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use http::HeaderMap;
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTracePartialSuccess, ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::super::Traces;
use crate::accept::{ListenSettings, Listener, Tls};

/// Answers every request with the same status, and with how many spans it rejects.
pub(super) struct Collector {
    url: String,
    received: mpsc::UnboundedReceiver<Received>,
    _stop: tokio_util::sync::DropGuard,
}

/// One request, as those who define OTLP read it.
pub(super) struct Received {
    pub(super) path: String,
    pub(super) headers: HeaderMap,
    pub(super) request: ExportTraceServiceRequest,
}

impl Received {
    pub(super) fn spans(&self) -> &[Span] {
        let [resource] = self.request.resource_spans.as_slice() else { panic!("one resource") };
        let [scope] = resource.scope_spans.as_slice() else { panic!("one scope") };
        &scope.spans
    }
}

#[derive(Clone)]
struct Answer {
    status: u16,
    rejected: i64,
    sender: mpsc::UnboundedSender<Received>,
}

impl Collector {
    pub(super) fn start(status: u16, rejected: i64, tls: Option<Tls>) -> Self {
        let listener = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let scheme = if tls.is_some() { "https" } else { "http" };
        let url = format!("{scheme}://{}", listener.local_addr());
        let (sender, received) = mpsc::unbounded_channel();
        let router = Router::new().fallback(answer).with_state(Answer { status, rejected, sender });
        let stop = CancellationToken::new();
        let token = stop.clone();
        tokio::spawn(async move {
            let settings = ListenSettings { max_body: 1 << 20, ..ListenSettings::default() };
            crate::http::serve(listener, "collector", router, &settings, tls, token, Arc::default()).await
        });
        Self { url, received, _stop: stop.drop_guard() }
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    pub(super) fn traces(&self, ratio: &str) -> Traces {
        Traces::start(&self.url, ratio.parse().unwrap()).unwrap()
    }

    pub(super) async fn next(&mut self) -> Received {
        let received = timeout(Duration::from_secs(20), self.received.recv()).await;
        received.expect("a batch comes").expect("the collector runs")
    }

    /// All that came until now.
    pub(super) fn all(mut self) -> Vec<Received> {
        std::iter::from_fn(|| self.received.try_recv().ok()).collect()
    }
}

async fn answer(State(answer): State<Answer>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
    let request = ExportTraceServiceRequest::decode(body).unwrap();
    // The test may have ended.
    let _ = answer.sender.send(Received { path: parts.uri.path().to_owned(), headers: parts.headers, request });
    let partial = ExportTracePartialSuccess { rejected_spans: answer.rejected, error_message: String::new() };
    let reply = ExportTraceServiceResponse { partial_success: (answer.rejected > 0).then_some(partial) };
    Response::builder().status(answer.status).body(Body::from(reply.encode_to_vec())).unwrap()
}
