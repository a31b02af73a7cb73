//! `/json`: Envoy's rate limit service for those who do not speak gRPC, as envoyproxy/ratelimit offers it.

pub(crate) mod request;
mod response;

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;
use axum::response::Response;
use http::StatusCode;
use tallygate_http::Problem;

use super::json::{Refused, json_response, read_object};
use super::rls::should_rate_limit;
use crate::app::App;
use crate::decision_event::Api;
use crate::proto::envoy::service::ratelimit::v3::rate_limit_response::Code;

/// 200 if the call may pass, 429 if not. What the body is said to be is not looked at: callers of the original send
/// anything.
pub(super) async fn answer(State(app): State<Arc<App>>, body: Bytes) -> Result<Response, Refused> {
    let request = read_object(&body).inspect_err(|_| app.reject(Api::Json))?;
    let answer = should_rate_limit(&app, Api::Json, request, None).await;
    let (response, metadata) = answer.map_err(Problem::bad_request)?;
    let status = match response.overall_code() {
        Code::OverLimit => StatusCode::TOO_MANY_REQUESTS,
        Code::Ok | Code::Unknown => StatusCode::OK,
    };
    Ok(json_response(status, &response::write(&response, metadata)))
}
