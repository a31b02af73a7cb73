//! A model that pretends: it streams as many words as it may, and says at the end how many these were.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing;
use http_body::Frame;
use tallygate_tower::llm::LlmRequest;
use tokio::net::TcpListener;
use tokio::sync::mpsc;

/// Starts it on a free port.
pub async fn start() -> io::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let app = Router::new().route("/", routing::post(answer));
    tokio::spawn(async move { axum::serve(listener, app).await });
    Ok(address)
}

struct Words(mpsc::Receiver<io::Result<Frame<Bytes>>>);

impl http_body::Body for Words {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        self.0.poll_recv(context)
    }
}

/// `pretend` writes as much as it may, `brief` a word or two, `endless` does not keep to any cap, `mortal` dies after five words,
/// `thinking` waits after five words for as long as somebody listens, and `broken` answers nothing.
async fn answer(body: Bytes) -> Response {
    let Some(asked) = LlmRequest::read(&body) else { return StatusCode::BAD_REQUEST.into_response() };
    let cap = asked.cap().unwrap_or(1000);
    let model = asked.text("model").unwrap_or_default();
    let words = match model {
        "broken" => return StatusCode::SERVICE_UNAVAILABLE.into_response(),
        "brief" => cap.min(2),
        "endless" => u64::MAX,
        "mortal" | "thinking" => 5,
        _ => cap,
    };
    let (prompt, dies, waits) = (asked.prompt(), model == "mortal", model == "thinking");
    // The stream ends when its reader is gone: then nobody can send any more.
    let (sender, receiver) = mpsc::channel(4);
    tokio::spawn(async move {
        let word = Bytes::from_static(b"data: {\"choices\": [{\"delta\": {\"content\": \"word \"}}]}\n\n");
        let mut written = 0;
        while written < words {
            if sender.send(Ok(Frame::data(word.clone()))).await.is_err() {
                return;
            }
            written += 1;
            // A model takes its time.
            if written % 50 == 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
        if waits {
            return sender.closed().await;
        }
        let usage = format!("{{\"prompt_tokens\": {prompt}, \"completion_tokens\": {written}}}");
        let end = format!("data: {{\"choices\": [], \"usage\": {usage}}}\n\ndata: [DONE]\n\n");
        let last = if dies { Err(io::Error::other("the model died")) } else { Ok(Frame::data(Bytes::from(end))) };
        let _ = sender.send(last).await;
    });
    ([("content-type", "text/event-stream")], Body::new(Words(receiver))).into_response()
}
