//! Spans of decisions, sent to a collector by OTLP over HTTP.

mod exporter;
mod settings;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use http::HeaderMap;
use opentelemetry::context::FutureExt;
use opentelemetry::propagation::{Extractor, TextMapPropagator};
use opentelemetry::trace::{Span, SpanKind, Status, Tracer, TracerProvider};
use opentelemetry::{Context, InstrumentationScope, KeyValue};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::resource::EnvResourceDetector;
use opentelemetry_sdk::trace::{IdGenerator, RandomIdGenerator, Sampler, SdkTracer, SdkTracerProvider};

pub use settings::{OtlpError, SampleRatio};

use super::wall_clock;
use crate::decision_event::{CallOutcome, DecisionEvent};
use exporter::{BoundedProcessor, Counts};

/// How long shutdown waits for the collector.
const FLUSH: Duration = Duration::from_secs(3);
/// The most characters of a domain in a span. Callers choose it, and the queue must stay small.
const MAX_DOMAIN: usize = 256;
/// The most bytes of `tracestate`, as W3C requires at least. The queue must stay small.
const MAX_STATE: usize = 512;

/// Traces decisions. Clones share one queue.
#[derive(Debug, Clone)]
pub struct Traces {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
    counts: Arc<Counts>,
}

impl Traces {
    /// Sends spans to the collector at `url`, for example `http://127.0.0.1:4318`. A call that belongs to a trace is sampled as
    /// its caller says, any other by `ratio`. The variables `OTEL_*` set the rest, for example headers.
    ///
    /// # Panics
    ///
    /// Outside of a Tokio runtime.
    pub fn start(url: &str, ratio: SampleRatio) -> Result<Self, OtlpError> {
        let counts = Arc::new(Counts::default());
        let root = Sampler::TraceIdRatioBased(ratio.0);
        let provider = SdkTracerProvider::builder()
            .with_span_processor(BoundedProcessor::start(&settings::endpoint(url)?, Arc::clone(&counts))?)
            .with_sampler(Sampler::ParentBased(Box::new(root)))
            .with_resource(resource())
            .build();
        let scope = InstrumentationScope::builder("tallygate_server").with_version(env!("CARGO_PKG_VERSION")).build();
        Ok(Self { tracer: provider.tracer_with_scope(scope), provider, counts })
    }

    /// A router whose decisions are traced, as part of the trace in the request's `traceparent`.
    pub fn wrap(&self, router: Router) -> Router {
        let traces = self.clone();
        router.layer(from_fn(move |request: Request, next: Next| {
            let context = parent(request.headers()).with_value(traces.clone());
            next.run(request).with_context(context)
        }))
    }

    /// Spans by outcome: `exported`, `dropped` because the queue was full, or `refused` by the collector or not delivered.
    pub fn counts(&self) -> [(&'static str, u64); 3] {
        self.counts.load()
    }

    /// Queues a span if its trace is sampled. Never blocks.
    fn record(&self, context: &Context, event: &DecisionEvent<'_>) {
        let Some(asked) = event.asked else { return };
        let ended_at = wall_clock();
        let builder = self.tracer.span_builder(asked.question.verb.name());
        let builder = builder.with_kind(SpanKind::Server).with_start_time(ended_at - asked.took);
        let mut span = self.tracer.build_with_context(builder, context);
        if !span.is_recording() {
            return;
        }
        span.set_attribute(KeyValue::new("tallygate.outcome", event.outcome.name()));
        span.set_attribute(KeyValue::new("tallygate.api", event.api.name()));
        if let Some(domain) = asked.question.domain() {
            span.set_attribute(KeyValue::new("tallygate.domain", domain.chars().take(MAX_DOMAIN).collect::<String>()));
        }
        if let Some(binding) = asked.binding() {
            span.set_attribute(KeyValue::new("tallygate.binding_policy", binding.policy.to_owned()));
        }
        // Denied and invalid calls are not errors of the server.
        if event.outcome == CallOutcome::Unavailable {
            span.set_status(Status::error("the store could not answer, and the policy fails closed"));
        }
        span.end_with_timestamp(ended_at);
    }

    /// Sends the queued spans, for at most three seconds.
    pub async fn finish(self) {
        // Blocks its thread.
        let flushed = tokio::task::spawn_blocking(move || self.provider.shutdown_with_timeout(FLUSH)).await;
        if !matches!(flushed, Ok(Ok(()))) {
            let spans = self.counts.waiting();
            tracing::warn!(spans, "the OTLP collector did not accept the last spans in time; they are lost");
        }
        let [(_, exported), (_, dropped), (_, refused)] = self.counts.load();
        if dropped + refused > 0 {
            tracing::warn!(exported, dropped, refused, "not all spans reached the OTLP collector");
        }
    }
}

/// Traces a decision if its router was wrapped.
pub(super) fn observe(event: &DecisionEvent<'_>) {
    Context::map_current(|context| {
        if let Some(traces) = context.get::<Traces>() {
            traces.record(context, event);
        }
    });
}

/// The span of the caller; none if the header is invalid.
fn parent(headers: &HeaderMap) -> Context {
    TraceContextPropagator::new().extract_with_context(&Context::new(), &Headers(headers))
}

struct Headers<'a>(&'a HeaderMap);

impl Extractor for Headers<'_> {
    /// A header that occurs twice, or is too long, is ignored.
    fn get(&self, key: &str) -> Option<&str> {
        let mut values = self.0.get_all(key).iter();
        let value = values.next().filter(|value| value.len() <= MAX_STATE)?;
        if values.next().is_some() { None } else { value.to_str().ok() }
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(http::HeaderName::as_str).collect()
    }
}

/// This process. `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES` take precedence.
fn resource() -> Resource {
    let instance = RandomIdGenerator::default().new_trace_id().to_string();
    let resource = Resource::builder_empty()
        .with_service_name("tallygate")
        .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
        .with_attribute(KeyValue::new("service.instance.id", instance))
        .with_detectors(&[Box::new(EnvResourceDetector::new())]);
    match std::env::var("OTEL_SERVICE_NAME") {
        Ok(name) if !name.is_empty() => resource.with_service_name(name).build(),
        _ => resource.build(),
    }
}
