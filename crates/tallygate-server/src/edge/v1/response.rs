//! The answers of `/v1`.

use axum::response::Response;
use http::StatusCode;
use serde::Serialize;
use serde_json::json;
use tallygate::Decision;
use tallygate::call::{Effect, InvalidCheck, UpTo, Verb};
use tallygate::decision::Source;
use tallygate::hold::Hold;
use tallygate::policy::{Mode, Outcome, Ruling, Verdict};
use tallygate_http::{
    Headers, Line, Payers, Problem, ProblemCode, decision_answer, millis_up, verdict_answer, verdict_problem,
};

use crate::answer::Answer;
use crate::app::ReportedHeaders;
use crate::edge::json::{json_response, ok, problem_json, sentence};
use crate::edge::{Refused, store_problem};
use crate::question::{AdHoc, Question};

pub(super) fn write(question: &Question, answer: &Answer<'_>, headers: ReportedHeaders) -> Result<Response, Refused> {
    let verb = question.verb;
    let gives_back = verb.effect() == Effect::GivesBack;
    match answer {
        Answer::Verdict(verdict) if gives_back => match verdict.store_error() {
            Some(error) => Err(store_problem(error).into()),
            None => {
                let policies = verdict
                    .states()
                    .map(|ruling| GivenBack::new(ruling.policy().name(), ruling.status().units(), Payers::of(ruling)));
                Ok(given_back(verb, policies.collect()))
            }
        },
        Answer::Verdict(verdict) => verdict_response(question, verdict, headers),
        Answer::Decision(asked, decision, _) if gives_back => {
            Ok(given_back(verb, vec![GivenBack::new(&asked.policy, decision.binding().units(), None)]))
        }
        Answer::Decision(asked, decision, hold) => Ok(decision_response(
            asked,
            decision,
            hold.as_ref().map(|hold| held(question, hold)),
            question.up_to,
            headers,
        )),
    }
}

/// 200, 429, or 503 if the store could not answer and a policy fails closed.
fn verdict_response(question: &Question, verdict: &Verdict, headers: ReportedHeaders) -> Result<Response, Refused> {
    let too_costly = |ruling: &&Ruling| ruling.mode() == Mode::Enforce && ruling.source() == Source::TooCostly;
    if let Some(ruling) = verdict.rulings().iter().find(too_costly) {
        return Err(too_costly_problem(ruling, verdict.granted().is_some()).into());
    }
    let only_reserved = |ruling: &&Ruling| ruling.mode() == Mode::Enforce && ruling.source() == Source::OnlyReserved;
    if let Some(ruling) = verdict.rulings().iter().find(only_reserved) {
        let (policy, verb) = (ruling.policy().name().escape_debug().to_string(), Verb::Check);
        let problem = InvalidCheck::OnlyReserved { policy, verb }.to_string();
        return Err(Problem::new(
            ProblemCode::OnlyReserved,
            format!("{}: see /v1/reserve.", sentence(&problem).trim_end_matches('.')),
        )
        .into());
    }
    if let Some(problem) = verdict.rulings().iter().filter(|_| verdict.hold().is_none()).find_map(too_much_held) {
        return Err(problem.into());
    }
    let problem = (verdict.outcome() != Outcome::Allowed).then(|| verdict_problem(verdict));
    let hold = verdict.hold().map(|hold| held(question, &hold));
    let mut response = decided(problem, verdict_answer(verdict), hold);
    headers.apply(verdict, response.headers_mut());
    Ok(response)
}

fn decision_response(
    asked: &AdHoc,
    decision: &Decision,
    hold: Option<Held>,
    up_to: Option<UpTo>,
    reported: ReportedHeaders,
) -> Response {
    let dialect = reported.dialect;
    let (policy, status, allowed) = (asked.policy.as_str(), decision.binding(), decision.allowed());
    let problem = (!allowed).then(|| match status.retry_after() {
        wait if status.holds_full() => Problem::holds_full(policy, wait),
        Some(wait) if status.remaining() > 0 => {
            let cost = up_to.map_or(asked.cost, UpTo::least);
            Problem::cost_exceeds_remaining(cost.get(), &[(policy, status.remaining())], wait)
        }
        wait => Problem::quota_exceeded(&[policy], wait),
    });
    let mut response = decided(problem, decision_answer(&[policy], decision), hold);
    let lines = [Line { policy, limit: &asked.limit, status: &status }];
    let headers = Headers { dialect, lines: &lines, binding: Some(0), allowed, unix_now: dialect.unix_now() };
    headers.apply(response.headers_mut());
    reported.apply_source(decision.source().name(), response.headers_mut());
    response
}

/// What an allowed reservation answers beside its decision.
#[derive(Serialize)]
struct Held {
    hold: String,
    expires_after_ms: u64,
}

fn held(question: &Question, hold: &Hold) -> Held {
    Held { hold: hold.to_string(), expires_after_ms: millis_up(question.ttl()) }
}

/// The object of a decision, after the members of the problem if it was refused, before those of the hold if it reserved.
fn decided(problem: Option<Problem>, decision: tallygate_http::Answer<'_>, hold: Option<Held>) -> Response {
    #[derive(Serialize)]
    struct Reservation<'a> {
        #[serde(flatten)]
        decision: tallygate_http::Answer<'a>,
        #[serde(flatten)]
        hold: Held,
    }
    #[derive(Serialize)]
    struct Denial<'a> {
        #[serde(flatten)]
        problem: &'a Problem,
        #[serde(flatten)]
        decision: tallygate_http::Answer<'a>,
    }
    match (&problem, hold) {
        (None, None) => json_response(StatusCode::OK, &decision),
        (None, Some(hold)) => json_response(StatusCode::OK, &Reservation { decision, hold }),
        (Some(problem), _) => problem_json(problem.status(), &Denial { problem, decision }),
    }
}

/// The problem of a reservation of more than may ever be held of a limit.
fn too_much_held(ruling: &Ruling) -> Option<Problem> {
    let reserves = ruling.action().verb == Verb::Reserve && ruling.mode() == Mode::Enforce;
    let terms = ruling.policy().holds().filter(|_| reserves)?;
    let (units, most) = (ruling.action().cost.get(), terms.most_units(ruling.limit()?.capacity()));
    let policy = ruling.policy().name().to_owned();
    let problem = || InvalidCheck::HoldAboveMost { policy, units, most }.to_string();
    (units > most).then(|| Problem::new(ProblemCode::CostTooLarge, sentence(&problem())))
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

/// What a call gave back to a policy.
#[derive(Serialize)]
struct GivenBack<'a> {
    policy: &'a str,
    /// Units; or states, by a reset.
    refunded: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    payers: Option<Payers<'a>>,
}

impl<'a> GivenBack<'a> {
    fn new(policy: &'a str, refunded: u64, payers: Option<Payers<'a>>) -> Self {
        Self { policy, refunded, payers }
    }
}

/// How many states a reset dropped; or how many units of the call a refund gave back, which is the most of any policy, and
/// what it gave back to each policy.
fn given_back(verb: Verb, policies: Vec<GivenBack<'_>>) -> Response {
    if verb == Verb::Reset {
        let states: u64 = policies.iter().map(|policy| policy.refunded).sum();
        return ok(&json!({ "forgotten": states }));
    }
    #[derive(Serialize)]
    struct Refunded<'a> {
        refunded: u64,
        policies: Vec<GivenBack<'a>>,
    }
    let refunded = policies.iter().map(|policy| policy.refunded).max().unwrap_or(0);
    json_response(StatusCode::OK, &Refunded { refunded, policies })
}
