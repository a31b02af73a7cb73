//! The answers of `/v1`.

use axum::response::Response;
use http::StatusCode;
use serde_json::{Value, json};
use tallygate::{Decision, Effect, Mode, Outcome, Ruling, Source, Verb, Verdict};
use tallygate_http::{Dialect, Headers, Line, Problem, decision_json, verdict_headers, verdict_json, verdict_problem};

use crate::answer::Answer;
use crate::edge::json::{json_response, ok, problem_json};
use crate::edge::{Refused, store_problem};
use crate::question::AdHoc;

pub(super) fn write(verb: Verb, answer: &Answer<'_>, dialect: Dialect) -> Result<Response, Refused> {
    let gives_back = verb.effect() == Effect::GivesBack;
    match answer {
        Answer::Verdict(verdict) if gives_back => match verdict.store_error() {
            Some(error) => Err(store_problem(error).into()),
            None => {
                let units = verdict.states().map(|ruling| (ruling.policy().name(), ruling.status().units()));
                Ok(given_back(verb, units))
            }
        },
        Answer::Verdict(verdict) => verdict_response(verdict, dialect),
        Answer::Decision(asked, decision) if gives_back => {
            Ok(given_back(verb, [(asked.policy.as_str(), decision.binding().units())]))
        }
        Answer::Decision(asked, decision) => Ok(decision_response(asked, decision, dialect)),
    }
}

/// 200, 429, or 503 if the store could not answer and a policy denies then.
fn verdict_response(verdict: &Verdict, dialect: Dialect) -> Result<Response, Refused> {
    let too_costly = |ruling: &&Ruling| ruling.mode() == Mode::Enforce && ruling.source() == Source::TooCostly;
    if let Some(ruling) = verdict.rulings().iter().find(too_costly) {
        return Err(too_costly_problem(ruling).into());
    }
    let problem = (verdict.outcome() != Outcome::Allowed).then(|| verdict_problem(verdict));
    let mut response = decided(problem, verdict_json(verdict));
    verdict_headers(verdict, dialect, response.headers_mut());
    Ok(response)
}

fn decision_response(asked: &AdHoc, decision: &Decision, dialect: Dialect) -> Response {
    let (policy, status, allowed) = (asked.policy.as_str(), decision.binding(), decision.allowed());
    let problem = (!allowed).then(|| Problem::quota_exceeded(&[policy], status.retry_after()));
    let mut response = decided(problem, decision_json(&[policy], decision));
    let lines = [Line { policy, limit: &asked.limit, status }];
    let headers = Headers { dialect, lines: &lines, binding: Some(0), allowed, unix_now: dialect.unix_now() };
    headers.apply(response.headers_mut());
    response
}

/// The object of a decision, after the members of the problem if it was refused.
fn decided(problem: Option<Problem>, decision: Value) -> Response {
    let Some(problem) = problem else { return json_response(StatusCode::OK, &decision) };
    let mut body = problem.to_json();
    if let (Some(body), Value::Object(decision)) = (body.as_object_mut(), decision) {
        body.extend(decision);
    }
    problem_json(problem.status(), &body)
}

fn too_costly_problem(ruling: &Ruling) -> Problem {
    let (policy, capacity) = (ruling.policy().name().escape_debug(), ruling.status().limit());
    Problem::bad_request(format!(
        "A cost of {} can never pass `{policy}`, which holds at most {capacity}: lower the cost or raise the limit.",
        ruling.action().cost
    ))
}

/// What a refund gave back, policy by policy, or how many states a reset dropped.
fn given_back<'p>(verb: Verb, policies: impl IntoIterator<Item = (&'p str, u64)>) -> Response {
    let mut total = 0;
    let policies = policies.into_iter().map(|(policy, units)| {
        total += units;
        json!({"policy": policy, "refunded": units})
    });
    let policies: Vec<Value> = policies.collect();
    match verb {
        Verb::Reset => ok(&json!({ "forgotten": total })),
        _ => ok(&json!({"refunded": total, "policies": policies})),
    }
}
