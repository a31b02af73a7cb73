//! JSON bodies: read from requests, written to responses.

use std::fmt;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::header::{CACHE_CONTROL, CONTENT_ENCODING, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderValue, StatusCode};
use serde::de::{Error as _, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Number, Value};
use tallygate_http::{Problem, ProblemCode, SOON, sanitize};

/// More than any object of a request has. Bounds the search for duplicates.
const MAX_MEMBERS: usize = 64;

/// A JSON value. Objects keep the order of their members, because the entries of a descriptor are ordered.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Json {
    Null,
    Bool(bool),
    Number(Number),
    String(String),
    List(Vec<Json>),
    Object(Vec<(String, Json)>),
}

impl Json {
    /// What it is, for messages.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Bool(_) => "a boolean",
            Self::Number(_) => "a number",
            Self::String(_) => "a string",
            Self::List(_) => "a list",
            Self::Object(_) => "an object",
        }
    }
}

impl From<Json> for Value {
    fn from(json: Json) -> Self {
        match json {
            Json::Null => Self::Null,
            Json::Bool(flag) => Self::Bool(flag),
            Json::Number(number) => Self::Number(number),
            Json::String(text) => Self::String(text),
            Json::List(list) => list.into_iter().map(Self::from).collect(),
            Json::Object(members) => members.into_iter().map(|(name, value)| (name, Self::from(value))).collect(),
        }
    }
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(AnyJson)
    }
}

struct AnyJson;

impl<'de> Visitor<'de> for AnyJson {
    type Value = Json;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Json, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E>(self, flag: bool) -> Result<Json, E> {
        Ok(Json::Bool(flag))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Json, E> {
        Ok(Json::Number(number.into()))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Json, E> {
        Ok(Json::Number(number.into()))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Json, E> {
        Ok(Number::from_f64(number).map_or(Json::Null, Json::Number))
    }

    fn visit_str<E>(self, text: &str) -> Result<Json, E> {
        Ok(Json::String(text.to_owned()))
    }

    fn visit_string<E>(self, text: String) -> Result<Json, E> {
        Ok(Json::String(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Json, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = from.next_element()? {
            list.push(item);
        }
        Ok(Json::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<Json, A::Error> {
        let mut members: Vec<(String, Json)> = Vec::new();
        while let Some(name) = from.next_key::<String>()? {
            if members.len() == MAX_MEMBERS {
                return Err(A::Error::custom(format!("an object has more than {MAX_MEMBERS} members")));
            }
            // A parser that takes the last and a proxy that takes the first would see two different requests.
            if members.iter().any(|(other, _)| *other == name) {
                return Err(A::Error::custom(format!("the member `{}` occurs twice", name.escape_debug())));
            }
            members.push((name, from.next_value()?));
        }
        Ok(Json::Object(members))
    }
}

/// The members of an object in a request, taken one by one. Null means absent.
#[derive(Debug)]
pub(super) struct Fields(Vec<(String, Json)>);

impl Fields {
    /// Reads a body. `example` shows what it should look like.
    pub(super) fn read(body: &[u8], example: &str) -> Result<Self, Problem> {
        let complain = |detail| Err(Problem::new(ProblemCode::InvalidJson, detail));
        if body.trim_ascii().is_empty() {
            return complain(format!("The body is empty: send a JSON object, for example {example}."));
        }
        match serde_json::from_slice(body) {
            Ok(Json::Object(members)) => Ok(Self(members)),
            Ok(other) => {
                complain(format!("The body must be a JSON object, not {}: for example {example}.", other.kind()))
            }
            Err(error) => complain(format!("The body is not valid JSON: {}.", syntax(body, &error))),
        }
    }

    /// The members of an object within a body.
    pub(super) fn of(members: Vec<(String, Json)>) -> Self {
        Self(members)
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    pub(super) fn get(&self, name: &str) -> Option<&Json> {
        self.0.iter().find(|(other, _)| other == name).map(|(_, value)| value).filter(|value| **value != Json::Null)
    }

    pub(super) fn take(&mut self, name: &str) -> Option<Json> {
        let at = self.0.iter().position(|(other, _)| other == name)?;
        Some(self.0.swap_remove(at).1).filter(|value| *value != Json::Null)
    }

    pub(super) fn string(&mut self, name: &str) -> Result<Option<String>, Problem> {
        match self.take(name) {
            None => Ok(None),
            Some(Json::String(text)) => Ok(Some(text)),
            Some(Json::Number(number)) => {
                let text = match number.as_u64() {
                    _ if name != "limit" => number.to_string(),
                    Some(amount) => format!("{amount}/min"),
                    None => "100/min".to_owned(),
                };
                Err(invalid(format!("`{name}` must be a string, not a number: write \"{text}\", in quotes.")))
            }
            Some(other) => Err(invalid(format!("`{name}` must be a string, not {}.", other.kind()))),
        }
    }

    /// A whole number. `5.0` is one, to JSON Schema and to languages that have only floats.
    pub(super) fn whole<T: TryFrom<i128>>(&mut self, name: &str) -> Result<Option<T>, Problem> {
        let number = match self.take(name) {
            None => return Ok(None),
            Some(Json::Number(number)) => number,
            Some(other) => {
                let kind = other.kind();
                return Err(invalid(format!("`{name}` must be a whole number, not {kind}: for example \"{name}\":1.")));
            }
        };
        let fitting = exact(&number).and_then(|exact| T::try_from(exact).ok());
        let negative = number.as_f64().is_some_and(|float| float < 0.0);
        fitting.map(Some).ok_or_else(|| match (negative, name) {
            (true, "cost") => invalid("`cost` cannot be negative: use /v1/refund to give units back."),
            (true, "at_least") => invalid("`at_least` cannot be negative."),
            _ => invalid(format!("`{name}` must be a whole number of at most 64 bits, not {number}.")),
        })
    }

    /// False if it is missing.
    pub(super) fn flag(&mut self, name: &str) -> Result<bool, Problem> {
        match self.take(name) {
            None => Ok(false),
            Some(Json::Bool(flag)) => Ok(flag),
            Some(other) => Err(invalid(format!("`{name}` must be true or false, not {}.", other.kind()))),
        }
    }

    pub(super) fn float(&mut self, name: &str) -> Result<Option<f64>, Problem> {
        match self.take(name) {
            None => Ok(None),
            Some(Json::Number(number)) => Ok(number.as_f64()),
            Some(other) => Err(invalid(format!("`{name}` must be a number, not {}.", other.kind()))),
        }
    }

    /// Refuses fields that are not `known`.
    pub(super) fn only(&self, known: &[&str]) -> Result<(), Problem> {
        let Some((name, _)) = self.0.iter().find(|(name, _)| !known.contains(&name.as_str())) else { return Ok(()) };
        let hint = match tallygate::words::nearest(name, known) {
            Some(near) => format!("did you mean `{near}`? The"),
            None => "the".to_owned(),
        };
        let (name, all) = (name.escape_debug(), known.join(", "));
        Err(invalid(format!("unknown field `{name}`: {hint} fields are {all}.")))
    }

    /// The field that was probably meant to be `wanted`, which is one of `known`.
    pub(super) fn misspelled(&self, wanted: &str, known: &[&str]) -> Option<&str> {
        let names = self.0.iter().map(|(name, _)| name.as_str());
        names.filter(|name| !known.contains(name)).find(|name| tallygate::words::nearest(name, known) == Some(wanted))
    }
}

/// What is wrong with a text that is not JSON, where, and what was probably meant.
pub(super) fn syntax(body: &[u8], error: &serde_json::Error) -> String {
    let (line, column) = (error.line(), error.column());
    if error.is_eof() {
        return format!("it ends too early, at line {line} column {column}: is it cut off?");
    }
    let text = body.split(|byte| *byte == b'\n').nth(line.saturating_sub(1)).unwrap_or_default();
    let hint = match text.get(column.saturating_sub(1)) {
        Some(b'\'') if error.is_syntax() => ": write double quotes (\"), not single ones",
        _ => "",
    };
    format!("{error}{hint}")
}

/// A field is invalid. The detail is made a sentence.
pub(super) fn invalid(detail: impl fmt::Display) -> Problem {
    Problem::new(ProblemCode::InvalidField, sentence(&detail.to_string()))
}

/// The first line of a message, with a capital letter and a full stop.
pub(super) fn sentence(message: &str) -> String {
    let line = message.lines().next().unwrap_or_default();
    let mut letters = line.chars();
    let mut sentence: String = letters.next().into_iter().flat_map(char::to_uppercase).chain(letters).collect();
    if !sentence.ends_with(['.', '?', '!']) {
        sentence.push('.');
    }
    sentence
}

/// Requires `Content-Type: application/json`, which a web page cannot send to another site without permission.
pub(super) fn require_json(headers: &HeaderMap) -> Result<(), Problem> {
    let content_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let essence = content_type.split(';').next().unwrap_or_default().trim();
    if !essence.eq_ignore_ascii_case("application/json") {
        let detail = "The body must be JSON: send the header `Content-Type: application/json`.";
        return Err(Problem::new(ProblemCode::UnsupportedMediaType, detail));
    }
    require_plain(headers)
}

/// Requires a body that is not compressed.
pub(super) fn require_plain(headers: &HeaderMap) -> Result<(), Problem> {
    match headers.get(CONTENT_ENCODING) {
        Some(encoding) if !encoding.as_bytes().eq_ignore_ascii_case(b"identity") => {
            let detail = "Compressed bodies are not supported: send it without `Content-Encoding`.";
            Err(Problem::new(ProblemCode::UnsupportedMediaType, detail))
        }
        _ => Ok(()),
    }
}

/// The value of a whole number.
pub(super) fn exact(number: &Number) -> Option<i128> {
    // Whole numbers that do not fit into 64 bits are read as floats, and rounded: none of them is below this.
    const TOO_LONG: f64 = (1_u64 << 63) as f64;
    number.as_i128().or_else(|| {
        let float = number.as_f64().filter(|float| float.fract() == 0.0 && float.abs() < TOO_LONG)?;
        #[expect(clippy::cast_possible_truncation, reason = "it has no fraction, and fits")]
        Some(float as i128)
    })
}

pub(crate) fn ok(body: &impl Serialize) -> Response {
    json_response(StatusCode::OK, body)
}

/// JSON that caches must not store.
pub(super) fn json_response(status: StatusCode, body: &impl Serialize) -> Response {
    response(status, "application/json", body)
}

/// A request that is not answered, and why.
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
        let mut response = problem_json(problem.status(), &problem);
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

/// A problem as a response, perhaps with more members.
pub(super) fn problem_json(status: StatusCode, body: &impl Serialize) -> Response {
    response(status, Problem::CONTENT_TYPE, body)
}

/// Callers choose names, and operators read responses on terminals: terminal escapes are removed.
fn response(status: StatusCode, content_type: &'static str, body: &impl Serialize) -> Response {
    let text = serde_json::to_string(body).expect("its keys are strings");
    let text = match sanitize::json(&text) {
        std::borrow::Cow::Borrowed(_) => text,
        std::borrow::Cow::Owned(escaped) => escaped,
    };
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
