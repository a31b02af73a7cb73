//! What tells a gRPC call from other requests.

use http::HeaderMap;
use http::header::CONTENT_TYPE;

/// Whether the caller speaks gRPC: it reads the status in trailers, not that of HTTP.
pub fn is_grpc(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_TYPE).is_some_and(|value| value.as_bytes().starts_with(b"application/grpc"))
}
