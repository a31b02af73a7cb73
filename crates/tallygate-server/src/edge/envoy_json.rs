//! `/json`: Envoy's rate limit service without gRPC, as envoyproxy/ratelimit offers it.

pub(crate) mod request;
mod response;

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;
use axum::response::Response;
use http::{HeaderMap, StatusCode};
use serde_json::Value;
use tallygate_http::{Problem, ProblemCode};

use super::access::Credentials;
use super::json::{Refused, json_response, require_json, sentence};
use super::rls::{refused, should_rate_limit};
use crate::app::App;
use crate::decision_event::Api;
use crate::proto::envoy::service::ratelimit::v3::RateLimitResponse;
use crate::proto::envoy::service::ratelimit::v3::rate_limit_response::Code;

/// 200 if the call may pass, 429 if not.
pub(super) async fn answer(
    State(app): State<Arc<App>>,
    credentials: Credentials,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, Refused> {
    app.access.check(&credentials)?;
    let request = require_json(&headers).and_then(|()| request::read(&body));
    let request = request.inspect_err(|_| app.reject(Api::Json))?;
    if request.descriptors.iter().any(|descriptor| descriptor.is_negative_hits) {
        app.access.refund(&credentials).inspect_err(|_| app.reject(Api::Json))?;
    }
    let answer = should_rate_limit(&app, Api::Json, request, &credentials, None).await;
    let invalid = |reason: String| Problem::new(ProblemCode::InvalidField, sentence(&reason));
    let (response, metadata) = answer.map_err(invalid)?;
    Ok(write(&response, metadata))
}

/// The answer to a request that is refused before it is read.
pub(crate) fn refusal(code: ProblemCode, detail: String) -> Response {
    write(&refused(code, detail), Value::Null)
}

fn write(response: &RateLimitResponse, metadata: Value) -> Response {
    let status = match response.overall_code() {
        Code::OverLimit => StatusCode::TOO_MANY_REQUESTS,
        Code::Ok | Code::Unknown => StatusCode::OK,
    };
    json_response(status, &response::write(response, metadata))
}
