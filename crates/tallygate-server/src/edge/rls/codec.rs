//! Requests and responses as bytes. Also reads strings that are not UTF-8: protobuf forbids them, and proxies send them.

use std::sync::Arc;

use axum::body::Bytes;
use prost::Message;
use prost::bytes::Buf as _;
use tonic::Status;
use tonic::codec::{BufferSettings, Codec, DecodeBuf, Decoder};
use tonic_prost::ProstEncoder;

use crate::app::App;
use crate::decision_event::Api;
use crate::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use crate::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{Entry, RateLimitOverride};
use crate::proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use tallygate_http::digest;

/// A message has a few hundred bytes; tonic would allocate 8 KiB for each.
fn buffer() -> BufferSettings {
    BufferSettings::new(1024, 32 * 1024)
}

#[derive(Debug)]
pub(super) struct Messages(pub(super) Arc<App>);

impl Codec for Messages {
    type Encode = RateLimitResponse;
    type Decode = RateLimitRequest;
    type Encoder = ProstEncoder<RateLimitResponse>;
    type Decoder = Requests;

    fn encoder(&mut self) -> Self::Encoder {
        ProstEncoder::new(buffer())
    }

    fn decoder(&mut self) -> Self::Decoder {
        Requests(Arc::clone(&self.0))
    }
}

#[derive(Debug)]
pub(super) struct Requests(Arc<App>);

impl Decoder for Requests {
    type Item = RateLimitRequest;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<RateLimitRequest>, Status> {
        let bytes = from.copy_to_bytes(from.remaining());
        read(bytes).map(Some).map_err(|error| {
            self.0.reject(Api::Rls);
            Status::invalid_argument(format!("invalid RateLimitRequest: {error}"))
        })
    }

    fn buffer_settings(&self) -> BufferSettings {
        buffer()
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
