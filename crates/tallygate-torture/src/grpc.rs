//! Envoy's rate limit service over HTTP/2, as Envoy calls it, with messages written here.

use std::io;
use std::net::SocketAddr;

use bytes::Bytes;
use h2::client::SendRequest;
use http::Request;
use serde_json::Value;
use tokio::net::TcpStream;

/// What the service answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Code {
    /// `OK`
    Ok,
    /// `OVER_LIMIT`
    OverLimit,
    /// A gRPC status other than 0, with its message. Envoy lets such a request pass by default.
    Error(String),
}

/// A kept connection.
#[derive(Debug, Clone)]
pub struct GrpcClient(SendRequest<Bytes>);

impl GrpcClient {
    /// Connects.
    ///
    /// # Errors
    /// Those of the socket.
    pub async fn open(addr: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(addr).await?;
        stream.set_nodelay(true)?;
        let (sender, connection) = h2::client::handshake(stream).await.map_err(io::Error::other)?;
        // Ends when the last sender is gone.
        tokio::spawn(connection);
        Ok(Self(sender))
    }

    /// Asks with Envoy's deadline of 20 ms. If the future is dropped, the stream is reset.
    ///
    /// # Errors
    /// Those of the connection.
    pub async fn should_rate_limit(&self, descriptors: &[Value]) -> io::Result<Code> {
        let message = request(descriptors);
        let mut frame = vec![0];
        frame.extend_from_slice(&u32::try_from(message.len()).expect("small").to_be_bytes());
        frame.extend_from_slice(&message);
        let head = Request::post("http://127.0.0.1/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit")
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .header("grpc-timeout", "20m")
            .body(())
            .expect("a valid request");
        let mut sender = self.0.clone().ready().await.map_err(io::Error::other)?;
        let (response, mut body) = sender.send_request(head, false).map_err(io::Error::other)?;
        body.send_data(frame.into(), true).map_err(io::Error::other)?;
        let response = response.await.map_err(io::Error::other)?;
        let failed = |headers: &http::HeaderMap| {
            let status = headers.get("grpc-status").filter(|status| *status != "0")?;
            Some(Code::Error(format!("{status:?} {:?}", headers.get("grpc-message"))))
        };
        if let Some(code) = failed(response.headers()) {
            return Ok(code);
        }
        let mut stream = response.into_body();
        let mut answer = Vec::new();
        while let Some(piece) = stream.data().await {
            let piece = piece.map_err(io::Error::other)?;
            let _ = stream.flow_control().release_capacity(piece.len());
            answer.extend_from_slice(&piece);
        }
        let trailers = stream.trailers().await.map_err(io::Error::other)?;
        if let Some(code) = trailers.as_ref().and_then(failed) {
            return Ok(code);
        }
        // After the frame's head of five bytes: the first field, `overall_code`, is a varint; 2 is OVER_LIMIT.
        Ok(match answer.get(5..7) {
            Some([0x08, 2]) => Code::OverLimit,
            Some([0x08, 1]) => Code::Ok,
            other => Code::Error(format!("an answer that begins with {other:?}")),
        })
    }
}

/// `RateLimitRequest`: domain 1, descriptors 2; `RateLimitDescriptor`: entries 1; `Entry`: key 1, value 2.
fn request(descriptors: &[Value]) -> Vec<u8> {
    let mut message = field(1, b"t");
    for descriptor in descriptors {
        let mut entries = Vec::new();
        for (key, value) in descriptor.as_object().into_iter().flatten() {
            let value = value.as_str().unwrap_or_default();
            let entry = [field(1, key.as_bytes()), field(2, value.as_bytes())].concat();
            entries.extend(field(1, &entry));
        }
        message.extend(field(2, &entries));
    }
    message
}

/// A field of bytes.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let mut out = vec![number << 3 | 2];
    let mut length = bytes.len();
    while length >= 0x80 {
        out.push(u8::try_from(length & 0x7f).expect("seven bits") | 0x80);
        length >>= 7;
    }
    out.push(u8::try_from(length).expect("seven bits"));
    out.extend_from_slice(bytes);
    out
}
