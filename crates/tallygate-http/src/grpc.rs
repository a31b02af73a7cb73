//! How to recognise a gRPC call.

use http::HeaderMap;
use http::header::CONTENT_TYPE;

/// Whether this is a gRPC call. Its status is in the trailers, not in the HTTP status.
pub fn is_grpc(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_TYPE).is_some_and(|value| value.as_bytes().starts_with(b"application/grpc"))
}
