//! The bounded queue of spans, and its counters. OpenTelemetry does the batching, encoding and retries.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use async_trait::async_trait;
use hyper_rustls::HttpsConnectorBuilder;
use opentelemetry::Context;
use opentelemetry_http::hyper::HyperClient;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{Protocol, WithExportConfig, WithHttpConfig};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceResponse;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{BatchConfigBuilder, BatchSpanProcessor, Span, SpanData, SpanExporter, SpanProcessor};
use prost::Message;
use tokio::runtime::Handle;
use tokio_rustls::rustls::crypto::ring;

use super::OtlpError;

/// The most spans that are queued or being sent. More are dropped and counted.
pub(super) const QUEUE: u64 = 4_096;
/// The timeout of one request.
const PATIENCE: Duration = Duration::from_secs(5);

/// Spans by outcome.
#[derive(Debug, Default)]
pub(super) struct Counts {
    waiting: AtomicU64,
    exported: AtomicU64,
    dropped: AtomicU64,
    refused: AtomicU64,
    /// Of the current batch: spans that the collector received and rejected.
    rejected: AtomicU64,
}

impl Counts {
    pub(super) fn load(&self) -> [(&'static str, u64); 3] {
        [("exported", &self.exported), ("dropped", &self.dropped), ("refused", &self.refused)]
            .map(|(name, count)| (name, count.load(Relaxed)))
    }

    /// Spans that are queued or being sent.
    pub(super) fn waiting(&self) -> u64 {
        self.waiting.load(Relaxed)
    }
}

/// OpenTelemetry's batches, with our own limit on the queue: theirs drops silently, so it must never be full.
#[derive(Debug)]
pub(super) struct BoundedProcessor {
    batches: BatchSpanProcessor,
    counts: Arc<Counts>,
}

impl BoundedProcessor {
    /// `endpoint` is the whole URL of requests.
    pub(super) fn start(endpoint: &str, counts: Arc<Counts>) -> Result<Self, OtlpError> {
        let client = Client::new(endpoint, Arc::clone(&counts))?;
        let exporter = opentelemetry_otlp::SpanExporter::builder()
            .with_http()
            .with_http_client(client)
            .with_protocol(Protocol::HttpBinary)
            .with_endpoint(endpoint)
            .build()
            .map_err(OtlpError::Exporter)?;
        let queue = BatchConfigBuilder::default().with_max_queue_size(QUEUE as usize).build();
        let counted = CountedExporter { inner: exporter, counts: Arc::clone(&counts) };
        Ok(Self { batches: BatchSpanProcessor::new(counted, queue), counts })
    }
}

impl SpanProcessor for BoundedProcessor {
    fn on_start(&self, _: &mut Span, _: &Context) {}

    fn on_end(&self, span: SpanData) {
        let place =
            self.counts.waiting.try_update(Relaxed, Relaxed, |waiting| (waiting < QUEUE).then_some(waiting + 1));
        if place.is_ok() {
            self.batches.on_end(span);
        } else if self.counts.dropped.fetch_add(1, Relaxed) == 0 {
            tracing::warn!("the OTLP collector is too slow and some spans are dropped: lower the sampling ratio");
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.batches.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.batches.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.batches.set_resource(resource);
    }
}

#[derive(Debug)]
struct CountedExporter {
    inner: opentelemetry_otlp::SpanExporter,
    counts: Arc<Counts>,
}

impl SpanExporter for CountedExporter {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let count = batch.len() as u64;
        let result = self.inner.export(batch).await;
        let rejected = self.counts.rejected.swap(0, Relaxed);
        let refused = if result.is_ok() { rejected.min(count) } else { count };
        self.counts.exported.fetch_add(count - refused, Relaxed);
        self.counts.refused.fetch_add(refused, Relaxed);
        self.counts.waiting.fetch_sub(count, Relaxed);
        result
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.inner.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.inner.set_resource(resource);
    }
}

/// Calls the collector on the runtime, because batches are made on another thread. Logs once when it fails, and once when
/// it recovers.
#[derive(Debug)]
struct Client {
    inner: Arc<dyn HttpClient>,
    runtime: Handle,
    counts: Arc<Counts>,
    failing: AtomicBool,
}

impl Client {
    fn new(endpoint: &str, counts: Arc<Counts>) -> Result<Self, OtlpError> {
        let inner: Arc<dyn HttpClient> = if endpoint.starts_with("https:") {
            let connector = HttpsConnectorBuilder::new()
                .with_provider_and_native_roots(ring::default_provider())
                .map_err(OtlpError::Roots)?;
            Arc::new(HyperClient::new(connector.https_only().enable_http1().build(), PATIENCE, None))
        } else {
            // Needs no root certificates, which small images lack.
            Arc::new(HyperClient::with_default_connector(PATIENCE, None))
        };
        Ok(Self { inner, runtime: Handle::current(), counts, failing: AtomicBool::new(false) })
    }

    fn note(&self, sent: &Result<Response<Bytes>, HttpError>) {
        let reason = match sent {
            Ok(response) if response.status().is_success() => {
                let answer = ExportTraceServiceResponse::decode(response.body().clone()).unwrap_or_default();
                let rejected = answer.partial_success.map_or(0, |partial| partial.rejected_spans);
                let rejected = u64::try_from(rejected).unwrap_or(0);
                self.counts.rejected.store(rejected, Relaxed);
                (rejected > 0).then(|| format!("it rejected {rejected} spans"))
            }
            Ok(response) => Some(format!("it answered with status {}", response.status().as_u16())),
            Err(error) => Some(chain(error.as_ref())),
        };
        match reason {
            Some(reason) if !self.failing.swap(true, Relaxed) => {
                tracing::warn!(reason, "the OTLP collector does not accept spans");
            }
            None if self.failing.swap(false, Relaxed) => tracing::info!("the OTLP collector accepts spans again"),
            _ => {}
        }
    }
}

#[async_trait]
impl HttpClient for Client {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let inner = Arc::clone(&self.inner);
        let sent = self.runtime.spawn(async move { inner.send_bytes(request).await }).await;
        let sent = sent.unwrap_or_else(|ended| Err(ended.into()));
        self.note(&sent);
        sent
    }
}

/// An error and what caused it, in one line.
fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
