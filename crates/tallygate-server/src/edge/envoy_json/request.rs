//! A `RateLimitRequest` in protobuf's JSON: names in camelCase or as in the file, numbers also as texts.

use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};
use tallygate_http::Problem;

use crate::edge::json::{exact, read_json};
use crate::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use crate::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{Entry, RateLimitOverride};
use crate::proto::envoy::service::ratelimit::v3::RateLimitRequest;
use crate::proto::envoy::r#type::v3::RateLimitUnit;

/// Reads a body.
pub(super) fn read(body: &[u8]) -> Result<RateLimitRequest, Problem> {
    read_json::<Object<WrittenRequest>>(body).map(|Object(written)| written.into())
}

// Everything may be left out or be null: both mean the default.

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct WrittenRequest {
    domain: Option<String>,
    descriptors: Option<Vec<Object<WrittenDescriptor>>>,
    #[serde(alias = "hits_addend")]
    hits_addend: Option<Number<u32>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct WrittenDescriptor {
    entries: Option<Vec<Object<WrittenEntry>>>,
    limit: Option<Object<WrittenLimit>>,
    #[serde(alias = "hits_addend")]
    hits_addend: Option<Number<u64>>,
    #[serde(alias = "is_negative_hits")]
    is_negative_hits: Option<bool>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenEntry {
    key: Option<String>,
    value: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct WrittenLimit {
    #[serde(alias = "requests_per_unit")]
    requests_per_unit: Option<Number<u32>>,
    unit: Option<WrittenUnit>,
}

/// An object. A derived reader would take a list of its values as well.
#[derive(Debug)]
struct Object<T>(T);

impl<'de, T: DeserializeOwned> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let members = Map::<String, Value>::deserialize(from)?;
        T::deserialize(Value::Object(members)).map(Self).map_err(D::Error::custom)
    }
}

#[derive(Debug)]
struct Number<N>(N);

impl<'de, N: TryFrom<i128>> Deserialize<'de> for Number<N> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let count = match Value::deserialize(from)? {
            Value::Number(number) => exact(&number),
            Value::String(text) => text.parse::<u64>().ok().map(i128::from),
            _ => None,
        };
        let fitting = count.and_then(|count| N::try_from(count).ok()).map(Self);
        fitting.ok_or_else(|| D::Error::custom(format!("expected a whole number of {} bits", 8 * size_of::<N>())))
    }
}

#[derive(Debug)]
struct WrittenUnit(i32);

impl<'de> Deserialize<'de> for WrittenUnit {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let unit = match Value::deserialize(from)? {
            Value::String(name) => RateLimitUnit::from_str_name(&name).map(i32::from),
            Value::Number(number) => number.as_i64().and_then(|number| i32::try_from(number).ok()),
            _ => None,
        };
        unit.map(Self).ok_or_else(|| D::Error::custom("expected a unit: SECOND, MINUTE, HOUR, DAY, MONTH or YEAR"))
    }
}

impl From<WrittenRequest> for RateLimitRequest {
    fn from(written: WrittenRequest) -> Self {
        Self {
            domain: written.domain.unwrap_or_default(),
            descriptors: written.descriptors.unwrap_or_default().into_iter().map(|Object(one)| one.into()).collect(),
            hits_addend: written.hits_addend.map_or(0, |Number(units)| units),
        }
    }
}

impl From<WrittenDescriptor> for RateLimitDescriptor {
    fn from(written: WrittenDescriptor) -> Self {
        let entry = |Object(entry): Object<WrittenEntry>| Entry {
            key: entry.key.unwrap_or_default(),
            value: entry.value.unwrap_or_default(),
        };
        let limit = |Object(limit): Object<WrittenLimit>| RateLimitOverride {
            requests_per_unit: limit.requests_per_unit.map_or(0, |Number(requests)| requests),
            unit: limit.unit.map_or(0, |WrittenUnit(unit)| unit),
        };
        Self {
            entries: written.entries.unwrap_or_default().into_iter().map(entry).collect(),
            limit: written.limit.map(limit),
            hits_addend: written.hits_addend.map(|Number(units)| units),
            is_negative_hits: written.is_negative_hits.unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            r#"{"hitsAddend": -1}"#,
            r#"{"hitsAddend": 1.5}"#,
            r#"{"hitsAddend": 4294967296}"#,
            r#"{"hitsAddend": {"value": 1}}"#,
            r#"{"descriptors": [{"hitsAddend": {"value": 1}}]}"#,
            r#"{"descriptors": [{"limit": {"unit": "FORTNIGHT"}}]}"#,
            // Lists in the place of objects were taken for their values in order.
            r#"{"descriptors": [{"limit": [null, null]}]}"#,
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
