//! `POST /v1/overrides/preview`: what an override would do to callers as they are now. Nothing is charged, and nothing is written.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;
use http::HeaderMap;
use serde_json::{Map, Value, json};
use tallygate::Cost;
use tallygate::call::Verb;
use tallygate::live::Override;
use tallygate::policy::{Action, Ask, Descriptor, PolicySet, Ruling, Verdict};
use tallygate_http::{Part, Problem};
use tokio::time::Instant;

use super::{Answered, read, request};
use crate::app::App;
use crate::edge::json::require_json;
use crate::edge::{ok, store_problem};

pub(crate) async fn preview(State(app): State<Arc<App>>, headers: HeaderMap, body: Bytes) -> Answered {
    require_json(&headers)?;
    let files = Arc::clone(&app.policies.load().files);
    let (new, callers) = request::preview(&body, &files)?;
    let (set, now) = read(&app).await?;
    let present = files.with_overrides(&set, now);
    let proposed = files.with_overrides(&set.clone().with_preview(new.clone()), now);
    let (mut seen, mut denied) = (Vec::with_capacity(callers.len()), [0_u64; 2]);
    for caller in &callers {
        let mut one = json!({"caller": entries(caller)});
        for (place, (name, policies)) in [("present", &present), ("proposed", &proposed)].into_iter().enumerate() {
            let verdict = looked(&app, policies, &new, caller).await?;
            let of_policy = verdict.rulings().iter().find(|ruling| ruling.policy().name() == new.target.policy);
            denied[place] += u64::from(of_policy.is_some_and(|ruling| !ruling.status().allowed()));
            one[name] = of_policy.map_or(Value::Null, described);
        }
        seen.push(one);
    }
    let [before, after] = denied;
    Ok(ok(&json!({"revision": set.revision(), "callers": seen, "denied": {"present": before, "proposed": after}})))
}

/// A peek of one unit.
async fn looked(app: &App, policies: &PolicySet, new: &Override, caller: &Descriptor) -> Result<Verdict, Problem> {
    let ask = Ask::new(caller.clone(), Action::new(Verb::Peek, Cost::ONE));
    let domain = policies.domain(&new.target.domain).expect("the override was checked against these policies");
    let deadline = app.store().deadline().map(|patience| (Instant::now() + patience).into_std());
    let verdict = domain.evaluate(&[ask]).decide(&app.stores, deadline).await;
    // What `on_error` would answer is not what was asked.
    match verdict.store_error() {
        Some(error) => Err(store_problem(error)),
        None => Ok(verdict),
    }
}

fn entries(caller: &Descriptor) -> Map<String, Value> {
    caller.entries().iter().map(|(key, value)| (key.clone(), Value::from(value.as_str()))).collect()
}

/// The limit, and the status as in a decision.
fn described(ruling: &Ruling) -> Value {
    let limit = ruling.limit().map_or_else(|| request::UNLIMITED.to_owned(), ToString::to_string);
    let status = Part::new(ruling.policy().name(), ruling.status(), ruling.source(), false);
    json!({"limit": limit, "status": serde_json::to_value(status).unwrap_or_default()})
}
