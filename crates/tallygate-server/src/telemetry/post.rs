//! Hands one request to a collector: as much of HTTP/1.1 as that takes.

use std::io;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::otlp::Endpoint;

/// From the first packet to the last.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);
/// An answer says little; one that does not end is not read to its end.
const MOST_ANSWER: usize = 64 * 1024;

/// Why a collector did not take a batch.
#[derive(Debug, thiserror::Error)]
pub(super) enum PostError {
    #[error("it does not answer: {0}")]
    Io(#[from] io::Error),
    #[error("it did not answer within {PATIENCE:?}")]
    Late,
    #[error("it answered with status {0}")]
    Status(u16),
    #[error("what answers there does not speak HTTP/1.1")]
    NotHttp,
}

/// Hands `body` over. The number of spans that the collector says it rejected all the same.
pub(super) async fn post(endpoint: &Endpoint, body: &str) -> Result<u64, PostError> {
    timeout(PATIENCE, exchange(endpoint, body)).await.unwrap_or(Err(PostError::Late))
}

async fn exchange(endpoint: &Endpoint, body: &str) -> Result<u64, PostError> {
    let Endpoint { authority, path } = endpoint;
    // One connection each: a batch every two seconds is not worth keeping one alive for.
    let mut stream = TcpStream::connect(authority.as_str()).await?;
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: {authority}\r\nUser-Agent: tallygate/{}\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n",
        env!("CARGO_PKG_VERSION"),
        body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body.as_bytes()).await?;
    stream.flush().await?;

    let mut answer = Vec::new();
    let (status, length, body_at) = loop {
        if let Some(head) = parse_head(&answer)? {
            break head;
        }
        read_more(&mut stream, &mut answer).await?;
    };
    if !(200..300).contains(&status) {
        return Err(PostError::Status(status));
    }
    // Without a length the batch is taken all the same; only what was rejected of it stays unknown.
    let Some(end) = length.and_then(|length| body_at.checked_add(length)).filter(|end| *end <= MOST_ANSWER) else {
        return Ok(0);
    };
    while answer.len() < end {
        read_more(&mut stream, &mut answer).await?;
    }
    Ok(rejected(&answer[body_at..end]))
}

async fn read_more(stream: &mut TcpStream, answer: &mut Vec<u8>) -> Result<(), PostError> {
    if answer.len() >= MOST_ANSWER {
        return Err(PostError::NotHttp);
    }
    match stream.read_buf(answer).await? {
        0 => Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
        _ => Ok(()),
    }
}

/// Status, length of the body if it is told, and where the body begins. `None` until all of the head is there.
fn parse_head(answer: &[u8]) -> Result<Option<(u16, Option<usize>, usize)>, PostError> {
    let begins = b"HTTP/1.";
    if !answer.starts_with(&begins[..begins.len().min(answer.len())]) {
        return Err(PostError::NotHttp);
    }
    let Some(end) = answer.windows(4).position(|four| four == b"\r\n\r\n") else { return Ok(None) };
    let head = str::from_utf8(&answer[..end]).map_err(|_| PostError::NotHttp)?;
    let mut lines = head.split("\r\n");
    let status = lines.next().and_then(|line| line.split(' ').nth(1)).and_then(|code| code.parse().ok());
    let length =
        lines.filter_map(|line| line.split_once(':')).find(|(name, _)| name.eq_ignore_ascii_case("content-length"));
    let length = length.and_then(|(_, value)| value.trim().parse().ok());
    Ok(Some((status.ok_or(PostError::NotHttp)?, length, end + 4)))
}

/// What a collector says it rejected of a batch it took: a number, as a number or as text.
fn rejected(body: &[u8]) -> u64 {
    let Ok(answer) = serde_json::from_slice::<Value>(body) else { return 0 };
    let rejected = &answer["partialSuccess"]["rejectedSpans"];
    rejected.as_u64().or_else(|| rejected.as_str()?.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_a_collector_rejects_is_read() {
        assert_eq!(rejected(br#"{"partialSuccess":{"rejectedSpans":"3","errorMessage":"too old"}}"#), 3);
        assert_eq!(rejected(br#"{"partialSuccess":{"rejectedSpans":3}}"#), 3);
        assert_eq!(["{}", "", "[]", "not json"].map(|body| rejected(body.as_bytes())), [0; 4]);
    }

    #[test]
    fn a_head_is_read_when_it_is_whole() {
        let head = b"HTTP/1.1 200 OK\r\ncontent-LENGTH: 2\r\n\r\n";
        for cut in 0..head.len() {
            assert!(matches!(parse_head(&head[..cut]), Ok(None)), "{cut}");
        }
        assert_eq!(parse_head(head).unwrap(), Some((200, Some(2), head.len())));
        assert!(matches!(parse_head(b"SSH-2.0-OpenSSH"), Err(PostError::NotHttp)));
        assert!(matches!(parse_head(b"HTTP/1.1 many OK\r\n\r\n"), Err(PostError::NotHttp)));
    }

    proptest! {
        #[test]
        fn no_answer_breaks_the_reader(tail in prop::collection::vec(any::<u8>(), 0..60)) {
            let answer = [b"HTTP/1.1 ", tail.as_slice(), b"\r\n\r\n"].concat();
            if let Ok(Some((_, _, body_at))) = parse_head(&answer) {
                prop_assert!(body_at <= answer.len());
            }
        }
    }
}
