//! What the filters behind the proxy's rate limit filter, and its access log, may read of a verdict.

use std::collections::BTreeMap;

use prost_types::value::Kind;
use prost_types::{ListValue, Struct, Value};
use tallygate::{Mode, Ruling, Verdict};
use tallygate_http::verdict_answer;

/// `domain`; `metadata`, joined from all policies that let the call pass, as Envoy's own service does; and our numbers under
/// `tallygate`.
pub(super) fn metadata(domain: &str, verdict: &Verdict) -> Struct {
    let numbers = serde_json::to_value(verdict_answer(verdict).binding()).expect("its members are numbers and strings");
    let mut fields =
        BTreeMap::from([("domain".to_owned(), Value::from(domain)), ("tallygate".to_owned(), from_json(numbers))]);
    let joined = joined(verdict.rulings());
    if !joined.is_empty() {
        fields.insert("metadata".to_owned(), structure(joined));
    }
    Struct { fields }
}

/// The metadata of the policies that did not refuse, descriptor after descriptor. What is there stays; objects are
/// joined.
fn joined(rulings: &[Ruling]) -> BTreeMap<String, Value> {
    let passed =
        |ruling: &&Ruling| ruling.limit().is_some() && (ruling.mode() == Mode::Shadow || ruling.status().allowed());
    let mut passed: Vec<&Ruling> =
        rulings.iter().filter(|ruling| ruling.policy().metadata().is_some()).filter(passed).collect();
    passed.sort_by_key(|ruling| ruling.descriptor());
    let mut all = BTreeMap::new();
    for text in passed.into_iter().filter_map(|ruling| ruling.policy().metadata()) {
        // Whoever built the policy has seen to it that it is an object.
        if let Ok(object) = serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(text) {
            join(&mut all, object.into_iter().map(|(key, value)| (key, from_json(value))));
        }
    }
    all
}

fn join(all: &mut BTreeMap<String, Value>, more: impl IntoIterator<Item = (String, Value)>) {
    for (key, value) in more {
        match (all.get_mut(&key).and_then(|there| there.kind.as_mut()), value.kind) {
            (None, kind) => {
                all.insert(key, Value { kind });
            }
            (Some(Kind::StructValue(there)), Some(Kind::StructValue(value))) => join(&mut there.fields, value.fields),
            (Some(_), _) => {}
        }
    }
}

fn from_json(value: serde_json::Value) -> Value {
    use serde_json::Value as Json;
    match value {
        Json::Null => null(),
        Json::Bool(flag) => Value::from(flag),
        Json::Number(number) => number.as_f64().map_or_else(null, Value::from),
        Json::String(text) => Value::from(text),
        Json::Array(values) => {
            let values = values.into_iter().map(from_json).collect();
            Value { kind: Some(Kind::ListValue(ListValue { values })) }
        }
        Json::Object(fields) => structure(fields.into_iter().map(|(key, value)| (key, from_json(value))).collect()),
    }
}

fn structure(fields: BTreeMap<String, Value>) -> Value {
    Value { kind: Some(Kind::StructValue(Struct { fields })) }
}

fn null() -> Value {
    Value { kind: Some(Kind::NullValue(0)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(text: &str) -> BTreeMap<String, Value> {
        match from_json(serde_json::from_str(text).unwrap()).kind {
            Some(Kind::StructValue(object)) => object.fields,
            other => panic!("{other:?} is no object"),
        }
    }

    #[test]
    fn objects_are_joined_and_the_first_of_anything_else_stays() {
        let mut all = object(r#"{"a": {"b": 1, "c": {"d": true}}, "e": [1], "n": null}"#);
        join(&mut all, object(r#"{"a": {"b": 2, "c": {"f": null}}, "e": [2], "g": "new", "n": 1}"#));
        join(&mut all, object(r#"{"a": 5, "g": {"h": 1}}"#));
        assert_eq!(all, object(r#"{"a": {"b": 1, "c": {"d": true, "f": null}}, "e": [1], "g": "new", "n": null}"#));
    }
}
