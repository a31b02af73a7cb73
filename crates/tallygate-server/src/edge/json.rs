//! JSON bodies: read from requests, written to responses.

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderValue, StatusCode};
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Number, Value};
use tallygate_http::{Problem, SOON, sanitize};

/// JSON must be said to be JSON: a browser cannot send it across sites without asking first.
pub(super) fn require_json(headers: &HeaderMap) -> Result<(), Problem> {
    let content_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let essence = content_type.split(';').next().unwrap_or_default().trim();
    if essence.eq_ignore_ascii_case("application/json") {
        return Ok(());
    }
    let detail = "The body must be JSON: send the header `Content-Type: application/json`.";
    Err(Problem::of_status(StatusCode::UNSUPPORTED_MEDIA_TYPE, detail))
}

/// Reads JSON; what is wrong with it is said without repeating it.
pub(super) fn read_json<T: DeserializeOwned>(body: &[u8]) -> Result<T, Problem> {
    serde_json::from_slice(body).map_err(|error| unreadable(&error))
}

/// Reads an object. Serde alone would take the fields of a struct from a list, too.
pub(super) fn read_object<T: DeserializeOwned>(body: &[u8]) -> Result<T, Problem> {
    from_object(read_json(body)?)
}

pub(super) fn from_object<T: DeserializeOwned>(object: Map<String, Value>) -> Result<T, Problem> {
    serde_json::from_value(Value::Object(object)).map_err(|error| unreadable(&error))
}

fn unreadable(error: &serde_json::Error) -> Problem {
    Problem::bad_request(format!("The body cannot be read: {error}."))
}

/// A whole number, if there is one.
pub(super) fn whole<'de, D: Deserializer<'de>, T: TryFrom<i128>>(from: D) -> Result<Option<T>, D::Error> {
    let Some(number) = Option::<Number>::deserialize(from)? else { return Ok(None) };
    let fitting = exact(&number).and_then(|exact| T::try_from(exact).ok());
    fitting.map(Some).ok_or_else(|| D::Error::custom(format!("`{number}` is not a whole number that fits here")))
}

/// The value of a whole number. `5.0` is one, to JSON Schema and to languages that know no other numbers.
pub(super) fn exact(number: &Number) -> Option<i128> {
    // Whole numbers that are too long for 64 bits are read as floats, too, and rounded: none of them is below this.
    const TOO_LONG: f64 = (1_u64 << 63) as f64;
    number.as_i128().or_else(|| {
        let float = number.as_f64().filter(|float| float.fract() == 0.0 && float.abs() < TOO_LONG)?;
        #[expect(clippy::cast_possible_truncation, reason = "it has no fraction, and fits")]
        Some(float as i128)
    })
}

pub(crate) fn ok(body: &Value) -> Response {
    json_response(StatusCode::OK, body)
}

/// JSON, never to be kept by a cache.
pub(super) fn json_response(status: StatusCode, body: &Value) -> Response {
    response(status, "application/json", body)
}

/// What a caller is told instead of an answer.
#[derive(Debug)]
pub(crate) struct Refused(Problem);

impl From<Problem> for Refused {
    fn from(problem: Problem) -> Self {
        Self(problem)
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let Self(problem) = self;
        let mut response = problem_json(problem.status(), &problem.to_json());
        let headers = response.headers_mut();
        match problem.status() {
            StatusCode::SERVICE_UNAVAILABLE => headers.insert(RETRY_AFTER, HeaderValue::from(SOON.as_secs())),
            StatusCode::UNAUTHORIZED => {
                headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"tallygate\""))
            }
            _ => None,
        };
        response
    }
}

/// The body of a problem, perhaps with more members, as a response.
pub(super) fn problem_json(status: StatusCode, body: &Value) -> Response {
    response(status, Problem::CONTENT_TYPE, body)
}

/// Callers choose names, and operators read answers on terminals: what a terminal would obey is escaped.
fn response(status: StatusCode, content_type: &'static str, body: &Value) -> Response {
    let mut response = Response::new(Body::from(sanitize::json(&body.to_string()).into_owned()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
