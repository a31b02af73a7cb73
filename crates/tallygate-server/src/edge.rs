//! Where calls come in. Each edge reads a question and writes its answer; [`App::answer`] is what is between.

mod bounds;
mod counters;
pub(crate) mod envoy_json;
mod forward_auth;
mod health;
mod json;
pub(crate) mod rls;
mod v1;

use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::Response;
use axum::routing::{get, post};
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Method, StatusCode, Uri};
use tallygate::{CheckError, StoreError, Verb};
use tallygate_http::Problem;

use crate::answer::AnswerError;
use crate::app::App;
pub(crate) use health::{livez, readyz};
pub(crate) use json::{Refused, ok};

/// What this listener serves, described for programs.
const OPENAPI: &str = include_str!("../openapi.json");

pub(crate) fn router(app: Arc<App>) -> Router {
    let verbs = Verb::ALL.iter().fold(Router::new(), |router, &verb| {
        let answer = async move |State(app): State<Arc<App>>, headers: HeaderMap, body: Bytes| {
            v1::answer(verb, &app, &headers, &body).await
        };
        router.route(&format!("/v1/{}", verb.name()), post(answer))
    });
    verbs
        .route("/v1/counters/{name}", get(counters::get).post(counters::add).delete(counters::delete))
        .route("/v1/forward-auth", get(forward_auth::answer).post(forward_auth::answer))
        .route("/json", post(envoy_json::answer))
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
pub(crate) async fn not_found(uri: Uri) -> Refused {
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
    Problem::of_status(StatusCode::NOT_FOUND, detail).into()
}

/// The router adds which methods are allowed.
pub(crate) async fn not_allowed(method: Method) -> Refused {
    let detail = format!("{method} is not understood here: see the `Allow` header of this answer.");
    Problem::of_status(StatusCode::METHOD_NOT_ALLOWED, detail).into()
}

/// Whether the caller may change what is not its own.
pub(crate) fn authorize(app: &App, headers: &HeaderMap) -> Result<(), Problem> {
    let Some(token) = &app.token else {
        let detail = "This needs a token, and the server has none: start it with --token-file or TALLYGATE_TOKEN.";
        return Err(Problem::of_status(StatusCode::FORBIDDEN, detail));
    };
    let shown = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    let shown =
        shown.and_then(|value| value.split_once(' ')).filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
    if shown.is_some_and(|(_, shown)| token.is(shown.trim())) {
        return Ok(());
    }
    let detail = "This needs the server's token: send the header `Authorization: Bearer <token>`.";
    Err(Problem::of_status(StatusCode::UNAUTHORIZED, detail))
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

/// Why a question has no answer, as callers are told.
impl From<AnswerError> for Refused {
    fn from(error: AnswerError) -> Self {
        Self::from(match error {
            AnswerError::UnknownDomain { .. } => Problem::of_status(StatusCode::NOT_FOUND, error.to_string()),
            AnswerError::Check(CheckError::Store(error)) => store_problem(&error),
            AnswerError::Check(_) => Problem::bad_request(error.to_string()),
        })
    }
}
