//! The JSON Schema of our own format, for editors.

/// The JSON Schema of our own format, as JSON text.
pub fn schema() -> &'static str {
    include_str!("schema.json")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::*;
    use crate::own::{OVERRIDE, PAYER, POLICY, TOP};

    #[test]
    fn the_schema_has_the_fields_that_are_read_and_no_others() {
        let schema: Value = serde_json::from_str(schema()).unwrap();
        for (place, fields) in
            [("", TOP), ("/$defs/policy", POLICY), ("/$defs/override", OVERRIDE), ("/$defs/payer", PAYER)]
        {
            let known = schema.pointer(&format!("{place}/properties")).and_then(Value::as_object).unwrap();
            let names: BTreeSet<&str> = known.keys().map(String::as_str).collect();
            assert_eq!(names, fields.iter().copied().collect(), "{place}");
            assert!(known.values().all(|field| field["$ref"].is_string() || field["description"].is_string()));
        }
    }
}
