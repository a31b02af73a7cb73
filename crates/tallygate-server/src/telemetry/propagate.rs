//! Carries the caller's trace from the request's headers to the decision, past all that is between.

use std::task::{Context, Poll};

use axum::Router;
use http::Request;
use tokio::task::futures::TaskLocalFuture;
use tower::{Layer, Service};

use super::{TraceParent, Traces};
use crate::decision_event::DecisionEvent;

tokio::task_local! {
    /// Set while a request is handled by a router that was wrapped.
    static SCOPE: Scope;
}

#[derive(Debug, Clone)]
pub(super) struct Scope {
    traces: Traces,
    parent: Option<TraceParent>,
}

/// Traces a decision if it is made inside a wrapped router.
pub(super) fn observe(event: &DecisionEvent<'_>) {
    // Outside there is no scope, and no trace is wanted.
    let _ = SCOPE.try_with(|scope| scope.traces.record(scope.parent, event));
}

impl Traces {
    /// A router whose decisions are traced, each under the trace that its request names.
    pub fn wrap(&self, router: Router) -> Router {
        router.layer(Tracing { traces: self.clone() })
    }
}

#[derive(Debug, Clone)]
struct Tracing {
    traces: Traces,
}

impl<S> Layer<S> for Tracing {
    type Service = Traced<S>;

    fn layer(&self, inner: S) -> Traced<S> {
        Traced { inner, traces: self.traces.clone() }
    }
}

#[derive(Debug, Clone)]
struct Traced<S> {
    inner: S,
    traces: Traces,
}

impl<S: Service<Request<B>>, B> Service<Request<B>> for Traced<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = TaskLocalFuture<Scope, S::Future>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let parent = TraceParent::parse(request.headers());
        SCOPE.scope(Scope { traces: self.traces.clone(), parent }, self.inner.call(request))
    }
}
