//! The admin listener: metrics, the policies in force, and reload.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::routing::{get, post};
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method};
use serde_json::{Value, json};
use tallygate::Limit;
use tallygate::hold::HoldTerms;
use tallygate::policy::{Description, Policy};
use tallygate_http::{Problem, ProblemCode, millis_up};

use crate::app::App;
use crate::edge::access::{Credentials, Operator};
use crate::edge::{Refused, admin_fallbacks, livez, ok, overrides, readyz};
use crate::metrics::Sources;
use crate::reload::Reloader;
use crate::token::Scope;

/// The state of the admin listener.
#[derive(Clone)]
pub(crate) struct Admin {
    pub(crate) sources: Sources,
    pub(crate) reloader: Arc<Reloader>,
}

/// Everything that the admin listener serves. With a token, only the probes and the description are open; without one,
/// everything but changes.
pub(crate) fn router(admin: Admin) -> Router {
    let app = Arc::clone(&admin.sources.app);
    let overrides = Router::new()
        .route("/v1/overrides", get(overrides::list).put(overrides::set))
        .route("/v1/overrides/remove", post(overrides::remove))
        .route("/v1/overrides/preview", post(overrides::preview))
        .with_state(Arc::clone(&app));
    let guarded = Router::new()
        .route("/metrics", get(metrics))
        .route("/v1/config", get(config))
        .route("/rlconfig", get(config))
        .route("/-/reload", post(reload))
        .merge(overrides)
        .layer(middleware::from_fn_with_state(Arc::clone(&app), guard));
    let open = Router::new().route("/livez", get(livez)).route("/readyz", get(readyz)).with_state(app);
    admin_fallbacks(guarded.with_state(admin).merge(open))
}

async fn guard(
    State(app): State<Arc<App>>,
    from: Credentials,
    mut request: Request,
    next: Next,
) -> Result<Response, Refused> {
    let reads = matches!(*request.method(), Method::GET | Method::HEAD);
    if !reads {
        let token = app.access.authorize(&from, Scope::Operate)?;
        tracing::info!(token, path = request.uri().path(), "admin request");
        let operator = Operator(token.to_owned());
        request.extensions_mut().insert(operator);
    } else if app.access.has_token() {
        app.access.authorize(&from, Scope::Read)?;
    }
    Ok(next.run(request).await)
}

async fn metrics(State(admin): State<Admin>) -> Response {
    let mut response = Response::new(Body::from(admin.sources.render()));
    let text = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, text);
    response
}

async fn config(State(admin): State<Admin>) -> Response {
    let files = admin.reloader.files().await;
    let loaded = admin.sources.app.policies.load();
    let described = loaded.set.domains().iter().flat_map(|domain| domain.matcher().describe());
    let policies: Vec<Value> = described.map(|(policy, description)| describe(&policy, &description)).collect();
    let store = admin.sources.app.store().place();
    ok(&json!({"generation": loaded.generation, "store": store, "files": files, "policies": policies}))
}

fn describe(policy: &Policy, description: &Description) -> Value {
    let written = |limit: Option<&Limit>| limit.map_or("unlimited".to_owned(), ToString::to_string);
    let overrides = description.overrides.iter();
    let overrides = overrides.map(|(conditions, limit)| json!({"match": conditions, "limit": written(limit.as_ref())}));
    let payers = policy.payers().iter();
    let payers = payers.map(|payer| json!({"name": payer.name(), "limit": payer.limit().to_string()}));
    json!({
        "domain": policy.domain(),
        "name": policy.name(),
        "match": description.conditions,
        "partition": description.partition,
        "overrides": overrides.collect::<Vec<_>>(),
        "limit": written(policy.limit()),
        "payers": payers.collect::<Vec<_>>(),
        "algorithm": policy.limit().map(|limit| limit.algorithm().name()),
        "mode": policy.mode().name(),
        "on_error": policy.on_error().name(),
        "share": policy.share().map(|share| share.to_string()),
        "cache_denials_ms": policy.cache_denials().map(|span| u64::try_from(span.as_millis()).unwrap_or(u64::MAX)),
        "allotment": policy.allotment(),
        "holds": policy.holds().map(terms),
        "excess": policy.excess().name(),
        "near": policy.near(),
    })
}

/// As in a policy file.
fn terms(terms: &HoldTerms) -> Value {
    json!({
        "on_abandon": terms.on_abandon().name(),
        "overrun": terms.overrun().name(),
        "max_open": terms.most_open(),
        "max_held": format!("{}%", terms.most_held()),
        "max_ttl_ms": millis_up(terms.longest()),
        "max_life_ms": millis_up(terms.max_life()),
        "estimate": terms.learns_from().map(|first| format!("p95 from {first}")),
    })
}

async fn reload(State(admin): State<Admin>) -> Result<Response, Refused> {
    let reloaded = admin.reloader.reload().await;
    let changes = reloaded.map_err(|why| Problem::new(ProblemCode::ReloadRefused, why))?;
    let outcome = if changes.is_some() { "applied" } else { "unchanged" };
    Ok(ok(&json!({"outcome": outcome, "generation": admin.sources.app.policies.load().generation})))
}
