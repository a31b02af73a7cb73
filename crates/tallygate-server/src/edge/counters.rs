//! `/v1/counters/{name}`: atomic counters.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::response::Response;
use http::HeaderMap;
use serde_json::{Value, json};
use tallygate::StoreError;
use tallygate::counter::{CounterError, CounterName, CounterOp, CounterValue, Counters};
use tallygate::store::StoreErrorKind;
use tallygate_http::{Problem, ProblemCode};
use tallygate_redis::AnyStore;

use super::access::Credentials;
use super::json::{Fields, invalid, ok, require_json, sentence};
use super::{Refused, store_problem};
use crate::app::App;
use crate::token::Scope;

/// The longest TTL of the library's counters. Beyond it, stores differ.
const LONGEST_LIFE_MS: u64 = 100 * 365 * 86_400_000;

/// The name in the path.
type Named = Result<Path<String>, PathRejection>;

/// How much to add, and the TTL of a counter that this creates.
fn addition(body: &[u8]) -> Result<CounterOp, Problem> {
    let mut fields = Fields::read(body, "{\"by\":5,\"ttl_ms\":60000}")?;
    fields.only(&["by", "by_float", "ttl_ms"])?;
    let ttl = match fields.whole("ttl_ms")? {
        Some(0) => return Err(invalid("`ttl_ms` cannot be 0: leave it out for a counter that stays.")),
        Some(ttl) if ttl > LONGEST_LIFE_MS => {
            return Err(invalid(format!(
                "`ttl_ms` is at most {LONGEST_LIFE_MS}, which is 100 years: leave it out for a counter that stays."
            )));
        }
        ttl => ttl.map(Duration::from_millis),
    };
    match (fields.whole("by")?, fields.float("by_float")?) {
        (Some(_), Some(_)) => Err(invalid("`by` and `by_float` exclude each other: leave one out.")),
        (None, Some(delta)) => Ok(CounterOp::AddFloat { delta, ttl }),
        (by, None) => Ok(CounterOp::Add { delta: by.unwrap_or(1), ttl }),
    }
}

/// The current value.
pub(super) async fn get(State(app): State<Arc<App>>, name: Named, from: Credentials) -> Result<Response, Refused> {
    app.access.check(&from)?;
    counted(&app, name, CounterOp::Get).await
}

/// Adds; one by default.
pub(super) async fn add(
    State(app): State<Arc<App>>,
    name: Named,
    from: Credentials,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, Refused> {
    app.access.check(&from)?;
    let op = match body.is_empty() {
        true => CounterOp::Add { delta: 1, ttl: None },
        false => require_json(&headers).and_then(|()| addition(&body))?,
    };
    counted(&app, name, op).await
}

/// Deletes it: for operators only.
pub(super) async fn delete(State(app): State<Arc<App>>, name: Named, from: Credentials) -> Result<Response, Refused> {
    let token = app.access.authorize(&from, Scope::Operate)?;
    tracing::info!(token, "deletion of a counter requested");
    counted(&app, name, CounterOp::Delete).await
}

async fn counted(app: &App, name: Named, op: CounterOp) -> Result<Response, Refused> {
    let invalid = |reason: &str| Problem::new(ProblemCode::InvalidParameter, sentence(reason));
    let name = name.map_err(|_| invalid("The name of a counter must be percent-encoded UTF-8."))?;
    let name = CounterName::new(name.0).map_err(|error| invalid(&error.to_string()))?;
    match app.store().count(&name, op).await {
        Ok(value) => Ok(ok(&json!({"name": name.as_str(), "value": number(value)}))),
        Err(CounterError::Store(error)) if is_full(app, &error) => {
            app.full.warn();
            let detail =
                "The embedded store is full, and nothing was added: let counters expire (`ttl_ms`), or delete some.";
            Err(Problem::new(ProblemCode::StoreFull, detail).into())
        }
        Err(CounterError::Store(error)) => Err(store_problem(&error).into()),
        Err(error) => Err(Problem::new(ProblemCode::CounterConflict, sentence(&error.to_string())).into()),
    }
}

/// The embedded store refuses nothing else.
fn is_full(app: &App, error: &StoreError) -> bool {
    error.kind() == StoreErrorKind::Refused && app.store().place() == AnyStore::MEMORY
}

fn number(value: CounterValue) -> Value {
    match value {
        CounterValue::Integer(value) => value.into(),
        CounterValue::Float(value) => value.into(),
    }
}
