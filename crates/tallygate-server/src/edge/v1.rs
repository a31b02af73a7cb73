//! `/v1/check`, `/v1/peek`, `/v1/refund`, `/v1/reset`.

mod request;
mod response;

use axum::body::Bytes;
use axum::response::Response;
use http::HeaderMap;

use super::json::require_json;
use super::{Refused, authorize, authorize_check};
use crate::app::App;
use crate::decision_event::Api;
use crate::token::Scope;
use tallygate::call::Verb;

/// Answers a question. Reset needs the token.
pub(super) async fn answer(verb: Verb, app: &App, headers: &HeaderMap, body: &Bytes) -> Result<Response, Refused> {
    if verb == Verb::Reset {
        let token = authorize(app, headers, Scope::Operate)?;
        tracing::info!(token, "reset requested");
    } else {
        authorize_check(app, headers)?;
    }
    let read = require_json(headers).and_then(|()| request::read(verb, body));
    let question = read.inspect_err(|_| app.reject(Api::Http))?;
    let answer = app.answer(Api::Http, &question, None).await?;
    response::write(verb, &answer, app.headers)
}
