//! `/json`: Envoy's rate limit service without gRPC, as envoyproxy/ratelimit offers it.

pub(crate) mod request;
mod response;

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;
use axum::response::Response;
use http::{HeaderMap, StatusCode};
use tallygate_http::{Problem, ProblemCode};

use super::authorize_check;
use super::json::{Refused, json_response, require_plain, sentence};
use super::rls::should_rate_limit;
use crate::app::App;
use crate::decision_event::Api;
use crate::proto::envoy::service::ratelimit::v3::rate_limit_response::Code;

/// 200 if the call may pass, 429 if not. `Content-Type` is ignored: callers of the original send anything.
pub(super) async fn answer(State(app): State<Arc<App>>, headers: HeaderMap, body: Bytes) -> Result<Response, Refused> {
    authorize_check(&app, &headers)?;
    let request = require_plain(&headers).and_then(|()| request::read(&body));
    let request = request.inspect_err(|_| app.reject(Api::Json))?;
    let answer = should_rate_limit(&app, Api::Json, request, None).await;
    let invalid = |reason: String| Problem::new(ProblemCode::InvalidField, sentence(&reason));
    let (response, metadata) = answer.map_err(invalid)?;
    let status = match response.overall_code() {
        Code::OverLimit => StatusCode::TOO_MANY_REQUESTS,
        Code::Ok | Code::Unknown => StatusCode::OK,
    };
    Ok(json_response(status, &response::write(&response, metadata)))
}
