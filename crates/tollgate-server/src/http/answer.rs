//! Verdicts and problems as responses.

use std::time::{Duration, SystemTime};

use axum::body::Body;
use axum::response::Response;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderValue, StatusCode};
use serde_json::Value;
use tollgate::{Decision, Limit, Mode, Outcome, Ruling, Source, Verdict};
use tollgate_http::{Answer, Dialect, Headers, Line, Part, Problem, decision_json};

/// The content type of everything that is no problem.
const JSON: HeaderValue = HeaderValue::from_static("application/json");
const PROBLEM: HeaderValue = HeaderValue::from_static(Problem::CONTENT_TYPE);

/// A verdict as it is told over HTTP: 200, 429, or 503 if the store could not answer and a policy denies then.
pub(crate) fn verdict_response(verdict: &Verdict, dialect: Dialect) -> Response {
    if let Some(ruling) = too_costly(verdict) {
        return problem_response(&too_costly_problem(ruling));
    }
    let mut response = match verdict.outcome() {
        Outcome::Allowed => json_response(StatusCode::OK, JSON, &verdict_json(verdict)),
        _ => {
            let problem = verdict_problem(verdict);
            let mut body = problem.to_json();
            if let (Some(body), Value::Object(decision)) = (body.as_object_mut(), verdict_json(verdict)) {
                body.extend(decision);
            }
            json_response(problem.status(), PROBLEM, &body)
        }
    };
    verdict_headers(verdict, dialect, response.headers_mut());
    response
}

/// The answer to a question that brought its limit along.
pub(crate) fn decision_response(policy: &str, limit: &Limit, decision: &Decision, dialect: Dialect) -> Response {
    let status = decision.binding();
    let decided = decision_json(&[policy], decision);
    let mut response = match decision.allowed() {
        true => json_response(StatusCode::OK, JSON, &decided),
        false => {
            let problem = Problem::quota_exceeded(&[policy], status.retry_after());
            let mut body = problem.to_json();
            if let (Some(body), Value::Object(decided)) = (body.as_object_mut(), decided) {
                body.extend(decided);
            }
            json_response(problem.status(), PROBLEM, &body)
        }
    };
    let lines = [Line { policy, limit, status }];
    let allowed = decision.allowed();
    let headers = Headers { dialect, lines: &lines, binding: Some(0), allowed, unix_now: unix_now(dialect) };
    headers.apply(response.headers_mut());
    response
}

/// What a refused caller is told.
pub(crate) fn verdict_problem(verdict: &Verdict) -> Problem {
    let refusing: Vec<&Ruling> = verdict.rulings().iter().filter(|ruling| refuses(ruling)).collect();
    let mut violated: Vec<&str> = refusing.iter().map(|ruling| ruling.policy().name()).collect();
    violated.dedup();
    match verdict.outcome() {
        Outcome::Unavailable => Problem::reduced_capacity(&violated, Some(SOON)),
        _ => {
            let wait = verdict.binding().and_then(|ruling| ruling.status().retry_after());
            Problem::quota_exceeded(&violated, wait)
        }
    }
}

/// When to come again if nobody knows.
const SOON: Duration = Duration::from_secs(1);

fn refuses(ruling: &Ruling) -> bool {
    ruling.mode() != Mode::Shadow && !ruling.status().allowed()
}

/// The headers of a verdict. Limits that nobody could look at are left out: their numbers would be made up.
pub(crate) fn verdict_headers(verdict: &Verdict, dialect: Dialect, to: &mut HeaderMap) {
    let known = |ruling: &&Ruling| {
        ruling.mode() != Mode::Shadow && !matches!(ruling.source(), Source::OnErrorAllow | Source::OnErrorDeny)
    };
    let rulings: Vec<&Ruling> = verdict.rulings().iter().filter(known).filter(|one| one.limit().is_some()).collect();
    let lines: Vec<Line<'_>> = rulings
        .iter()
        .filter_map(|ruling| {
            Some(Line { policy: ruling.policy().name(), limit: ruling.limit()?, status: ruling.status() })
        })
        .collect();
    let binding = verdict.binding().and_then(|binding| rulings.iter().position(|one| std::ptr::eq(*one, binding)));
    let allowed = verdict.allowed();
    Headers { dialect, lines: &lines, binding, allowed, unix_now: unix_now(dialect) }.apply(to);
    if verdict.outcome() == Outcome::Unavailable {
        to.insert(RETRY_AFTER, HeaderValue::from(SOON.as_secs()));
    }
}

/// The wall clock, for the one dialect that tells an instant.
fn unix_now(dialect: Dialect) -> Duration {
    match dialect {
        #[expect(
            clippy::disallowed_methods,
            reason = "decides nothing: this header tells an instant of the caller's clock"
        )]
        Dialect::XEpoch => SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default(),
        _ => Duration::ZERO,
    }
}

/// The object that every decision answers.
pub(crate) fn verdict_json(verdict: &Verdict) -> Value {
    let parts: Vec<Part<'_>> = verdict.rulings().iter().map(part).collect();
    let binding =
        verdict.binding().and_then(|binding| verdict.rulings().iter().position(|one| std::ptr::eq(one, binding)));
    let (split, decided_at) = (verdict.split(), verdict.decided_at());
    Answer { allowed: verdict.allowed(), parts: &parts, binding, split, decided_at }.to_json()
}

fn part(ruling: &Ruling) -> Part<'_> {
    let (policy, status, source) = (ruling.policy().name(), ruling.status(), ruling.source());
    Part { policy, status, source, shadow: ruling.mode() == Mode::Shadow }
}

fn too_costly(verdict: &Verdict) -> Option<&Ruling> {
    verdict.rulings().iter().find(|ruling| ruling.mode() == Mode::Enforce && ruling.source() == Source::TooCostly)
}

fn too_costly_problem(ruling: &Ruling) -> Problem {
    let (policy, capacity) = (ruling.policy().name().escape_debug(), ruling.status().limit());
    Problem::bad_request(format!(
        "A cost of {} can never pass `{policy}`, which holds at most {capacity}: lower the cost or raise the limit.",
        ruling.asked()
    ))
}

/// A problem as a response.
pub(crate) fn problem_response(problem: &Problem) -> Response {
    let mut response = json_response(problem.status(), PROBLEM, &problem.to_json());
    if problem.status() == StatusCode::SERVICE_UNAVAILABLE {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(SOON.as_secs()));
    }
    response
}

/// JSON, never to be kept by a cache.
pub(crate) fn json_response(status: StatusCode, content_type: HeaderValue, body: &Value) -> Response {
    let mut response = Response::new(Body::from(visible(body.to_string())));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// The same JSON, with everything escaped that a terminal would obey or hide instead of show: callers choose names, and
/// operators read answers. Only strings hold such characters, so that an escape of JSON's own is right wherever one is.
fn visible(json: String) -> String {
    let shown = |byte: u8| byte.is_ascii() && byte != 0x7f;
    if json.bytes().all(shown) {
        return json;
    }
    let mut escaped = String::with_capacity(json.len() + 16);
    for c in json.chars() {
        let hidden = (!c.is_ascii() || c == '\u{7f}') && c.escape_debug().next() == Some('\\');
        match hidden {
            true => c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| escaped.push_str(&format!("\\u{unit:04x}"))),
            false => escaped.push(c),
        }
    }
    escaped
}

/// JSON with 200.
pub(crate) fn ok(body: &Value) -> Response {
    json_response(StatusCode::OK, JSON, body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_escaped_reads_back_as_it_was() {
        for text in [
            "",
            "plain",
            "ünï ☃ 漢字",
            "\u{202e}gnp.exe",
            "\u{7f}\u{85}\u{9b}31m",
            "\u{2028}\u{feff}\u{e0041}",
            "\0\u{1b}\"\\",
        ] {
            let written = visible(Value::from(text).to_string());
            assert_eq!(serde_json::from_str::<String>(&written).unwrap(), text);
            assert!(
                !written.chars().any(|c| c.is_control() || "\u{202e}\u{2028}\u{feff}\u{e0041}".contains(c)),
                "{written:?}"
            );
        }
        assert_eq!(visible(Value::from("ünï ☃ 漢字").to_string()), "\"ünï ☃ 漢字\"");
    }
}
