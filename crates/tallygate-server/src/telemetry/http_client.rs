//! Posts one batch to a collector.

use std::io;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use http::Request;
use http::header::{CONNECTION, CONTENT_TYPE, HOST, USER_AGENT};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::otlp::Endpoint;

/// For the whole exchange.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);
/// In bytes: the body of a longer answer is not read.
const MOST_ANSWER: usize = 64 * 1024;

/// Why a collector did not take a batch.
#[derive(Debug, thiserror::Error)]
pub(super) enum PostError {
    #[error("it does not answer: {0}")]
    Io(#[from] io::Error),
    #[error("it does not answer in HTTP/1.1: {0}")]
    Http(#[from] hyper::Error),
    #[error("it did not answer within {PATIENCE:?}")]
    Late,
    #[error("it answered with status {0}")]
    Status(u16),
}

/// Hands `body` over. The number of spans that the collector says it rejected all the same.
pub(super) async fn post(endpoint: &Endpoint, body: String) -> Result<u64, PostError> {
    timeout(PATIENCE, exchange(endpoint, body)).await.unwrap_or(Err(PostError::Late))
}

async fn exchange(endpoint: &Endpoint, body: String) -> Result<u64, PostError> {
    let Endpoint { authority, path } = endpoint;
    // One connection each: a batch every two seconds is not worth keeping one alive for.
    let stream = TcpStream::connect(authority.as_str()).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    // Ends with `sender`; its errors are those of the request.
    tokio::spawn(connection);
    let request = Request::post(path)
        .header(HOST, authority)
        .header(USER_AGENT, concat!("tallygate/", env!("CARGO_PKG_VERSION")))
        .header(CONTENT_TYPE, "application/json")
        .header(CONNECTION, "close")
        .body(Body::from(body))
        .expect("the endpoint was validated");
    let response = sender.send_request(request).await?;
    if !response.status().is_success() {
        return Err(PostError::Status(response.status().as_u16()));
    }
    // A body that cannot be read leaves unknown what was rejected: the batch is taken all the same.
    Ok(rejected(&to_bytes(Body::new(response.into_body()), MOST_ANSWER).await.unwrap_or_default()))
}

/// What a collector says it rejected of a batch it took: a number, as a number or as text.
fn rejected(body: &[u8]) -> u64 {
    let Ok(answer) = serde_json::from_slice::<Value>(body) else { return 0 };
    let rejected = &answer["partialSuccess"]["rejectedSpans"];
    rejected.as_u64().or_else(|| rejected.as_str()?.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_collector_rejects_is_read() {
        assert_eq!(rejected(br#"{"partialSuccess":{"rejectedSpans":"3","errorMessage":"too old"}}"#), 3);
        assert_eq!(rejected(br#"{"partialSuccess":{"rejectedSpans":3}}"#), 3);
        assert_eq!(["{}", "", "[]", "not json"].map(|body| rejected(body.as_bytes())), [0; 4]);
    }
}
