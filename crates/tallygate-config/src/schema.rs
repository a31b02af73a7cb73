//! The JSON Schema of our own format, for editors.

use serde_json::Value;

/// The JSON Schema of our own format.
pub fn schema() -> Value {
    serde_json::from_str(include_str!("schema.json")).expect("the schema is read in every test run")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::own::{OVERRIDE, POLICY, TOP};

    #[test]
    fn the_schema_has_the_fields_that_are_read_and_no_others() {
        let schema = schema();
        for (place, fields) in [("", TOP), ("/$defs/policy", POLICY), ("/$defs/override", OVERRIDE)] {
            let known = schema.pointer(&format!("{place}/properties")).and_then(Value::as_object).unwrap();
            assert_eq!(known.keys().collect::<Vec<_>>(), fields.iter().collect::<Vec<_>>(), "{place}");
            assert!(known.values().all(|field| field["$ref"].is_string() || field["description"].is_string()));
        }
    }
}
