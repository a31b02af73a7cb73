//! A `RateLimitRequest` in protobuf's JSON: names in camelCase or as in the file, numbers also as texts. Everything may
//! be left out or be null: both mean the default.

use serde_json::{Map, Value};
use tallygate_http::Problem;

use crate::edge::json::{exact, read_json};
use crate::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use crate::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{Entry, RateLimitOverride};
use crate::proto::envoy::service::ratelimit::v3::RateLimitRequest;
use crate::proto::envoy::r#type::v3::RateLimitUnit;

pub(super) fn read(body: &[u8]) -> Result<RateLimitRequest, Problem> {
    request(read_json(body)?).map_err(|why| Problem::bad_request(format!("The body cannot be read: {why}.")))
}

fn request(value: Value) -> Result<RateLimitRequest, String> {
    Members::read(value, |members| {
        Ok(RateLimitRequest {
            domain: members.text("domain")?,
            descriptors: members.list("descriptors", descriptor)?,
            hits_addend: members.number(&["hitsAddend", "hits_addend"])?.unwrap_or_default(),
        })
    })
}

fn descriptor(value: Value) -> Result<RateLimitDescriptor, String> {
    Members::read(value, |members| {
        Ok(RateLimitDescriptor {
            entries: members.list("entries", entry)?,
            limit: members.take(&["limit"]).map(limit).transpose()?,
            hits_addend: members.number(&["hitsAddend", "hits_addend"])?,
            is_negative_hits: match members.take(&["isNegativeHits", "is_negative_hits"]) {
                None => false,
                Some(flag) => flag.as_bool().ok_or("`isNegativeHits` must be true or false")?,
            },
        })
    })
}

fn entry(value: Value) -> Result<Entry, String> {
    Members::read(value, |members| Ok(Entry { key: members.text("key")?, value: members.text("value")? }))
}

fn limit(value: Value) -> Result<RateLimitOverride, String> {
    Members::read(value, |members| {
        let unit = members.take(&["unit"]).map(|unit| match unit {
            Value::String(name) => RateLimitUnit::from_str_name(&name).map(i32::from),
            number => number.as_i64().and_then(|number| i32::try_from(number).ok()),
        });
        let unit =
            unit.map(|unit| unit.ok_or("`unit` must be SECOND, MINUTE, HOUR, DAY, MONTH or YEAR")).transpose()?;
        let requests_per_unit = members.number(&["requestsPerUnit", "requests_per_unit"])?.unwrap_or_default();
        Ok(RateLimitOverride { requests_per_unit, unit: unit.unwrap_or_default() })
    })
}

/// The members of an object that are not read yet.
struct Members(Map<String, Value>);

impl Members {
    /// Reads all members of an object.
    fn read<T>(value: Value, read: impl FnOnce(&mut Self) -> Result<T, String>) -> Result<T, String> {
        let Value::Object(members) = value else { return Err("expected an object".to_owned()) };
        let mut members = Self(members);
        let read = read(&mut members)?;
        match members.0.keys().next() {
            Some(unknown) => Err(format!("there is no field `{}`, or it is given twice", unknown.escape_debug())),
            None => Ok(read),
        }
    }

    /// By any of its names.
    fn take(&mut self, names: &[&str]) -> Option<Value> {
        names.iter().find_map(|name| self.0.shift_remove(*name)).filter(|value| !value.is_null())
    }

    fn text(&mut self, name: &str) -> Result<String, String> {
        match self.take(&[name]) {
            None => Ok(String::new()),
            Some(Value::String(text)) => Ok(text),
            Some(_) => Err(format!("`{name}` must be a text")),
        }
    }

    fn list<T>(&mut self, name: &str, read: impl Fn(Value) -> Result<T, String>) -> Result<Vec<T>, String> {
        match self.take(&[name]) {
            None => Ok(Vec::new()),
            Some(Value::Array(values)) => values.into_iter().map(read).collect(),
            Some(_) => Err(format!("`{name}` must be a list")),
        }
    }

    fn number<N: TryFrom<i128>>(&mut self, names: &[&str]) -> Result<Option<N>, String> {
        let Some(value) = self.take(names) else { return Ok(None) };
        let count = match value {
            Value::Number(number) => exact(&number),
            Value::String(text) => text.parse::<u64>().ok().map(i128::from),
            _ => None,
        };
        let fitting = count.and_then(|count| N::try_from(count).ok()).map(Some);
        fitting.ok_or_else(|| format!("`{}` must be a whole number of {} bits", names[0], 8 * size_of::<N>()))
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
