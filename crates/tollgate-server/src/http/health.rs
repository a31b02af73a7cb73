//! Whether the process lives, and whether calls should be sent to it.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use http::{HeaderValue, StatusCode};
use serde_json::json;

use super::answer::{json_response, ok};
use crate::app::App;

/// Alive, whatever the store does: a restart would not bring that back.
pub(crate) async fn livez() -> Response {
    ok(&json!({"status": "alive"}))
}

/// Ready while the store answers and the server is not about to stop.
pub(crate) async fn readyz(State(app): State<Arc<App>>) -> Response {
    match app.ready() {
        Ok(()) => ok(&json!({"status": "ready"})),
        Err(why) => {
            let body = json!({"status": "not ready", "reason": why.to_string()});
            json_response(StatusCode::SERVICE_UNAVAILABLE, HeaderValue::from_static("application/json"), &body)
        }
    }
}
