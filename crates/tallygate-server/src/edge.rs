//! Where calls come in. Each edge reads a question and writes its answer; [`App::answer`] is between the two.

pub(crate) mod access;
mod bounds;
mod counters;
pub(crate) mod envoy_json;
mod forward_auth;
pub(crate) mod full;
mod health;
mod holds;
mod json;
pub(crate) mod origin;
pub(crate) mod overrides;
pub(crate) mod rls;
pub(crate) mod turns;
mod v1;

use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::Response;
use axum::routing::{get, post};
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Method, Uri};
use tallygate::call::{InvalidCheck, Verb};
use tallygate::store::StoreErrorKind;
use tallygate::{CheckError, StoreError};
use tallygate_http::{Problem, ProblemCode};

use crate::answer::AnswerError;
use crate::app::App;
use access::Credentials;
pub(crate) use health::{livez, readyz};
pub(crate) use json::{Refused, ok};

/// The paths of the HTTP listener with their methods, for messages.
const PATHS: [(&str, &str); 17] = [
    ("/v1/check", "POST"),
    ("/v1/peek", "POST"),
    ("/v1/refund", "POST"),
    ("/v1/reset", "POST"),
    ("/v1/reserve", "POST"),
    ("/v1/settle", "POST"),
    ("/v1/cancel", "POST"),
    ("/v1/extend", "POST"),
    ("/v1/renew", "POST"),
    ("/v1/holds", "GET"),
    ("/v1/counters/", "GET, POST or DELETE"),
    ("/v1/forward-auth", "GET, HEAD or POST"),
    ("/json", "POST"),
    ("/livez", "GET"),
    ("/readyz", "GET"),
    ("/healthcheck", "GET"),
    ("/openapi.json", "GET"),
];

/// The same of the admin listener.
const ADMIN_PATHS: [(&str, &str); 10] = [
    ("/metrics", "GET"),
    ("/v1/config", "GET"),
    ("/v1/overrides", "GET or PUT"),
    ("/v1/overrides/remove", "POST"),
    ("/v1/overrides/preview", "POST"),
    ("/rlconfig", "GET"),
    ("/-/reload", "POST"),
    ("/livez", "GET"),
    ("/readyz", "GET"),
    ("/openapi.json", "GET"),
];

pub(crate) fn router(app: Arc<App>) -> Router {
    let verbs = Verb::ALL.iter().fold(Router::new(), |router, &verb| {
        let answer = async move |State(app): State<Arc<App>>, from: Credentials, headers: HeaderMap, body: Bytes| {
            v1::answer(verb, &app, &from, &headers, &body).await
        };
        router.route(&format!("/v1/{}", verb.name()), post(answer))
    });
    verbs
        .route("/v1/settle", post(holds::settle))
        .route("/v1/cancel", post(holds::cancel))
        .route("/v1/extend", post(holds::extend))
        .route("/v1/renew", post(holds::renew))
        .route("/v1/holds", get(holds::list))
        .route("/v1/counters/{name}", get(counters::get).post(counters::add).delete(counters::delete))
        .route("/v1/forward-auth", get(forward_auth::answer).post(forward_auth::answer))
        .route("/json", post(envoy_json::answer))
        .route("/livez", get(livez))
        .route("/readyz", get(readyz))
        .route("/healthcheck", get(readyz))
        .route("/openapi.json", get(|| openapi(include_str!("../openapi.json"))))
        .fallback(|uri: Uri| not_found(&PATHS, &ADMIN_PATHS, "admin", uri))
        .method_not_allowed_fallback(|method: Method, uri: Uri| not_allowed(&PATHS, method, uri))
        .with_state(app)
}

/// Adds the description of the admin API, and what answers requests that it does not describe.
pub(crate) fn admin_fallbacks(router: Router) -> Router {
    router
        .route("/openapi.json", get(|| openapi(include_str!("../openapi-admin.json"))))
        .fallback(|uri: Uri| not_found(&ADMIN_PATHS, &PATHS, "HTTP", uri))
        .method_not_allowed_fallback(|method: Method, uri: Uri| not_allowed(&ADMIN_PATHS, method, uri))
}

async fn openapi(document: &'static str) -> Response {
    let mut response = Response::new(document.into());
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

async fn not_found(own: &[(&str, &str)], others: &[(&str, &str)], other_listener: &str, uri: Uri) -> Refused {
    let known: Vec<&str> = own.iter().map(|(path, _)| *path).collect();
    let elsewhere = others.iter().any(|(path, _)| *path == uri.path());
    let detail = match tallygate::words::nearest(uri.path(), &known) {
        _ if elsewhere => format!("`{}` is served by the {other_listener} listener, not by this one.", uri.path()),
        Some(near) => format!("There is nothing here: did you mean `{near}`?"),
        None => "There is nothing here: GET /openapi.json describes what this listener serves.".to_owned(),
    };
    Problem::new(ProblemCode::UnknownPath, detail).into()
}

/// The router adds the header `Allow`.
async fn not_allowed(paths: &[(&str, &str)], method: Method, uri: Uri) -> Refused {
    let same = |known: &str| known == uri.path() || (known.ends_with('/') && uri.path().starts_with(known));
    let methods = paths.iter().find(|(path, _)| same(path)).map_or("another method", |(_, methods)| methods);
    let detail = format!("{} does not take {method}: use {methods}.", uri.path());
    Problem::new(ProblemCode::MethodNotAllowed, detail).into()
}

/// The store could not answer, and the call has no policy with an `on_error`. The details are in the log, not in the answer.
fn store_problem(error: &StoreError) -> Problem {
    let detail = match error.kind() {
        StoreErrorKind::Ambiguous => "The store did not answer in time; the call may have been charged.",
        StoreErrorKind::Overloaded if error.may_have_charged() => {
            "Too many calls are under way; this one may have been charged."
        }
        StoreErrorKind::Overloaded => "Too many calls are under way; nothing was charged.",
        StoreErrorKind::Corrupt => "The store holds a value that Tallygate did not write.",
        _ => "The store cannot answer now; nothing was charged.",
    };
    Problem::new(ProblemCode::StoreUnavailable, detail)
}

impl From<AnswerError> for Refused {
    fn from(error: AnswerError) -> Self {
        Self::from(match error {
            AnswerError::UnknownDomain { .. } => Problem::new(ProblemCode::UnknownDomain, error.to_string()),
            AnswerError::Check(CheckError::Store(error)) => store_problem(&error),
            AnswerError::UnknownPolicy { .. } => json::invalid(error),
            AnswerError::Check(CheckError::Conflict) => {
                Problem::new(ProblemCode::RequestIdConflict, json::sentence(&error.to_string()))
            }
            AnswerError::Check(CheckError::Invalid(
                InvalidCheck::CostAboveCapacity { .. }
                | InvalidCheck::AtLeastAboveCapacity { .. }
                | InvalidCheck::HoldAboveMost { .. },
            )) => Problem::new(ProblemCode::CostTooLarge, json::sentence(&error.to_string())),
            AnswerError::Check(_) => json::invalid(error),
        })
    }
}
