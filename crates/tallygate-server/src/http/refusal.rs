//! What a listener answers in place of the service.

use axum::body::Body;
use http::header::{CONNECTION, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, Response, Version};
use tallygate_http::{Problem, ProblemCode};

use super::kind::Form;
use crate::edge;

/// Why a request does not reach the service, or gets no response of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    Overloaded,
    InvalidHost,
    InvalidTransferEncoding,
    TooManyHeaders,
    TooLarge {
        /// The most bytes that are read.
        max: usize,
    },
    SlowBody,
    /// It violates HTTP, or the client left.
    BrokenBody,
    SlowAnswer,
    Panicked,
}

impl Refusal {
    /// The code, the status of gRPC (UNAVAILABLE, INVALID_ARGUMENT, RESOURCE_EXHAUSTED, DEADLINE_EXCEEDED), and the detail,
    /// which is also the `grpc-message`: ASCII without `%`.
    fn parts(self) -> (ProblemCode, &'static str, String) {
        let (code, grpc, detail) = match self {
            Self::Overloaded => {
                (ProblemCode::Overloaded, "14", "Too many requests are in flight on this server; retry shortly.")
            }
            Self::InvalidHost => {
                (ProblemCode::InvalidHost, "3", "An HTTP/1.1 request needs exactly one `Host` header (RFC 9112).")
            }
            Self::InvalidTransferEncoding => (
                ProblemCode::InvalidTransferEncoding,
                "3",
                "The only transfer encoding that this server reads is `chunked`, once.",
            ),
            Self::TooManyHeaders => {
                (ProblemCode::TooManyHeaders, "8", "The request has more header fields than this server reads.")
            }
            Self::TooLarge { max } => {
                let detail = format!("The body is larger than {max} bytes, the most that this server reads.");
                return (ProblemCode::BodyTooLarge, "8", detail);
            }
            Self::SlowBody => (ProblemCode::BodyTimeout, "4", "The body did not arrive in time."),
            Self::BrokenBody => (ProblemCode::InvalidJson, "3", "The body ended before it was complete."),
            Self::SlowAnswer => (ProblemCode::DecisionTimeout, "4", "The decision took too long."),
            Self::Panicked => (ProblemCode::Internal, "14", "The server failed to answer; please report this bug."),
        };
        (code, grpc, detail.to_owned())
    }

    /// The response. Envoy's protocol has no errors for what a request can cause: proxies let requests pass on errors.
    pub(super) fn answer(self, form: Form, version: Version) -> Response<Body> {
        let (code, grpc_status, detail) = self.parts();
        let mut response = match form {
            Form::RateLimit => edge::rls::refusal(code, detail),
            Form::RateLimitJson => edge::envoy_json::refusal(code, detail),
            Form::Grpc => grpc(grpc_status, detail),
            Form::Problem => problem(code, detail),
        };
        let headers = response.headers_mut();
        if self == Self::Overloaded && form == Form::Problem {
            headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        // The rest of the body precedes the next request. HTTP/2 ends the stream instead.
        let unread = matches!(
            self,
            Self::InvalidHost
                | Self::InvalidTransferEncoding
                | Self::TooManyHeaders
                | Self::TooLarge { .. }
                | Self::SlowBody
                | Self::BrokenBody
        );
        if unread && version < Version::HTTP_2 {
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

/// A response without a message: gRPC allows the status in the headers.
fn grpc(status: &'static str, detail: String) -> Response<Body> {
    let mut response = Response::default();
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert("grpc-status", HeaderValue::from_static(status));
    headers.insert("grpc-message", HeaderValue::try_from(detail).expect("ASCII without control characters"));
    response
}

fn problem(code: ProblemCode, detail: String) -> Response<Body> {
    let mut response = Response::new(Body::from(Problem::new(code, detail).to_text()));
    *response.status_mut() = code.status();
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(Problem::CONTENT_TYPE));
    response
}
