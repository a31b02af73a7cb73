//! What has become of a hold.

use axum::response::Response;
use serde::Serialize;
use tallygate::StoreError;
use tallygate::hold::Resolved;
use tallygate_http::{HoldAnswer, Problem};

use super::Answered;
use super::request::Ask;
use crate::edge::json::{ok, problem_json};
use crate::edge::store_problem;
use crate::loaded::Loaded;

/// What has become of one hold: after the members of the problem, if it was not resolved as asked.
#[derive(Serialize)]
struct Body<'a> {
    #[serde(flatten)]
    problem: Option<&'a Problem>,
    #[serde(flatten)]
    answer: Option<&'a HoldAnswer<'a>>,
    /// The token of a renewed hold.
    #[serde(skip_serializing_if = "Option::is_none")]
    hold: Option<String>,
}

fn answer_of<'a>(ask: &'a Ask, loaded: &'a Loaded, resolved: &Resolved) -> HoldAnswer<'a> {
    HoldAnswer::new(ask.hold.places().map(|(key, _)| loaded.name_of(key.policy())), resolved)
}

/// The token from now on, if the hold was renewed.
fn renewed(ask: &Ask, resolved: &Resolved) -> Option<String> {
    let next = ask.resolve.next().filter(|_| resolved.done)?;
    Some(ask.hold.clone().at_turn(next).to_string())
}

/// What has become of the hold.
pub(super) fn write(ask: &Ask, loaded: &Loaded, resolved: &Resolved) -> Answered {
    let answer = answer_of(ask, loaded, resolved);
    let problem = answer.problem(resolved);
    let body = Body { problem: problem.as_ref(), answer: Some(&answer), hold: renewed(ask, resolved) };
    Ok(match &problem {
        None => ok(&body),
        Some(problem) => problem_json(problem.status(), &body),
    })
}

/// What has become of each hold, in order. That some were not renewed is no error of the call.
pub(super) fn write_each(renewals: &[(Ask, Result<Resolved, StoreError>)], loaded: &Loaded) -> Response {
    #[derive(Serialize)]
    struct Each<'a> {
        holds: Vec<Body<'a>>,
    }
    type Ended<'a> = (Option<HoldAnswer<'a>>, Option<Problem>, Option<String>);
    let mut ended: Vec<Ended<'_>> = Vec::with_capacity(renewals.len());
    for (ask, resolved) in renewals {
        ended.push(match resolved {
            Ok(resolved) => {
                let answer = answer_of(ask, loaded, resolved);
                let problem = answer.problem(resolved);
                (Some(answer), problem, renewed(ask, resolved))
            }
            Err(error) => (None, Some(store_problem(error)), None),
        });
    }
    let holds = ended.iter().map(|(answer, problem, hold)| Body {
        problem: problem.as_ref(),
        answer: answer.as_ref(),
        hold: hold.clone(),
    });
    ok(&Each { holds: holds.collect() })
}
