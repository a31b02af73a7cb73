//! `/v1/check`, `/v1/peek`, `/v1/refund`, `/v1/reset`.

mod request;
mod response;

use axum::body::Bytes;
use axum::response::Response;
use http::HeaderMap;

use super::Refused;
use super::access::Credentials;
use super::json::require_json;
use crate::app::App;
use crate::decision_event::Api;
use crate::token::Scope;
use tallygate::call::Verb;

/// Answers a question. What gives units back needs more than a check.
pub(super) async fn answer(
    verb: Verb,
    app: &App,
    from: &Credentials,
    headers: &HeaderMap,
    body: &Bytes,
) -> Result<Response, Refused> {
    match verb {
        Verb::Reset => {
            let token = app.access.authorize(from, Scope::Operate)?;
            tracing::info!(token, "reset requested");
        }
        Verb::Refund => app.access.refund(from)?,
        _ => app.access.check(from)?,
    }
    let read = require_json(headers).and_then(|()| request::read(verb, body));
    let question = read.inspect_err(|_| app.reject(Api::Http))?;
    let answer = app.answer(Api::Http, &question, None).await?;
    response::write(&question, &answer, app.headers)
}
