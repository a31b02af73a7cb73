//! Verdicts and problems as responses.

use axum::body::Body;
use axum::response::Response;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, StatusCode};
use serde_json::Value;
use tallygate::{Decision, Limit, Mode, Outcome, Ruling, Source, Verdict};
use tallygate_http::{Dialect, Headers, Line, Problem, decision_json, verdict_headers, verdict_json, verdict_problem};

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
    let headers = Headers { dialect, lines: &lines, binding: Some(0), allowed, unix_now: dialect.unix_now() };
    headers.apply(response.headers_mut());
    response
}

/// In seconds: when to come again if nobody knows.
const SOON: u64 = 1;

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
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(SOON));
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
