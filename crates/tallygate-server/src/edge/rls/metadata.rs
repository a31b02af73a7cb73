//! What later filters of the proxy, and its access log, can read of a verdict.

use std::collections::BTreeMap;

use prost_types::value::Kind;
use prost_types::{NullValue, Struct};
use serde_json::{Map, Value, json};
use tallygate::policy::{Mode, Ruling, Verdict};
use tallygate_http::verdict_answer;

/// `domain`; `metadata`, merged from all policies that let the call pass, as envoyproxy/ratelimit does; and our numbers
/// under `tallygate`.
pub(super) fn metadata(domain: &str, verdict: &Verdict) -> Value {
    let mut metadata = json!({"domain": domain, "tallygate": verdict_answer(verdict).binding()});
    let joined = joined(verdict.rulings());
    if !joined.is_empty() {
        metadata["metadata"] = joined.into();
    }
    metadata
}

/// The metadata of the policies that did not refuse, in the order of descriptors. The first value wins; objects are merged.
fn joined(rulings: &[Ruling]) -> Map<String, Value> {
    let passed =
        |ruling: &&Ruling| ruling.limit().is_some() && (ruling.mode() == Mode::Shadow || ruling.status().allowed());
    let mut passed: Vec<&Ruling> =
        rulings.iter().filter(|ruling| ruling.policy().metadata().is_some()).filter(passed).collect();
    passed.sort_by_key(|ruling| ruling.descriptor());
    let mut all = Map::new();
    for text in passed.into_iter().filter_map(|ruling| ruling.policy().metadata()) {
        // The loader of the policy has checked that it is an object.
        if let Ok(object) = serde_json::from_str(text) {
            join(&mut all, object);
        }
    }
    all
}

fn join(all: &mut Map<String, Value>, more: Map<String, Value>) {
    for (key, value) in more {
        match (all.get_mut(&key), value) {
            (None, value) => {
                all.insert(key, value);
            }
            (Some(Value::Object(there)), Value::Object(value)) => join(there, value),
            (Some(_), _) => {}
        }
    }
}

/// The same as a message of protobuf.
pub(super) fn structure(object: Value) -> Option<Struct> {
    match protobuf(object).kind {
        Some(Kind::StructValue(object)) => Some(object),
        _ => None,
    }
}

fn protobuf(value: Value) -> prost_types::Value {
    match value {
        Value::Null => Kind::NullValue(NullValue::NullValue.into()).into(),
        Value::Bool(flag) => flag.into(),
        Value::Number(number) => number.as_f64().unwrap_or_default().into(),
        Value::String(text) => text.into(),
        Value::Array(values) => values.into_iter().map(protobuf).collect::<Vec<_>>().into(),
        Value::Object(fields) => {
            fields.into_iter().map(|(key, value)| (key, protobuf(value))).collect::<BTreeMap<_, _>>().into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(text: &str) -> Map<String, Value> {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn protobuf_has_the_same_values() {
        let written = structure(json!({"n": null, "b": true, "i": 2, "f": 0.5, "t": "x", "l": [1, {}]})).unwrap();
        let kinds: Vec<_> = written.fields.into_iter().map(|(key, value)| (key, value.kind.unwrap())).collect();
        let list = vec![prost_types::Value::from(1.0), BTreeMap::new().into()];
        let expected = [
            ("b", true.into()),
            ("f", 0.5.into()),
            ("i", 2.0.into()),
            ("l", list.into()),
            ("n", Kind::NullValue(0).into()),
            ("t", "x".into()),
        ];
        let expected = expected.map(|(key, value): (&str, prost_types::Value)| (key.to_owned(), value.kind.unwrap()));
        assert_eq!(kinds, expected);
    }

    #[test]
    fn objects_are_joined_and_the_first_of_anything_else_stays() {
        let mut all = object(r#"{"a": {"b": 1, "c": {"d": true}}, "e": [1], "n": null}"#);
        join(&mut all, object(r#"{"a": {"b": 2, "c": {"f": null}}, "e": [2], "g": "new", "n": 1}"#));
        join(&mut all, object(r#"{"a": 5, "g": {"h": 1}}"#));
        assert_eq!(all, object(r#"{"a": {"b": 1, "c": {"d": true, "f": null}}, "e": [1], "g": "new", "n": null}"#));
    }
}
