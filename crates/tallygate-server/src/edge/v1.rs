//! `/v1/check`, `/v1/peek`, `/v1/refund`, `/v1/reset`.

mod request;
mod response;

use axum::body::Bytes;
use axum::response::Response;
use http::HeaderMap;

use super::json::{problem_response, require_json};
use super::{answer_problem, authorize};
use crate::app::App;
use crate::decision_event::Api;
use tallygate::Verb;

/// Answers a question. Reset is for operators only.
pub(super) async fn answer(verb: Verb, app: &App, headers: &HeaderMap, body: &Bytes) -> Response {
    if verb == Verb::Reset
        && let Err(refused) = authorize(app, headers)
    {
        return *refused;
    }
    let question = match require_json(headers).and_then(|()| request::read(verb, body)) {
        Ok(question) => question,
        Err(problem) => {
            app.reject(Api::Http);
            return problem_response(&problem);
        }
    };
    match app.answer(Api::Http, &question, None).await {
        Ok(answer) => response::write(verb, &answer, app.dialect),
        Err(error) => problem_response(&answer_problem(&error)),
    }
}
