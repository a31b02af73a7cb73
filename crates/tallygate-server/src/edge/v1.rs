//! `/v1/check`, `/v1/peek`, `/v1/refund`, `/v1/reset`, `/v1/reserve`.

pub(super) mod request;
pub(super) mod reservation;
mod response;

use std::sync::Arc;

use axum::body::Bytes;
use axum::response::Response;
use http::HeaderMap;
use tallygate::call::Verb;
use tallygate::hold::Holds;
use tallygate_http::{Problem, ProblemCode};
use tokio::sync::oneshot;

use super::Refused;
use super::access::Credentials;
use super::json::require_json;
use crate::app::App;
use crate::decision_event::Api;
use crate::question::Question;
use crate::token::Scope;

/// Answers a question. What gives units back needs more than a check.
pub(super) async fn answer(
    verb: Verb,
    app: &Arc<App>,
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
    if verb == Verb::Reserve {
        return reserve(Arc::clone(app), question).await;
    }
    let answer = app.answer(Api::Http, &question, None).await?;
    response::write(&question, &answer, app.headers)
}

/// A caller that leaves before it has its answer leaves no hold behind: nobody else knows it. With a request id the caller can ask again,
/// and has the same hold.
async fn reserve(app: Arc<App>, question: Question) -> Result<Response, Refused> {
    let (sender, answered) = oneshot::channel();
    tokio::spawn(async move {
        let (response, hold) = match app.answer(Api::Http, &question, None).await {
            Ok(answer) => (response::write(&question, &answer, app.headers), answer.hold()),
            Err(error) => (Err(error.into()), None),
        };
        if sender.send(response).is_err()
            && question.request_id.is_none()
            && let Some(hold) = hold
        {
            app.stores.shared().cancel_soon(hold);
        }
    });
    let stopping = || Problem::new(ProblemCode::Overloaded, "The server is stopping: ask another one.");
    answered.await.unwrap_or_else(|_| Err(stopping().into()))
}
