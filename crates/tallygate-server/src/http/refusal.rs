//! What a listener answers in place of the service.

use axum::body::Body;
use http::header::{CONNECTION, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, Response, Version};
use tallygate_http::{Problem, ProblemCode};

/// Why a request does not reach the service, or gets no response of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    Overloaded,
    InvalidHost,
    TooLarge {
        /// The most bytes that are read.
        max: usize,
    },
    SlowBody,
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
            Self::TooLarge { max } => {
                let detail = format!("The body is larger than {max} bytes, the most that this server reads.");
                return (ProblemCode::BodyTooLarge, "8", detail);
            }
            Self::SlowBody => (ProblemCode::BodyTimeout, "4", "The body did not arrive in time."),
            Self::SlowAnswer => (ProblemCode::DecisionTimeout, "4", "The decision took too long."),
            Self::Panicked => (ProblemCode::Internal, "14", "The server failed to answer; please report this bug."),
        };
        (code, grpc, detail.to_owned())
    }

    pub(super) fn answer(self, grpc: bool, version: Version) -> Response<Body> {
        let (code, grpc_status, detail) = self.parts();
        let mut response = Response::default();
        if grpc {
            // A response without a message: gRPC allows the status in the headers.
            let headers = response.headers_mut();
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
            headers.insert("grpc-status", HeaderValue::from_static(grpc_status));
            headers.insert("grpc-message", HeaderValue::try_from(detail).expect("ASCII without control characters"));
            return response;
        }
        *response.body_mut() = Body::from(Problem::new(code, detail).to_text());
        *response.status_mut() = code.status();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(Problem::CONTENT_TYPE));
        if self == Self::Overloaded {
            headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        // The rest of the body precedes the next request. HTTP/2 ends the stream instead.
        if matches!(self, Self::TooLarge { .. } | Self::SlowBody | Self::InvalidHost) && version < Version::HTTP_2 {
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}
