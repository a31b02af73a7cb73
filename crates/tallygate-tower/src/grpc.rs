//! Refusals in gRPC's words: trailers only, with the wait in them.

use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderName};
use http::{HeaderMap, HeaderValue, Response};

const STATUS: HeaderName = HeaderName::from_static("grpc-status");
const MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const DETAILS: HeaderName = HeaderName::from_static("grpc-status-details-bin");
const PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");

const RESOURCE_EXHAUSTED: u8 = 8;
const UNAVAILABLE: u8 = 14;

/// Whether the caller speaks gRPC: it understands no other refusal.
pub(crate) fn is_spoken(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_TYPE).is_some_and(|value| value.as_bytes().starts_with(b"application/grpc"))
}

/// HTTP 200 with the status in what are headers and trailers at once. The body has to be empty.
pub(crate) fn refusal(unavailable: bool, message: &str, wait: Option<Duration>) -> Response<Bytes> {
    let code = if unavailable { UNAVAILABLE } else { RESOURCE_EXHAUSTED };
    let mut response = Response::new(Bytes::new());
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert(STATUS, HeaderValue::from(u16::from(code)));
    headers.insert(MESSAGE, value(percent_encoded(message)));
    headers.insert(DETAILS, value(base64(&status(code, message, wait))));
    // A negative number tells a client not to try again by itself.
    let pushback = wait.map_or(-1, |wait| i64::try_from(wait.as_nanos().div_ceil(1_000_000)).unwrap_or(i64::MAX));
    headers.insert(PUSHBACK, HeaderValue::from(pushback));
    response
}

fn value(text: String) -> HeaderValue {
    HeaderValue::try_from(text).expect("made of plain characters")
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

/// Without padding, as gRPC has it.
fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let word = chunk.iter().fold(0u32, |word, byte| word << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for place in 0..=chunk.len() {
            let sextet = word >> (18 - 6 * place) & 0x3f;
            text.push(char::from(ALPHABET[sextet as usize]));
        }
    }
    text
}

fn percent_encoded(text: &str) -> String {
    text.bytes().fold(String::with_capacity(text.len()), |mut encoded, byte| {
        match byte {
            b' '..=b'~' if byte != b'%' => encoded.push(char::from(byte)),
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
        encoded
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_that_of_the_standard_without_padding() {
        for (bytes, text) in
            [("", ""), ("f", "Zg"), ("fo", "Zm8"), ("foo", "Zm9v"), ("foob", "Zm9vYg"), ("fooba", "Zm9vYmE")]
        {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
    }
}
