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
    fn status(self) -> StatusCode {
        match self {
            Self::Overloaded => StatusCode::SERVICE_UNAVAILABLE,
            Self::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::SlowBody => StatusCode::REQUEST_TIMEOUT,
            Self::SlowAnswer => StatusCode::GATEWAY_TIMEOUT,
            Self::Panicked => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// UNAVAILABLE, RESOURCE_EXHAUSTED, DEADLINE_EXCEEDED.
    fn grpc_status(self) -> &'static str {
        match self {
            Self::Overloaded | Self::Panicked => "14",
            Self::TooLarge => "8",
            Self::SlowBody | Self::SlowAnswer => "4",
        }
    }

    /// Also the `grpc-message`: ASCII without `%`.
    fn detail(self) -> &'static str {
        match self {
            Self::Overloaded => "too many requests are under way on this server; try again shortly",
            Self::TooLarge => "the body is larger than this server reads",
            Self::SlowBody => "the body did not arrive in time",
            Self::SlowAnswer => "the decision did not come in time",
            Self::Panicked => "the server failed to answer",
        }
    }

    pub(super) fn answer(self, grpc: bool, version: Version) -> Response<Body> {
        if grpc {
            return self.grpc_answer();
        }
        let status = self.status();
        let mut response = Response::new(Body::from(Problem::of_status(status, self.detail()).to_text()));
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

    /// Without a body: the statuses stand in the header, as gRPC allows when there is no message.
    fn grpc_answer(self) -> Response<Body> {
        let mut response = Response::new(Body::empty());
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        headers.insert("grpc-status", HeaderValue::from_static(self.grpc_status()));
        headers.insert("grpc-message", HeaderValue::from_static(self.detail()));
        response
    }
}
