//! Requests and responses as bytes. Also reads strings that are not UTF-8: protobuf forbids them, and proxies send them.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Response};
use http_body::Frame;
use prost::Message;

use crate::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use crate::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{Entry, RateLimitOverride};
use crate::proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use tallygate_http::digest;

/// Whether a message is compressed, and its length, before the message.
const PREFIX: usize = 5;

/// Why a message cannot be read.
#[derive(Debug)]
pub(super) enum Unreadable {
    /// Only the configuration of the proxy can be the cause.
    Compressed,
    /// It is not a message, or not one message.
    Garbled(String),
}

/// The one message of a body that has arrived.
pub(super) fn request(body: Bytes) -> Result<RateLimitRequest, Unreadable> {
    let length = |prefix: &[u8; PREFIX]| u32::from_be_bytes([prefix[1], prefix[2], prefix[3], prefix[4]]);
    match body.first_chunk::<PREFIX>() {
        Some(prefix) if prefix[0] != 0 => Err(Unreadable::Compressed),
        Some(prefix) if usize::try_from(length(prefix)) == Ok(body.len() - PREFIX) => {
            let invalid = |error| Unreadable::Garbled(format!("invalid RateLimitRequest: {error}"));
            read(body.slice(PREFIX..)).map_err(invalid)
        }
        _ => Err(Unreadable::Garbled("the body is not one message".to_owned())),
    }
}

/// A response with one message.
pub(super) fn response(message: &RateLimitResponse) -> Response<Body> {
    let length = u32::try_from(message.encoded_len()).expect("a response is far smaller than 4 GiB");
    let mut bytes = Vec::with_capacity(PREFIX + message.encoded_len());
    bytes.push(0);
    bytes.extend(length.to_be_bytes());
    message.encode(&mut bytes).expect("a vector grows");
    let mut response = Response::new(Body::new(Answer { message: Some(bytes.into()), ended: false }));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    response
}

/// A message, and the status OK.
struct Answer {
    message: Option<Bytes>,
    ended: bool,
}

impl http_body::Body for Answer {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if let Some(message) = self.message.take() {
            return Poll::Ready(Some(Ok(Frame::data(message))));
        }
        if std::mem::replace(&mut self.ended, true) {
            return Poll::Ready(None);
        }
        let trailers = HeaderMap::from_iter([("grpc-status".parse().expect("a name"), HeaderValue::from_static("0"))]);
        Poll::Ready(Some(Ok(Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        self.ended
    }
}

/// A header of any bytes becomes the value of an entry, and the proxy sends it unchanged. An error would let the request
/// pass, so a value that is not UTF-8 is replaced by its digest.
fn read(bytes: Bytes) -> Result<RateLimitRequest, prost::DecodeError> {
    RateLimitRequest::decode(bytes.clone()).or_else(|_| ByteRequest::decode(bytes).map(RateLimitRequest::from))
}

/// [`RateLimitRequest`] with bytes for strings.
#[derive(Clone, PartialEq, prost::Message)]
struct ByteRequest {
    #[prost(bytes = "vec", tag = "1")]
    domain: Vec<u8>,
    #[prost(message, repeated, tag = "2")]
    descriptors: Vec<ByteDescriptor>,
    #[prost(uint32, tag = "3")]
    hits_addend: u32,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ByteDescriptor {
    #[prost(message, repeated, tag = "1")]
    entries: Vec<ByteEntry>,
    #[prost(message, optional, tag = "2")]
    limit: Option<RateLimitOverride>,
    #[prost(message, optional, tag = "3")]
    hits_addend: Option<u64>,
    #[prost(bool, tag = "4")]
    is_negative_hits: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ByteEntry {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

impl From<ByteRequest> for RateLimitRequest {
    fn from(bytes: ByteRequest) -> Self {
        let entry = |entry: ByteEntry| Entry { key: text(entry.key), value: text(entry.value) };
        let descriptors = bytes.descriptors.into_iter().map(|bytes| {
            let ByteDescriptor { entries, limit, hits_addend, is_negative_hits } = bytes;
            let entries = entries.into_iter().map(entry).collect();
            RateLimitDescriptor { entries, limit, hits_addend, is_negative_hits }
        });
        Self { domain: text(bytes.domain), descriptors: descriptors.collect(), hits_addend: bytes.hits_addend }
    }
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap_or_else(|error| digest(error.as_bytes()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn entry() -> impl Strategy<Value = ByteEntry> {
        let part = || prop::collection::vec(any::<u8>(), 0..6);
        (part(), part()).prop_map(|(key, value)| ByteEntry { key, value })
    }

    fn request() -> impl Strategy<Value = ByteRequest> {
        let limit = (any::<u32>(), any::<i32>());
        let limit = limit.prop_map(|(requests_per_unit, unit)| RateLimitOverride { requests_per_unit, unit });
        let parts =
            (prop::collection::vec(entry(), 0..3), prop::option::of(limit), any::<Option<u64>>(), any::<bool>());
        let descriptor = parts.prop_map(|(entries, limit, hits_addend, is_negative_hits)| ByteDescriptor {
            entries,
            limit,
            hits_addend,
            is_negative_hits,
        });
        (any::<Vec<u8>>(), prop::collection::vec(descriptor, 0..3), any::<u32>())
            .prop_map(|(domain, descriptors, hits_addend)| ByteRequest { domain, descriptors, hits_addend })
    }

    proptest! {
        #[test]
        fn any_bytes_may_stand_where_a_text_is_expected(request in request()) {
            let read = read(request.encode_to_vec().into()).unwrap();
            prop_assert_eq!(&read, &RateLimitRequest::from(request.clone()));
            for (wrote, read) in request.descriptors.iter().zip(&read.descriptors) {
                prop_assert_eq!((wrote.limit, wrote.hits_addend), (read.limit, read.hits_addend));
                for (wrote, read) in wrote.entries.iter().zip(&read.entries) {
                    match std::str::from_utf8(&wrote.value) {
                        Ok(value) => prop_assert_eq!(value, &read.value),
                        Err(_) => prop_assert_eq!(digest(&wrote.value), read.value.clone()),
                    }
                }
            }
        }

        #[test]
        fn nothing_that_comes_in_panics(bytes: Vec<u8>) {
            let _ = read(bytes.into());
        }
    }
}
