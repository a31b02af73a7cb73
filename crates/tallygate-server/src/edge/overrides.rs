//! `/v1/overrides` of the admin listener: which callers have another limit for now, who decided so and why; and what a change would do.

mod preview;
mod request;

use std::sync::Arc;

use axum::Extension;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::Response;
use http::HeaderMap;
use serde_json::{Map, Value, json};
use tallygate::clock::Timestamp;
use tallygate::live::{ChangeError, Override, OverrideError, OverrideSet, Overrides as _, Target, change};
use tallygate_http::{Problem, ProblemCode};

use super::access::Operator;
use super::json::{invalid, require_json, sentence};
use super::{Refused, ok, store_problem};
use crate::app::App;
pub(crate) use preview::preview;
use request::Asked;

type Answered = Result<Response, Refused>;

/// What there is, as the store has it, not as this instance knows it.
pub(crate) async fn list(State(app): State<Arc<App>>) -> Answered {
    let (set, now) = read(&app).await?;
    let listed: Vec<Value> = set.listed(now).into_iter().map(|one| described(one, now)).collect();
    Ok(ok(&json!({"revision": set.revision(), "overrides": listed})))
}

pub(crate) async fn set(
    State(app): State<Arc<App>>,
    Extension(Operator(operator)): Extension<Operator>,
    headers: HeaderMap,
    body: Bytes,
) -> Answered {
    require_json(&headers)?;
    let Asked { new, lasts, revision } = request::set(&body, &app.policies.load().files, &operator)?;
    let (target, put) = (&new.target, new.clone());
    let put = move |set: &mut OverrideSet, now| set.put(put.clone(), lasts, now);
    let changed = finish(&app, operator, "set", (target.clone(), Some(new.clone())), revision, put).await?;
    let now = read(&app).await.map_or(Timestamp::from_micros(0), |(_, now)| now);
    let one = changed.overrides().iter().rev().find(|one| one.target == *target);
    Ok(answer(&changed, one.map(|one| described(one, now))))
}

pub(crate) async fn remove(
    State(app): State<Arc<App>>,
    Extension(Operator(operator)): Extension<Operator>,
    headers: HeaderMap,
    body: Bytes,
) -> Answered {
    require_json(&headers)?;
    let (target, revision) = request::remove(&body)?;
    let removed = target.clone();
    let remove = move |set: &mut OverrideSet, now| set.remove(&removed, now);
    let changed = finish(&app, operator, "removed", (target, None), revision, remove).await?;
    Ok(answer(&changed, None))
}

/// Changes the overrides and says so in the log, even if the operator does not wait for the answer.
async fn finish(
    app: &Arc<App>,
    operator: String,
    what: &'static str,
    (target, new): (Target, Option<Override>),
    revision: Option<u64>,
    by: impl FnMut(&mut OverrideSet, Timestamp) -> Result<(), OverrideError> + Send + 'static,
) -> Result<OverrideSet, Refused> {
    let app = Arc::clone(app);
    let changed = tokio::spawn(async move {
        let place = app.overrides().await.map_err(ChangeError::from)?;
        let changed = change(&place, revision, by).await?;
        log(&operator, what, &target, &changed, new.as_ref());
        Ok(changed)
    });
    match changed.await {
        Ok(changed) => changed.map_err(|error: ChangeError| problem(error).into()),
        Err(_) => {
            Err(Problem::new(ProblemCode::Internal, "The change did not end: list the overrides.".to_owned()).into())
        }
    }
}

/// Who changed what is in the log, whatever the override says about its author. No value of an entry: it may be a person's name.
fn log(operator: &str, what: &str, target: &Target, set: &OverrideSet, new: Option<&Override>) {
    let keys: Vec<&str> = target.entries.iter().map(|(key, _)| key.as_str()).collect();
    let limit = new.map(written);
    let (author, reason) = (new.map(|new| new.author.as_str()), new.map(|new| new.reason.as_str()));
    tracing::info!(
        token = operator,
        domain = target.domain,
        policy = target.policy,
        by = keys.join(","),
        limit,
        author,
        reason,
        revision = set.revision(),
        "an override was {what}"
    );
}

fn answer(changed: &OverrideSet, one: Option<Value>) -> Response {
    let notice = u64::try_from(OverrideSet::NOTICE.as_millis()).unwrap_or(u64::MAX);
    let mut answer = json!({"revision": changed.revision(), "effective_after_ms": notice});
    if let Some(one) = one {
        answer["override"] = one;
    }
    ok(&answer)
}

/// The set and the instant, as of the store.
async fn read(app: &App) -> Result<(OverrideSet, Timestamp), Problem> {
    let place = app.overrides().await.map_err(|error| store_problem(&error))?;
    let reading = place.read_overrides(None).await.map_err(|error| store_problem(&error))?;
    let set = OverrideSet::of_reading(&reading).map_err(|error| problem(error.into()))?;
    Ok((set, reading.now))
}

/// The limit, or that there is none.
fn written(one: &Override) -> String {
    one.limit.as_ref().map_or_else(|| request::UNLIMITED.to_owned(), ToString::to_string)
}

fn described(one: &Override, now: Timestamp) -> Value {
    let millis = |at: Timestamp| at.as_micros() / 1_000;
    let entries = one.target.entries.iter().map(|(key, value)| (key.clone(), Value::from(value.as_str())));
    json!({
        "domain": one.target.domain,
        "policy": one.target.policy,
        "match": entries.collect::<Map<String, Value>>(),
        "limit": written(one),
        "reason": one.reason,
        "author": one.author,
        "set_at_ms": millis(one.set_at),
        "begins_at_ms": millis(one.begins_at),
        "expires_at_ms": one.expires_at.map(millis),
        "in_force": one.is_in_force(now),
    })
}

fn problem(error: ChangeError) -> Problem {
    let detail = sentence(&error.to_string());
    let code = match &error {
        ChangeError::Store(error) => return store_problem(error),
        ChangeError::Invalid(OverrideError::UnknownPolicy { .. }) => ProblemCode::UnknownPolicy,
        ChangeError::Invalid(OverrideError::NotFound(_)) => ProblemCode::UnknownOverride,
        ChangeError::Invalid(OverrideError::TooMany(..) | OverrideError::TooManyShapes(_)) => {
            ProblemCode::TooManyOverrides
        }
        ChangeError::Invalid(error) => return invalid(error),
        ChangeError::Conflict { .. } | ChangeError::Contended(_) => ProblemCode::OverridesConflict,
        _ => ProblemCode::StoreUnavailable,
    };
    Problem::new(code, detail)
}
