//! What operators ask: metrics, the policies in force, and to read the files again.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::routing::{get, post};
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Method};
use serde_json::{Value, json};
use tallygate::Policy;

use crate::accept::ListenStats;
use crate::app::App;
use crate::edge::{authorize, livez, not_allowed, not_found, ok, problem_response, readyz};
use crate::metrics::Sources;
use crate::reload::{Reloaded, Reloader};
use http::StatusCode;
use tallygate_http::Problem;

/// What the admin listener knows beyond what all share.
#[derive(Clone)]
pub(crate) struct Admin {
    pub(crate) app: Arc<App>,
    pub(crate) reloader: Arc<Reloader>,
    pub(crate) listeners: Arc<[(&'static str, Arc<ListenStats>)]>,
    #[cfg(feature = "otlp")]
    pub(crate) traces: Option<crate::telemetry::Traces>,
}

/// Everything that the admin listener serves. With a token, nothing but the probes is open; without one, only what
/// changes nothing.
pub(crate) fn router(admin: Admin) -> Router {
    let guarded = Router::new()
        .route("/metrics", get(metrics))
        .route("/v1/config", get(config))
        .route("/rlconfig", get(config))
        .route("/-/reload", post(reload))
        .layer(middleware::from_fn_with_state(Arc::clone(&admin.app), guard));
    let open = Router::new().route("/livez", get(livez)).route("/readyz", get(readyz));
    let open = open.with_state(Arc::clone(&admin.app));
    guarded.with_state(admin).merge(open).fallback(not_found).method_not_allowed_fallback(not_allowed)
}

async fn guard(State(app): State<Arc<App>>, headers: HeaderMap, request: Request, next: Next) -> Response {
    let changes_nothing = matches!(*request.method(), Method::GET | Method::HEAD);
    if changes_nothing && app.token.is_none() {
        return next.run(request).await;
    }
    match authorize(&app, &headers) {
        Ok(()) => next.run(request).await,
        Err(refused) => *refused,
    }
}

async fn metrics(State(admin): State<Admin>) -> Response {
    let sources = Sources {
        app: &admin.app,
        reloads: admin.reloader.counters(),
        listeners: &admin.listeners,
        #[cfg(feature = "otlp")]
        traces: admin.traces.as_ref(),
    };
    let mut response = Response::new(Body::from(sources.render()));
    let text = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, text);
    response
}

async fn config(State(admin): State<Admin>) -> Response {
    let loaded = admin.app.policies.load();
    let policies: Vec<Value> = loaded.set.policies().map(|policy| describe(policy)).collect();
    ok(&json!({"generation": loaded.generation, "store": admin.app.store().place(), "policies": policies}))
}

fn describe(policy: &Policy) -> Value {
    json!({
        "domain": policy.domain(),
        "name": policy.name(),
        "limit": policy.limit().map_or("unlimited".to_owned(), ToString::to_string),
        "mode": policy.mode().name(),
        "on_error": policy.on_error().name(),
        "excess": policy.excess().name(),
        "near": policy.near(),
    })
}

async fn reload(State(admin): State<Admin>) -> Response {
    let reloader = Arc::clone(&admin.reloader);
    match reloader.reload().await {
        Reloaded::Applied => ok(&json!({"outcome": "applied", "generation": admin.app.policies.load().generation})),
        Reloaded::Unchanged => ok(&json!({"outcome": "unchanged", "generation": admin.app.policies.load().generation})),
        Reloaded::Refused(why) => problem_response(&Problem::of_status(StatusCode::CONFLICT, why)),
    }
}
