//! The answers of `/v1`.

use axum::response::Response;
use http::StatusCode;
use serde::Serialize;
use serde_json::{Value, json};
use tallygate::Decision;
use tallygate::call::{Effect, UpTo, Verb};
use tallygate::decision::Source;
use tallygate::policy::{Mode, Outcome, Ruling, Verdict};
use tallygate_http::{Headers, Line, Problem, ProblemCode, decision_answer, verdict_answer, verdict_problem};

use crate::answer::Answer;
use crate::app::ReportedHeaders;
use crate::edge::json::{json_response, ok, problem_json};
use crate::edge::{Refused, store_problem};
use crate::question::{AdHoc, Question};

pub(super) fn write(question: &Question, answer: &Answer<'_>, headers: ReportedHeaders) -> Result<Response, Refused> {
    let verb = question.verb;
    let gives_back = verb.effect() == Effect::GivesBack;
    match answer {
        Answer::Verdict(verdict) if gives_back => match verdict.store_error() {
            Some(error) => Err(store_problem(error).into()),
            None => {
                let units = verdict.states().map(|ruling| (ruling.policy().name(), ruling.status().units()));
                Ok(given_back(verb, units))
            }
        },
        Answer::Verdict(verdict) => verdict_response(verdict, headers),
        Answer::Decision(asked, decision) if gives_back => {
            Ok(given_back(verb, [(asked.policy.as_str(), decision.binding().units())]))
        }
        Answer::Decision(asked, decision) => Ok(decision_response(asked, decision, question.up_to, headers)),
    }
}

/// 200, 429, or 503 if the store could not answer and a policy fails closed.
fn verdict_response(verdict: &Verdict, headers: ReportedHeaders) -> Result<Response, Refused> {
    let too_costly = |ruling: &&Ruling| ruling.mode() == Mode::Enforce && ruling.source() == Source::TooCostly;
    if let Some(ruling) = verdict.rulings().iter().find(too_costly) {
        return Err(too_costly_problem(ruling, verdict.granted().is_some()).into());
    }
    let problem = (verdict.outcome() != Outcome::Allowed).then(|| verdict_problem(verdict));
    let mut response = decided(problem, verdict_answer(verdict));
    headers.apply(verdict, response.headers_mut());
    Ok(response)
}

fn decision_response(asked: &AdHoc, decision: &Decision, up_to: Option<UpTo>, reported: ReportedHeaders) -> Response {
    let dialect = reported.dialect;
    let (policy, status, allowed) = (asked.policy.as_str(), decision.binding(), decision.allowed());
    let problem = (!allowed).then(|| match status.retry_after() {
        Some(wait) if status.remaining() > 0 => {
            let cost = up_to.map_or(asked.cost, UpTo::least);
            Problem::cost_exceeds_remaining(cost.get(), &[(policy, status.remaining())], wait)
        }
        wait => Problem::quota_exceeded(&[policy], wait),
    });
    let mut response = decided(problem, decision_answer(&[policy], decision));
    let lines = [Line { policy, limit: &asked.limit, status }];
    let headers = Headers { dialect, lines: &lines, binding: Some(0), allowed, unix_now: dialect.unix_now() };
    headers.apply(response.headers_mut());
    reported.apply_source(decision.source().name(), response.headers_mut());
    response
}

/// The object of a decision, after the members of the problem if it was refused.
fn decided(problem: Option<Problem>, decision: tallygate_http::Answer<'_>) -> Response {
    #[derive(Serialize)]
    struct Denial<'a> {
        #[serde(flatten)]
        problem: &'a Problem,
        #[serde(flatten)]
        decision: tallygate_http::Answer<'a>,
    }
    match &problem {
        None => json_response(StatusCode::OK, &decision),
        Some(problem) => problem_json(problem.status(), &Denial { problem, decision }),
    }
}

fn too_costly_problem(ruling: &Ruling, up_to: bool) -> Problem {
    let (policy, capacity) = (ruling.policy().name().escape_debug(), ruling.status().limit());
    let cost = ruling.action().cost;
    let (what, remedy) = match up_to {
        true => (format!("At least {cost} units"), "lower `at_least`"),
        false => (format!("A cost of {cost}"), "lower the cost"),
    };
    let detail =
        format!("{what} can never pass `{policy}`, which holds at most {capacity}: {remedy} or raise the limit.");
    Problem::new(ProblemCode::CostTooLarge, detail)
}

/// How many states a reset dropped; or how many units of the call a refund gave back, which is the most of any policy, and
/// what it gave back to each policy.
fn given_back<'p>(verb: Verb, policies: impl IntoIterator<Item = (&'p str, u64)>) -> Response {
    let policies: Vec<(&str, u64)> = policies.into_iter().collect();
    if verb == Verb::Reset {
        let states: u64 = policies.iter().map(|(_, states)| states).sum();
        return ok(&json!({ "forgotten": states }));
    }
    let refunded = policies.iter().map(|(_, units)| *units).max().unwrap_or(0);
    let policies = policies.iter().map(|(policy, units)| json!({"policy": policy, "refunded": units}));
    ok(&json!({"refunded": refunded, "policies": policies.collect::<Vec<Value>>()}))
}
