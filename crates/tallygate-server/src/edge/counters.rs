//! `/v1/counters/{name}`: atomic counters.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::response::Response;
use http::{HeaderMap, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};
use tallygate::{CounterError, CounterName, CounterOp, CounterValue, Counters};
use tallygate_http::Problem;

use super::json::{ok, read_object, require_json, whole};
use super::{Refused, authorize, store_problem};
use crate::app::App;

/// As of the library's own counters: past it, stores differ in what they make of it.
const LONGEST_LIFE_MS: u64 = 100 * 365 * 86_400_000;

/// What stands in the path where the name should.
type Named = Result<Path<String>, PathRejection>;

/// How much to add, and for how long a counter that this creates lives.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Addition {
    #[serde(default, deserialize_with = "whole")]
    by: Option<i64>,
    by_float: Option<f64>,
    #[serde(default, deserialize_with = "whole")]
    ttl_ms: Option<u64>,
}

impl Addition {
    fn op(&self) -> Result<CounterOp, Problem> {
        let ttl = match self.ttl_ms {
            Some(0) => return Err(Problem::bad_request("A counter that lives 0 ms is none: leave `ttl_ms` out.")),
            Some(ttl) if ttl > LONGEST_LIFE_MS => {
                return Err(Problem::bad_request(format!(
                    "`ttl_ms` is at most {LONGEST_LIFE_MS}, which is 100 years: leave it out for a counter that stays."
                )));
            }
            ttl => ttl.map(Duration::from_millis),
        };
        match (self.by, self.by_float) {
            (Some(_), Some(_)) => Err(Problem::bad_request("`by` and `by_float` exclude each other: leave one out.")),
            (None, Some(delta)) => Ok(CounterOp::AddFloat { delta, ttl }),
            (by, None) => Ok(CounterOp::Add { delta: by.unwrap_or(1), ttl }),
        }
    }
}

/// The value now.
pub(super) async fn get(State(app): State<Arc<App>>, name: Named) -> Result<Response, Refused> {
    counted(&app, name, CounterOp::Get).await
}

/// Adds; one, if nothing else is said.
pub(super) async fn add(
    State(app): State<Arc<App>>,
    name: Named,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, Refused> {
    let addition = match body.is_empty() {
        true => Addition::default(),
        false => require_json(&headers).and_then(|()| read_object(&body))?,
    };
    counted(&app, name, addition.op()?).await
}

/// Forgets it: for operators only.
pub(super) async fn delete(State(app): State<Arc<App>>, name: Named, headers: HeaderMap) -> Result<Response, Refused> {
    authorize(&app, &headers)?;
    counted(&app, name, CounterOp::Delete).await
}

async fn counted(app: &App, name: Named, op: CounterOp) -> Result<Response, Refused> {
    let name = name.map_err(|_| Problem::bad_request("The name of a counter is text: UTF-8, percent-encoded."))?;
    let name = CounterName::new(name.0).map_err(|error| Problem::bad_request(error.to_string()))?;
    match app.store().count(&name, op).await {
        Ok(value) => Ok(ok(&json!({"name": name.as_str(), "value": number(value)}))),
        Err(CounterError::Store(error)) => Err(store_problem(&error).into()),
        Err(error) => Err(Problem::of_status(StatusCode::CONFLICT, error.to_string()).into()),
    }
}

fn number(value: CounterValue) -> Value {
    match value {
        CounterValue::Integer(value) => value.into(),
        CounterValue::Float(value) => value.into(),
    }
}
