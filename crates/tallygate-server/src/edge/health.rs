//! Liveness and readiness.

use std::sync::Arc;

use axum::extract::{RawQuery, State};
use axum::response::Response;
use http::StatusCode;
use serde_json::json;
use tallygate_http::{Problem, ProblemCode};

use super::json::{Refused, json_response, ok};
use crate::app::App;

/// Alive, whatever the state of the store: a restart would not repair it.
pub(crate) async fn livez() -> Response {
    ok(&json!({"status": "alive"}))
}

/// Ready while the store answers and the server does not drain. With `?store=optional` the state of the store is ignored:
/// for load balancers that have no other server to turn to, because `on_error` answers here.
pub(crate) async fn readyz(State(app): State<Arc<App>>, RawQuery(query): RawQuery) -> Result<Response, Refused> {
    let query = query.unwrap_or_default();
    let store = form_urlencoded::parse(query.as_bytes()).find(|(name, _)| name == "store").map(|(_, value)| value);
    let ready = match store.as_deref() {
        None => app.ready(),
        Some("optional") => app.staying(),
        Some(_) => return Err(Problem::new(ProblemCode::InvalidParameter, "`store` can only be `optional`.").into()),
    };
    let served = app.store().served();
    Ok(match ready {
        Ok(()) => ok(&json!({"status": "ready", "store_served": served})),
        Err(why) => {
            let body = json!({"status": "not ready", "reason": why, "store_served": served});
            json_response(StatusCode::SERVICE_UNAVAILABLE, &body)
        }
    })
}
