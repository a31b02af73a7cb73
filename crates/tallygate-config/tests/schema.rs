//! The schema knows every field and word that the reader knows, and accepts the same files.

use serde_json::{Value, json};
use tallygate::Algorithm;
use tallygate::hold::{OnAbandon, Overrun};
use tallygate::policy::{Excess, Mode, OnError};
use tallygate_config::Config;

use crate::examples::example;

/// As much of JSON Schema as ours makes use of: the path to what does not fit.
fn misfit(root: &Value, schema: &Value, value: &Value, path: &str) -> Option<String> {
    if let Some(name) = schema["$ref"].as_str() {
        let target = root.pointer(name.strip_prefix('#').unwrap()).unwrap_or_else(|| panic!("no {name}"));
        if let Some(misfit) = misfit(root, target, value, path) {
            return Some(misfit);
        }
    }
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    let is = |wanted: &Value| wanted == kind || (wanted == "integer" && value.is_u64());
    let typed = match &schema["type"] {
        Value::Null => true,
        Value::Array(kinds) => kinds.iter().any(is),
        one => is(one),
    };
    let listed = schema["enum"].as_array().is_none_or(|words| words.contains(value));
    let any = schema["anyOf"].as_array();
    let fits_any = any.is_none_or(|all| all.iter().any(|one| misfit(root, one, value, path).is_none()));
    let ranged = value.as_u64().is_none_or(|n| {
        schema["minimum"].as_u64().is_none_or(|least| n >= least)
            && schema["maximum"].as_u64().is_none_or(|most| n <= most)
    });
    let missing = |name: &Value| value.get(name.as_str().unwrap()).is_none();
    let complete = !schema["required"].as_array().is_some_and(|names| names.iter().any(missing));
    let sized = value.as_array().is_none_or(|list| list.len() as u64 >= schema["minItems"].as_u64().unwrap_or(0));
    if !(typed && listed && fits_any && ranged && complete && sized) {
        return Some(path.to_owned());
    }
    let items = value.as_array().into_iter().flatten().enumerate();
    let items = items.filter(|_| schema.get("items").is_some());
    let in_items = |(at, item): (usize, &Value)| misfit(root, &schema["items"], item, &format!("{path}/{at}"));
    let in_fields = |(name, field): (&String, &Value)| {
        let path = format!("{path}/{name}");
        match (schema["properties"].get(name), &schema["additionalProperties"]) {
            (Some(known), _) => misfit(root, known, field, &path),
            (None, Value::Bool(false)) => Some(path),
            (None, Value::Null) => None,
            (None, others) => misfit(root, others, field, &path),
        }
    };
    items.filter_map(in_items).chain(value.as_object().into_iter().flatten().filter_map(in_fields)).next()
}

fn schema() -> Value {
    serde_json::from_str(tallygate_config::schema()).unwrap()
}

fn yaml(text: &str) -> Value {
    serde_saphyr::from_str(text).unwrap()
}

#[test]
fn our_example_fits_the_schema() {
    let text = std::fs::read_to_string(example("tallygate.yaml")).unwrap();
    assert_eq!(misfit(&schema(), &schema(), &yaml(&text), ""), None);
}

#[test]
fn the_schema_and_the_reader_refuse_the_same() {
    let good =
        "policies: [{name: a, domain: d, match: {a: [1, x], b: null, c: true}, partition: a, limit: 1/s, near: 5}]";
    for (from, to) in [
        ("name: a, ", ""),
        ("name: a", "nam: a"),
        ("name: a", "name: [a]"),
        ("domain: d", "domain: {}"),
        ("[1, x]", "[]"),
        ("[1, x]", "{y: z}"),
        ("partition: a", "partition: {a: b}"),
        ("limit: 1/s", "limit: [1]"),
        ("limit: 1/s", "limit: 1/s, mode: off"),
        ("limit: 1/s", "limit: 1/s, algorithm: fifo"),
        ("limit: 1/s", "limit: 1/s, overrides: [{limit: 2/s}]"),
        ("limit: 1/s", "limit: 1/s, overrides: [{limit: 2/s, match: [a]}]"),
        ("limit: 1/s", "limit: 1/s, on_error: [deny]"),
        ("limit: 1/s", "limit: 1/s, cache_denials: [1s]"),
        ("limit: 1/s", "limit: 1/s, cache_denials: 5"),
        ("limit: 1/s", "limit: 1/s, allotment: 5"),
        ("limit: 1/s", "limit: 1/s, holds: [refund]"),
        ("limit: 1/s", "limit: 1/s, holds: {on_abandon: keep}"),
        ("limit: 1/s", "limit: 1/s, holds: {max_open: 0}"),
        ("limit: 1/s", "limit: 1/s, holds: {max_open: 10001}"),
        ("limit: 1/s", "limit: 1/s, holds: {max_held: 50}"),
        ("limit: 1/s", "limit: 1/s, holds: {max_ttl: [1]}"),
        ("limit: 1/s", "limit: 1/s, holds: {estimate: [p95]}"),
        ("limit: 1/s", "limit: 1/s, holds: {ttl: 1min}"),
        ("limit: 1/s", "limit: 1/s, payers: credits"),
        ("limit: 1/s", "limit: 1/s, payers: [{name: credits}]"),
        ("limit: 1/s", "limit: 1/s, payers: [{limit: 1/s}]"),
        ("limit: 1/s", "limit: 1/s, payers: [{name: b, limit: 1/s, partition: [user]}]"),
        ("near: 5", "near: 0"),
        ("near: 5", "near: high"),
        ("policies: ", "polices: "),
        ("policies: ", "store: [a]\npolicies: "),
    ] {
        let bad = good.replacen(from, to, 1);
        assert!(misfit(&schema(), &schema(), &yaml(&bad), "").is_some(), "the schema takes {bad}");
        assert!(Config::from_texts(&[("f", &bad)]).is_err(), "the reader takes {bad}");
    }
    assert_eq!(misfit(&schema(), &schema(), &yaml(good), ""), None);
    assert!(Config::from_texts(&[("f", good)]).is_ok());
}

#[test]
fn the_schema_knows_every_word() {
    let schema = schema();
    let words = |field: &str| schema["$defs"]["policy"]["properties"][field]["enum"].clone();
    assert_eq!(words("algorithm"), json!(Algorithm::ALL.iter().map(|algorithm| algorithm.name()).collect::<Vec<_>>()));
    assert_eq!(words("mode"), json!(Mode::ALL.iter().map(|word| word.name()).collect::<Vec<_>>()));
    let on_error = &schema["$defs"]["policy"]["properties"]["on_error"]["anyOf"][0]["enum"];
    assert_eq!(*on_error, json!(OnError::ALL.iter().map(|word| word.name()).collect::<Vec<_>>()));
    let words_of_holds = |field: &str| schema["$defs"]["holds"]["properties"][field]["enum"].clone();
    assert_eq!(words_of_holds("on_abandon"), json!(OnAbandon::ALL.iter().map(|word| word.name()).collect::<Vec<_>>()));
    assert_eq!(words_of_holds("overrun"), json!(Overrun::ALL.iter().map(|word| word.name()).collect::<Vec<_>>()));
    assert_eq!(words("excess"), json!(Excess::ALL.iter().map(|word| word.name()).collect::<Vec<_>>()));
}
