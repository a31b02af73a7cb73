//! Refusals over gRPC: a trailers-only response that carries the wait.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderName};
use http::{HeaderValue, Response};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

const STATUS: HeaderName = HeaderName::from_static("grpc-status");
const MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const DETAILS: HeaderName = HeaderName::from_static("grpc-status-details-bin");
const PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");

const RESOURCE_EXHAUSTED: u8 = 8;
const UNAVAILABLE: u8 = 14;
/// What `grpc-message` percent-encodes, besides everything that is not ASCII.
const NOT_IN_MESSAGES: &AsciiSet = &CONTROLS.add(b'%');

/// HTTP 200 with the status in headers that are also the trailers. The body has to be empty.
pub(crate) fn refusal(unavailable: bool, message: &str, wait: Option<Duration>) -> Response<Bytes> {
    let code = if unavailable { UNAVAILABLE } else { RESOURCE_EXHAUSTED };
    let mut response = Response::new(Bytes::new());
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert(STATUS, HeaderValue::from(u16::from(code)));
    headers.insert(MESSAGE, value(utf8_percent_encode(message, NOT_IN_MESSAGES).to_string()));
    headers.insert(DETAILS, value(STANDARD_NO_PAD.encode(status(code, message, wait))));
    // A negative number tells a client not to retry automatically.
    let pushback = wait.map_or(-1, |wait| i64::try_from(wait.as_nanos().div_ceil(1_000_000)).unwrap_or(i64::MAX));
    headers.insert(PUSHBACK, HeaderValue::from(pushback));
    response
}

fn value(text: String) -> HeaderValue {
    HeaderValue::try_from(text).expect("the text is ASCII without control characters")
}

/// `google.rpc.Status`, with `google.rpc.RetryInfo` in its details if a wait is known.
fn status(code: u8, message: &str, wait: Option<Duration>) -> Vec<u8> {
    let mut status = Vec::new();
    push_number(&mut status, 1, code.into());
    push_bytes(&mut status, 2, message.as_bytes());
    if let Some(wait) = wait {
        let mut delay = Vec::new();
        push_number(&mut delay, 1, wait.as_secs());
        push_number(&mut delay, 2, wait.subsec_nanos().into());
        let mut retry_info = Vec::new();
        push_bytes(&mut retry_info, 1, &delay);
        let mut any = Vec::new();
        push_bytes(&mut any, 1, b"type.googleapis.com/google.rpc.RetryInfo");
        push_bytes(&mut any, 2, &retry_info);
        push_bytes(&mut status, 3, &any);
    }
    status
}

fn push_number(message: &mut Vec<u8>, field: u8, number: u64) {
    if number > 0 {
        message.push(field << 3);
        push_varint(message, number);
    }
}

fn push_bytes(message: &mut Vec<u8>, field: u8, bytes: &[u8]) {
    message.push(field << 3 | 2);
    push_varint(message, bytes.len() as u64);
    message.extend_from_slice(bytes);
}

fn push_varint(message: &mut Vec<u8>, mut number: u64) {
    loop {
        let low = u8::try_from(number & 0x7f).expect("seven bits");
        number >>= 7;
        if number == 0 {
            message.push(low);
            return;
        }
        message.push(low | 0x80);
    }
}
