//! What has become of a hold.

use serde::Serialize;
use tallygate::hold::Resolved;
use tallygate_http::{HoldAnswer, Problem};

use super::Answered;
use super::request::Ask;
use crate::edge::json::{ok, problem_json};
use crate::loaded::Loaded;

/// What has become of the hold, after the members of the problem if it was not resolved as asked.
pub(super) fn write(ask: &Ask, loaded: &Loaded, resolved: &Resolved) -> Answered {
    #[derive(Serialize)]
    struct Refusal<'a> {
        #[serde(flatten)]
        problem: &'a Problem,
        #[serde(flatten)]
        answer: &'a HoldAnswer<'a>,
    }
    let answer = HoldAnswer::new(ask.hold.places().map(|(key, _)| loaded.name_of(key.policy())), resolved);
    Ok(match answer.problem(resolved) {
        None => ok(&answer),
        Some(problem) => problem_json(problem.status(), &Refusal { problem: &problem, answer: &answer }),
    })
}
