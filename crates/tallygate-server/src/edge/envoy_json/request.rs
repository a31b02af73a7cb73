//! Fields of a `RateLimitRequest` in protobuf's JSON: numbers also as strings, units by name or number. An absent field
//! and null mean the default. The generated messages use these functions, and accept names in camelCase or as in the
//! `.proto` file (`xtask/proto`).

use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};
use tallygate_http::{Problem, ProblemCode};

use crate::edge::json::{Json, exact, syntax};
use crate::proto::envoy::service::ratelimit::v3::RateLimitRequest;
use crate::proto::envoy::r#type::v3::RateLimitUnit;

const EXAMPLE: &str = r#"{"domain":"api","descriptors":[{"entries":[{"key":"user","value":"42"}]}]}"#;

/// Reads the body of a request.
pub(super) fn read(body: &[u8]) -> Result<RateLimitRequest, Problem> {
    let invalid = |detail: String| Problem::new(ProblemCode::InvalidJson, detail);
    if body.trim_ascii().is_empty() {
        return Err(invalid(format!("The body is empty: send a JSON object, for example {EXAMPLE}.")));
    }
    let json: Json = serde_json::from_slice(body)
        .map_err(|error| invalid(format!("The body is not valid JSON: {}.", syntax(body, &error))))?;
    let request = if matches!(json, Json::Object(_)) {
        serde_json::from_value(json.into())
    } else {
        Err(serde_json::Error::custom("it is not an object"))
    };
    request.map_err(|error: serde_json::Error| {
        let detail = format!("The body is not a request of Envoy's protocol: {error}. Write it as {EXAMPLE}.");
        Problem::new(ProblemCode::InvalidField, detail)
    })
}

pub(crate) fn plain<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(from: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

/// An object. A derived reader would accept a list of its values, too.
pub(crate) fn object<'de, D: Deserializer<'de>, T: DeserializeOwned>(from: D) -> Result<Option<T>, D::Error> {
    Option::deserialize(from)?.map(message).transpose().map_err(D::Error::custom)
}

pub(crate) fn objects<'de, D: Deserializer<'de>, T: DeserializeOwned>(from: D) -> Result<Vec<T>, D::Error> {
    let objects = Option::<Vec<_>>::deserialize(from)?.unwrap_or_default();
    objects.into_iter().map(message).collect::<Result<_, _>>().map_err(D::Error::custom)
}

fn message<T: DeserializeOwned>(members: Map<String, Value>) -> serde_json::Result<T> {
    serde_json::from_value(Value::Object(members))
}

pub(crate) fn number<'de, D: Deserializer<'de>, N: TryFrom<i128> + Default>(from: D) -> Result<N, D::Error> {
    optional_number(from).map(Option::unwrap_or_default)
}

pub(crate) fn optional_number<'de, D: Deserializer<'de>, N: TryFrom<i128>>(from: D) -> Result<Option<N>, D::Error> {
    let count = match Value::deserialize(from)? {
        Value::Null => return Ok(None),
        Value::Number(number) => exact(&number),
        Value::String(text) => text.parse::<u64>().ok().map(i128::from),
        _ => None,
    };
    let fitting = count.and_then(|count| N::try_from(count).ok()).map(Some);
    let most = u64::MAX >> (64 - 8 * size_of::<N>());
    fitting.ok_or_else(|| D::Error::custom(format!("expected a whole number from 0 to {most}")))
}

pub(crate) fn unit<'de, D: Deserializer<'de>>(from: D) -> Result<i32, D::Error> {
    let unit = match Value::deserialize(from)? {
        Value::Null => Some(0),
        Value::String(name) => RateLimitUnit::from_str_name(&name).map(i32::from),
        number => number.as_i64().and_then(|number| i32::try_from(number).ok()),
    };
    unit.ok_or_else(|| D::Error::custom("expected a unit: SECOND, MINUTE, HOUR, DAY, MONTH or YEAR"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
    use crate::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{Entry, RateLimitOverride};

    /// They were the words of the parser, without a remedy.
    #[test]
    fn what_is_refused_is_refused_with_an_example() {
        for (text, says) in [
            ("", "The body is empty"),
            ("{", "not valid JSON"),
            (r#"{"domain": "api", "descriptors": {"user": "42"}}"#, "Write it as"),
            (r#"{"descriptors": [{"user": "42"}]}"#, "unknown field `user`"),
            (r#"{"hitsAddend": -1}"#, "a whole number from 0 to 4294967295"),
        ] {
            let problem = read(text.as_bytes()).expect_err(text);
            assert!(problem.detail().contains(says), "{text}: {}", problem.detail());
        }
    }

    fn written() -> RateLimitRequest {
        let entry = Entry { key: "user".to_owned(), value: "é\u{1}".to_owned() };
        let limit = RateLimitOverride { requests_per_unit: 7, unit: RateLimitUnit::Hour.into() };
        let descriptor = RateLimitDescriptor {
            entries: vec![entry],
            limit: Some(limit),
            hits_addend: Some(0),
            is_negative_hits: true,
        };
        RateLimitRequest { domain: "edge".to_owned(), descriptors: vec![descriptor], hits_addend: 3 }
    }

    #[test]
    fn both_kinds_of_names_and_all_forms_of_numbers_are_read() {
        let camel = r#"{"domain": "edge", "hitsAddend": 3, "descriptors": [{"entries": [{"key": "user", "value": "é\u0001"}],
            "limit": {"requestsPerUnit": "7", "unit": "HOUR"}, "hitsAddend": "0", "isNegativeHits": true}]}"#;
        let snake = r#"{"descriptors": [{"is_negative_hits": true, "hits_addend": 0.0,
            "limit": {"unit": 3, "requests_per_unit": 7e0}, "entries": [{"value": "\u00e9\u0001", "key": "user"}]}],
            "hits_addend": "3", "domain": "edge"}"#;
        for text in [camel, snake] {
            assert_eq!(read(text.as_bytes()).unwrap(), written(), "{text}");
        }
    }

    #[test]
    fn what_is_left_out_is_the_default_and_so_is_null() {
        let nothing = r#"{"domain": null, "descriptors": null, "hitsAddend": null}"#;
        assert_eq!(read(nothing.as_bytes()).unwrap(), RateLimitRequest::default());
        let least = r#"{"descriptors": [{}, {"hitsAddend": null, "limit": null, "entries": [{"key": "k"}]}]}"#;
        let request = read(least.as_bytes()).unwrap();
        assert_eq!(request.descriptors[0], RateLimitDescriptor::default());
        assert_eq!(request.descriptors[1].hits_addend, None);
        assert_eq!(request.descriptors[1].entries[0].key, "k");
        let largest = r#"{"descriptors": [{"hitsAddend": "18446744073709551615"}], "hitsAddend": 4294967295}"#;
        let request = read(largest.as_bytes()).unwrap();
        assert_eq!((request.hits_addend, request.descriptors[0].hits_addend), (u32::MAX, Some(u64::MAX)));
    }

    #[test]
    fn what_protobuf_refuses_is_refused() {
        for text in [
            "",
            "{",
            "[]",
            "null",
            r#"{"domian": "edge"}"#,
            r#"{"domain": 5}"#,
            r#"{"hitsAddend": 1, "hits_addend": 1}"#,
            // The last of them counted.
            r#"{"hitsAddend": 1, "hitsAddend": 5}"#,
            r#"{"descriptors": [{"entries": [{"key": "a", "value": "x", "value": "y"}]}]}"#,
            r#"{"hitsAddend": -1}"#,
            r#"{"hitsAddend": 1.5}"#,
            r#"{"hitsAddend": 4294967296}"#,
            r#"{"hitsAddend": {"value": 1}}"#,
            r#"{"descriptors": [{"hitsAddend": {"value": 1}}]}"#,
            r#"{"descriptors": [{"limit": {"unit": "FORTNIGHT"}}]}"#,
            // Lists in place of objects were read as their values in order.
            r#"{"descriptors": [{"limit": [null, null]}]}"#,
            r#"{"descriptors": [{"limit": []}]}"#,
            r#"{"descriptors": [{"entries": [["user", "42"]]}]}"#,
            r#"["edge", [], 1]"#,
            r#"{"descriptors": [{"entries": [{"key": "a", "value": 5}]}]}"#,
            r#"{"descriptors": [null]}"#,
        ] {
            let problem = read(text.as_bytes()).expect_err(text);
            assert_eq!(problem.status(), 400, "{text}");
        }
    }
}
