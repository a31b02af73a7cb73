//! The answer to a refused caller.

use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use tallygate::policy::{Outcome, Verdict};
use tallygate_http::{Problem, SOON, is_grpc, seconds_up, verdict_problem};

use crate::grpc;

/// A refused call, for [`RateLimit::respond`](crate::RateLimit::respond).
#[derive(Debug, Clone)]
pub struct Refusal {
    verdict: Verdict,
    grpc: bool,
}

impl Refusal {
    pub(crate) fn new(verdict: Verdict, request: &HeaderMap) -> Self {
        Self { verdict, grpc: is_grpc(request) }
    }

    /// The verdict.
    pub fn verdict(&self) -> &Verdict {
        &self.verdict
    }

    pub(crate) fn into_verdict(self) -> Verdict {
        self.verdict
    }

    /// How long to wait, exactly; `None` if waiting does not help, or if the store was unreachable.
    pub fn retry_after(&self) -> Option<Duration> {
        self.verdict.binding().and_then(|ruling| ruling.status().retry_after())
    }

    /// The same in whole seconds, rounded up, as in the header `Retry-After`.
    pub fn retry_after_seconds(&self) -> Option<u64> {
        self.retry_after().map(seconds_up)
    }

    /// 429, or 503 if the store is unreachable and a rule fails closed.
    pub fn status(&self) -> StatusCode {
        match self.verdict.outcome() {
            Outcome::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::TOO_MANY_REQUESTS,
        }
    }

    /// Whether the caller speaks gRPC, and needs the status in trailers.
    pub fn is_grpc(&self) -> bool {
        self.grpc
    }

    /// The problem details (RFC 9457).
    pub fn problem(&self) -> Problem {
        verdict_problem(&self.verdict)
    }

    /// The default answer: a problem, or for gRPC a status with the wait.
    pub fn response(&self) -> Response<Bytes> {
        let problem = self.problem();
        if self.grpc {
            let unavailable = self.verdict.outcome() == Outcome::Unavailable;
            let wait = if unavailable { Some(SOON) } else { self.retry_after() };
            return grpc::refusal(unavailable, problem.detail(), wait);
        }
        let mut response = Response::new(Bytes::from(problem.to_text()));
        *response.status_mut() = problem.status();
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(Problem::CONTENT_TYPE));
        response
    }
}
