//! A gateway in front of a large language model: requests and tokens per minute for each API key, in one hold.
//!
//! A request reserves what it may use. If that is more than is left, its own `max_tokens` is lowered. The stream settles what it uses
//! while it passes, and is cut if the model does not keep to what was reserved.
//!
//! ```console
//! $ cargo run -p tallygate-tower --features axum --example llm_gateway -- 127.0.0.1:3000
//! $ curl -N http://127.0.0.1:3000/v1/chat/completions -H 'x-api-key: alice' -H 'content-type: application/json' \
//!     -d '{"model": "pretend", "max_tokens": 20, "stream": true, "messages": [{"role": "user", "content": "Hello!"}]}'
//! ```
//!
//! `TALLYGATE_STORE` shares the limits between gateways, and `UPSTREAM` is the model; without it, one that pretends is started.

mod upstream;

use std::env;
use std::error::Error;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::{Extension, Request, State};
use axum::http::{StatusCode, header, request};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::{Router, routing};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tallygate_redis::AnyStore;
use tallygate_tower::llm::{LlmRequest, LlmUsage};
use tallygate_tower::{Caller, HoldTerms, OnAbandon, Overrun, RateLimit, Reserve, Reserved, Rule};
use tokio::net::TcpListener;

/// What is reserved for an answer whose request declares no cap. Without a cap a model may write for a long time.
const UNDECLARED: u64 = 4096;
/// An answer shorter than this is not worth a request.
const SHORTEST: u64 = 16;
const LARGEST_BODY: usize = 1 << 20;
/// Sent in place of what the budget has no room for.
const CUT: &str =
    "data: {\"error\": {\"type\": \"token_budget\", \"message\": \"the token budget is used up\"}}\n\ndata: [DONE]\n\n";

#[derive(Clone)]
struct Model {
    client: Client<HttpConnector, Body>,
    url: String,
}

/// Reads the request, so that the limit knows what it may use.
async fn read(request: Request, next: Next) -> Response {
    let (mut parts, body) = request.into_parts();
    let Ok(body) = to_bytes(body, LARGEST_BODY).await else { return StatusCode::PAYLOAD_TOO_LARGE.into_response() };
    let Some(asked) = LlmRequest::read(&body) else { return StatusCode::BAD_REQUEST.into_response() };
    parts.extensions.insert(asked);
    next.run(Request::from_parts(parts, Body::empty())).await
}

fn asked(parts: &request::Parts) -> Option<&LlmRequest> {
    parts.extensions.get()
}

/// Passes a request on, within what was reserved for it.
async fn complete(
    State(model): State<Model>,
    Extension(reserved): Extension<Reserved>,
    Extension(mut asked): Extension<LlmRequest>,
) -> Response {
    let prompt = asked.prompt();
    let for_answer = reserved.units().saturating_sub(prompt) / asked.choices();
    if for_answer == 0 {
        return (StatusCode::TOO_MANY_REQUESTS, "the prompt is larger than the tokens that are left\n").into_response();
    }
    asked.limit_to(for_answer);
    let request = Request::post(&model.url).header(header::CONTENT_TYPE, "application/json");
    let Ok(request) = request.body(Body::from(asked.to_body())) else {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    };
    match model.client.request(request).await {
        Ok(response) => {
            let (mut parts, body) = response.into_parts();
            // What the meter begins with, before the response says what the prompt was.
            parts.extensions.insert(LlmUsage::new(prompt));
            Response::from_parts(parts, Body::new(body))
        }
        Err(_) => StatusCode::BAD_GATEWAY.into_response(),
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let place = env::var("TALLYGATE_STORE").unwrap_or_else(|_| AnyStore::MEMORY.to_owned());
    let store = AnyStore::builder(&place).deadline(Duration::from_secs(1)).open().await?;
    let url = match env::var("UPSTREAM") {
        Ok(url) => url,
        Err(_) => format!("http://{}/", upstream::start().await?),
    };
    let of = |name: &str, usual: &str| env::var(name).unwrap_or_else(|_| usual.to_owned());

    let key = || Caller::header("x-api-key");
    // A caller who hangs up before anything is known has used what was reserved; a model that writes more than was reserved is cut.
    let terms = HoldTerms::DEFAULT.with_on_abandon(OnAbandon::Charge).with_overrun(Overrun::Debt);
    let limit = RateLimit::new()
        .rule(Rule::new("requests", of("REQUESTS", "60/min"))?.by(key()).holds(terms))
        .rule(Rule::new("tokens", of("TOKENS", "20000/min"))?.by(key()).holds(terms))
        // What the model has refused costs nothing.
        .count_successes()
        .store(store);
    let reserve = Reserve::units(|parts| asked(parts).map_or(UNDECLARED, |asked| asked.estimate(UNDECLARED)))
        .of("tokens")
        .at_least(SHORTEST)
        .extend(tokio::time::sleep)
        .settle_by_frames(|response| {
            let mut usage = response.extensions.get().cloned().unwrap_or_else(|| LlmUsage::new(0));
            move |frame| frame.data_ref().map(|data| usage.read(data))
        })
        .cut(CUT);

    let model = Model { client: Client::builder(TokioExecutor::new()).build_http(), url };
    let app = Router::new()
        .route("/v1/chat/completions", routing::post(complete))
        .layer(limit.reserve(reserve))
        // The layer added last runs first.
        .layer(middleware::from_fn(read))
        .with_state(model);

    let address = env::args().nth(1).unwrap_or_else(|| "127.0.0.1:3000".to_owned());
    let listener = TcpListener::bind(address).await?;
    println!("listening on {}", listener.local_addr()?);
    axum::serve(listener, app).await?;
    Ok(())
}
