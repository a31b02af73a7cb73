//! Spans of decisions, sent to a collector by OTLP over HTTP.

mod exporter;
mod propagate;
mod settings;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use opentelemetry::trace::{Span, SpanKind, Status, Tracer, TracerProvider};
use opentelemetry::{Context, InstrumentationScope, KeyValue};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::resource::EnvResourceDetector;
use opentelemetry_sdk::trace::{IdGenerator, RandomIdGenerator, Sampler, SdkTracer, SdkTracerProvider};

pub use settings::{OtlpError, OtlpSettings, SampleRatio};

use super::wall_clock;
use crate::decision_event::{CallOutcome, DecisionEvent};
use exporter::{BoundedProcessor, Counts};

/// How long the end of the process waits for the collector.
const FLUSH: Duration = Duration::from_secs(3);
/// Of a domain in a span, in characters: callers write it, and a queue full of long ones must stay small.
const MAX_DOMAIN: usize = 256;

/// Traces decisions. Clones share one queue.
#[derive(Debug, Clone)]
pub struct Traces(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
    counts: Arc<Counts>,
}

impl Traces {
    /// Starts to send spans. What `settings` do not say is as the variables `OTEL_*` say, headers among them.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime, which sends the spans.
    pub fn start(settings: &OtlpSettings) -> Result<Self, OtlpError> {
        let counts = Arc::new(Counts::default());
        let root = Sampler::TraceIdRatioBased(settings.ratio.0);
        let provider = SdkTracerProvider::builder()
            .with_span_processor(BoundedProcessor::start(settings, Arc::clone(&counts))?)
            .with_sampler(Sampler::ParentBased(Box::new(root)))
            .with_resource(resource())
            .build();
        let scope = InstrumentationScope::builder("tallygate_server").with_version(env!("CARGO_PKG_VERSION")).build();
        Ok(Self(Arc::new(Shared { tracer: provider.tracer_with_scope(scope), provider, counts })))
    }

    /// What became of spans: `exported`, `dropped` because too many waited, or `refused` by the collector or not
    /// delivered to it.
    pub fn counts(&self) -> [(&'static str, u64); 3] {
        self.0.counts.load()
    }

    /// Queues a span of the decision if its trace is sampled: as the parent in `context` says, else by the ratio. Never
    /// waits.
    fn record(&self, context: &Context, event: &DecisionEvent<'_>) {
        let Some(asked) = event.asked else { return };
        let ended_at = wall_clock();
        let builder = self.0.tracer.span_builder(asked.question.verb.name());
        let builder = builder.with_kind(SpanKind::Server).with_start_time(ended_at - asked.took);
        let mut span = self.0.tracer.build_with_context(builder, context);
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
        // A call that is denied or wrong went as it should: only then is the server at fault.
        if event.outcome == CallOutcome::Unavailable {
            span.set_status(Status::error("the store could not answer, and the policy denies then"));
        }
        span.end_with_timestamp(ended_at);
    }

    /// Sends the spans that still wait, for at most three seconds.
    pub async fn finish(self) {
        let provider = self.0.provider.clone();
        // It blocks its thread.
        let flushed = tokio::task::spawn_blocking(move || provider.shutdown_with_timeout(FLUSH)).await;
        if !matches!(flushed, Ok(Ok(()))) {
            let spans = self.0.counts.waiting();
            tracing::warn!(spans, "the OTLP collector did not take the last spans in time: they are lost");
        }
        let [(_, exported), (_, dropped), (_, refused)] = self.0.counts.load();
        if dropped + refused > 0 {
            tracing::warn!(exported, dropped, refused, "not all spans reached the OTLP collector");
        }
    }
}

/// Traces a decision if it is made inside a router that was wrapped.
pub(super) fn observe(event: &DecisionEvent<'_>) {
    Context::map_current(|context| {
        if let Some(traces) = context.get::<Traces>() {
            traces.record(context, event);
        }
    });
}

/// This process. `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES` go before what is said here.
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
