//! Carries the caller's trace from the request's headers to the decision, past all that is between.

use axum::Router;
use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use http::HeaderMap;
use opentelemetry::Context;
use opentelemetry::context::FutureExt;
use opentelemetry::propagation::{Extractor, TextMapPropagator};
use opentelemetry_sdk::propagation::TraceContextPropagator;

use super::Traces;

/// In bytes, what W3C asks everyone to pass on of `tracestate`: a queue full of long ones must stay small.
const MAX_STATE: usize = 512;

impl Traces {
    /// A router whose decisions are traced, each under the trace that its request names in `traceparent`.
    pub fn wrap(&self, router: Router) -> Router {
        let traces = self.clone();
        router.layer(from_fn(move |request: Request, next: Next| {
            let context = parent(request.headers()).with_value(traces.clone());
            next.run(request).with_context(context)
        }))
    }
}

/// The span of the caller; none if the header is wrong.
pub(super) fn parent(headers: &HeaderMap) -> Context {
    TraceContextPropagator::new().extract_with_context(&Context::new(), &Headers(headers))
}

struct Headers<'a>(&'a HeaderMap);

impl Extractor for Headers<'_> {
    /// A header that is there twice, or too long, is as good as absent.
    fn get(&self, key: &str) -> Option<&str> {
        let mut values = self.0.get_all(key).iter();
        let value = values.next().filter(|value| value.len() <= MAX_STATE)?;
        if values.next().is_some() { None } else { value.to_str().ok() }
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(http::HeaderName::as_str).collect()
    }
}
