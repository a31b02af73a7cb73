//! What a listener answers in place of the service.

use axum::body::Body;
use http::header::{CONNECTION, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, Response, StatusCode, Version};
use tallygate_http::Problem;

/// Why a request gets no answer of the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    Overloaded,
    TooLarge,
    SlowBody,
    SlowAnswer,
    Panicked,
}

impl Refusal {
    /// In HTTP, in gRPC (UNAVAILABLE, RESOURCE_EXHAUSTED, DEADLINE_EXCEEDED), and in words that are also the `grpc-message`:
    /// ASCII without `%`.
    fn words(self) -> (StatusCode, &'static str, &'static str) {
        match self {
            Self::Overloaded => (
                StatusCode::SERVICE_UNAVAILABLE,
                "14",
                "too many requests are under way on this server; try again shortly",
            ),
            Self::TooLarge => (StatusCode::PAYLOAD_TOO_LARGE, "8", "the body is larger than this server reads"),
            Self::SlowBody => (StatusCode::REQUEST_TIMEOUT, "4", "the body did not arrive in time"),
            Self::SlowAnswer => (StatusCode::GATEWAY_TIMEOUT, "4", "the decision did not come in time"),
            Self::Panicked => (StatusCode::INTERNAL_SERVER_ERROR, "14", "the server failed to answer"),
        }
    }

    pub(super) fn answer(self, grpc: bool, version: Version) -> Response<Body> {
        let (status, grpc_status, detail) = self.words();
        let mut response = Response::default();
        if grpc {
            // Without a body: the statuses stand in the header, as gRPC allows when there is no message.
            let headers = response.headers_mut();
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
            headers.insert("grpc-status", HeaderValue::from_static(grpc_status));
            headers.insert("grpc-message", HeaderValue::from_static(detail));
            return response;
        }
        *response.body_mut() = Body::from(Problem::of_status(status, detail).to_text());
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(Problem::CONTENT_TYPE));
        if self == Self::Overloaded {
            headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        // What is left of the body stands where the next request would. HTTP/2 ends the stream instead.
        if matches!(self, Self::TooLarge | Self::SlowBody) && version < Version::HTTP_2 {
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}
