//! The HTTP interface: questions in JSON, answers in JSON and headers.

mod answer;
mod body;
mod counters;
mod forward_auth;
mod health;
mod json;
mod question;

use std::sync::Arc;

use axum::Router;
use axum::response::Response;
use axum::routing::{get, post};
use http::header::{AUTHORIZATION, CONTENT_TYPE, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderValue, Method, StatusCode, Uri};
use tallygate::{CheckError, StoreError};
use tallygate_http::Problem;

use crate::app::App;
pub(crate) use answer::{ok, problem_response};
pub(crate) use body::{MAX_DESCRIPTORS, MAX_ENTRIES, check_entry};
pub(crate) use health::{livez, readyz};

/// What this listener serves, described for programs.
const OPENAPI: &str = include_str!("../openapi.json");

/// Everything that the HTTP listener serves.
pub(crate) fn router(app: Arc<App>) -> Router {
    Router::new()
        .route("/v1/check", post(question::check))
        .route("/v1/peek", post(question::peek))
        .route("/v1/refund", post(question::refund))
        .route("/v1/reset", post(question::reset))
        .route("/v1/counters/{name}", get(counters::get).post(counters::add).delete(counters::delete))
        .route("/v1/forward-auth", get(forward_auth::answer).post(forward_auth::answer))
        .route("/json", post(json::answer))
        .route("/livez", get(livez))
        .route("/readyz", get(readyz))
        .route("/healthcheck", get(readyz))
        .route("/openapi.json", get(openapi))
        .fallback(not_found)
        .method_not_allowed_fallback(not_allowed)
        .with_state(app)
}

async fn openapi() -> Response {
    let mut response = Response::new(OPENAPI.into());
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// For whoever mistyped a path.
pub(crate) async fn not_found(uri: Uri) -> Response {
    const KNOWN: [&str; 9] = [
        "/v1/check",
        "/v1/peek",
        "/v1/refund",
        "/v1/reset",
        "/v1/forward-auth",
        "/json",
        "/livez",
        "/readyz",
        "/openapi.json",
    ];
    let detail = match tallygate::nearest(uri.path(), &KNOWN) {
        Some(near) => format!("There is nothing here: did you mean `{near}`?"),
        None => "There is nothing here: GET /openapi.json lists what there is.".to_owned(),
    };
    problem_response(&Problem::of_status(StatusCode::NOT_FOUND, detail))
}

/// The router adds which methods are allowed.
pub(crate) async fn not_allowed(method: Method) -> Response {
    let detail = format!("{method} is not understood here: see the `Allow` header of this answer.");
    problem_response(&Problem::of_status(StatusCode::METHOD_NOT_ALLOWED, detail))
}

/// JSON must be said to be JSON: a browser cannot send it across sites without asking first.
fn require_json(headers: &HeaderMap) -> Result<(), Problem> {
    let content_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let essence = content_type.split(';').next().unwrap_or_default().trim();
    if essence.eq_ignore_ascii_case("application/json") {
        return Ok(());
    }
    let detail = "The body must be JSON: send the header `Content-Type: application/json`.";
    Err(Problem::of_status(StatusCode::UNSUPPORTED_MEDIA_TYPE, detail))
}

/// Whether the caller may change what is not its own.
pub(crate) fn authorize(app: &App, headers: &HeaderMap) -> Result<(), Box<Response>> {
    let Some(token) = &app.token else {
        let detail = "This needs a token, and the server has none: start it with --token-file or TALLYGATE_TOKEN.";
        return Err(Box::new(problem_response(&Problem::of_status(StatusCode::FORBIDDEN, detail))));
    };
    let shown = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    let shown =
        shown.and_then(|value| value.split_once(' ')).filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
    if shown.is_some_and(|(_, shown)| token.is(shown.trim())) {
        return Ok(());
    }
    let detail = "This needs the server's token: send the header `Authorization: Bearer <token>`.";
    let mut response = problem_response(&Problem::of_status(StatusCode::UNAUTHORIZED, detail));
    response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"tallygate\""));
    Err(Box::new(response))
}

/// The store could not answer, and there is no policy that says what to do then. What it said in detail is for the
/// operator's log, not for callers.
fn store_problem(error: &StoreError) -> Problem {
    let detail = match error {
        StoreError::Ambiguous { .. } => "The store did not answer in time; the call may have been charged.",
        StoreError::Overloaded { .. } => "Too many calls are under way; nothing was charged.",
        StoreError::Corrupt { .. } => "The store holds something Tallygate did not write.",
        _ => "The store cannot answer now; nothing was charged.",
    };
    Problem::of_status(StatusCode::SERVICE_UNAVAILABLE, detail)
}

fn check_problem(error: &CheckError) -> Problem {
    match error {
        CheckError::Store(error) => store_problem(error),
        invalid => Problem::bad_request(invalid.to_string()),
    }
}
