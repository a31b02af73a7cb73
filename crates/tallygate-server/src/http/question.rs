//! `/v1/check`, `/v1/peek`, `/v1/refund`, `/v1/reset`.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;
use axum::response::Response;
use http::{HeaderMap, StatusCode};
use serde_json::json;
use tallygate::{CheckError, Decision, Ruling, Verdict};
use tallygate_http::Problem;
use tokio::time::Instant;

use super::answer::{decision_response, ok, problem_response, verdict_response};
use super::body::{AdHoc, Policies, Question};
use super::{authorize, check_problem, require_json, store_problem};
use crate::app::App;
use crate::metrics::{Api, CallOutcome};

/// Charges if it fits.
pub(super) async fn check(State(app): State<Arc<App>>, headers: HeaderMap, body: Bytes) -> Response {
    match read(&app, &headers, &body) {
        Ok(Question::AdHoc(asked)) => {
            let began = Instant::now();
            let decided = app.limiter.check(asked.check()).await;
            decided_response(&app, &asked, began, decided)
        }
        Ok(Question::Policies(asked)) => {
            let verdict = verdict(&app, asked, Policies::take).await;
            verdict.map_or_else(|problem| problem_response(&problem), |verdict| verdict_response(&verdict, app.dialect))
        }
        Err(problem) => problem_response(&problem),
    }
}

/// Answers as `check` would, and charges nothing.
pub(super) async fn peek(State(app): State<Arc<App>>, headers: HeaderMap, body: Bytes) -> Response {
    match read(&app, &headers, &body) {
        Ok(Question::AdHoc(asked)) => {
            let began = Instant::now();
            let decided = app.limiter.peek(&[asked.check()]).await;
            decided_response(&app, &asked, began, decided)
        }
        Ok(Question::Policies(asked)) => {
            let verdict = verdict(&app, asked, Policies::look).await;
            verdict.map_or_else(|problem| problem_response(&problem), |verdict| verdict_response(&verdict, app.dialect))
        }
        Err(problem) => problem_response(&problem),
    }
}

/// Gives back what was charged.
pub(super) async fn refund(State(app): State<Arc<App>>, headers: HeaderMap, body: Bytes) -> Response {
    let given = match read(&app, &headers, &body) {
        Ok(Question::AdHoc(asked)) => match app.limiter.refund(asked.check(), asked.charged_at()).await {
            Ok(units) => Ok(vec![(asked.policy().to_owned(), units)]),
            Err(error) => Err(check_problem(&error)),
        },
        Ok(Question::Policies(asked)) => match verdict(&app, asked, Policies::give_back).await {
            Ok(verdict) => match verdict.store_error() {
                Some(error) => Err(store_problem(error)),
                None => Ok(given_back(verdict.rulings())),
            },
            Err(problem) => Err(problem),
        },
        Err(problem) => Err(problem),
    };
    match given {
        Ok(policies) => {
            let total: u64 = policies.iter().map(|(_, units)| units).sum();
            let policies: Vec<_> =
                policies.iter().map(|(policy, units)| json!({"policy": policy, "refunded": units})).collect();
            ok(&json!({"refunded": total, "policies": policies}))
        }
        Err(problem) => problem_response(&problem),
    }
}

/// Forgets states: for operators only.
pub(super) async fn reset(State(app): State<Arc<App>>, headers: HeaderMap, body: Bytes) -> Response {
    if let Err(refused) = authorize(&app, &headers) {
        return *refused;
    }
    let forgotten = match read(&app, &headers, &body) {
        Ok(Question::AdHoc(asked)) => app.limiter.reset(asked.check()).await.map(u64::from),
        Ok(Question::Policies(asked)) => {
            let loaded = app.policies.load_full();
            if let Err(problem) = known_domain(&loaded.set, &asked.domain) {
                return problem_response(&problem);
            }
            let domain = asked.domain.clone();
            loaded.set.reset(app.store(), &domain, &asked.look()).await.map_err(CheckError::from)
        }
        Err(problem) => return problem_response(&problem),
    };
    match forgotten {
        Ok(states) => ok(&json!({ "forgotten": states })),
        Err(error) => problem_response(&check_problem(&error)),
    }
}

fn read(app: &App, headers: &HeaderMap, body: &[u8]) -> Result<Question, Problem> {
    let question = require_json(headers).and_then(|()| Question::read(body));
    question.inspect_err(|_| app.calls.count_invalid(Api::Http))
}

async fn verdict(
    app: &App,
    asked: Policies,
    asks: impl FnOnce(Policies) -> Vec<tallygate::Ask>,
) -> Result<Verdict, Problem> {
    let domain = asked.domain.clone();
    if let Err(problem) = known_domain(&app.policies.load().set, &domain) {
        app.calls.count_invalid(Api::Http);
        return Err(problem);
    }
    let decided = app.decide(Api::Http, &domain, &asks(asked), None).await;
    decided.map_err(|invalid| Problem::bad_request(invalid.to_string()))
}

/// A mistyped domain must not mean that there is no limit.
pub(super) fn known_domain(set: &tallygate::PolicySet, domain: &str) -> Result<(), Problem> {
    if set.domain(domain).is_some() {
        return Ok(());
    }
    let known: Vec<&str> = set.domains().iter().map(tallygate::Domain::name).collect();
    let written = domain.escape_debug();
    let detail = match tallygate::nearest(domain, &known) {
        Some(near) => format!("There is no domain `{written}`: did you mean `{near}`?"),
        None => format!("There is no domain `{written}`: it must be one of your policy files."),
    };
    Err(Problem::of_status(StatusCode::NOT_FOUND, detail))
}

/// A question that brings its limit along has no policy that says what to do without a store: that is for the caller.
fn decided_response(app: &App, asked: &AdHoc, began: Instant, decided: Result<Decision, CheckError>) -> Response {
    let outcome = match &decided {
        Ok(decision) if decision.allowed() => CallOutcome::Allowed,
        Ok(_) => CallOutcome::Denied,
        Err(CheckError::Invalid(_)) => CallOutcome::Invalid,
        Err(_) => CallOutcome::Unavailable,
    };
    app.calls.count(Api::Http, outcome, began.elapsed());
    match decided {
        Ok(decision) => decision_response(asked.policy(), asked.limit(), &decision, app.dialect),
        Err(error) => problem_response(&check_problem(&error)),
    }
}

/// What each policy got back; one that met several descriptors counts once.
fn given_back(rulings: &[Ruling]) -> Vec<(String, u64)> {
    let mut given: Vec<(&Ruling, u64)> = Vec::new();
    for ruling in rulings {
        let same = |(other, _): &(&Ruling, u64)| other.place() == ruling.place() && other.subject() == ruling.subject();
        if !given.iter().any(same) {
            given.push((ruling, ruling.given_back()));
        }
    }
    given.into_iter().map(|(ruling, units)| (ruling.policy().name().to_owned(), units)).collect()
}
