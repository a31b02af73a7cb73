//! The JSON Schema of our own format, for editors.

use serde_json::Value;

/// The JSON Schema of our own format.
pub fn schema() -> Value {
    serde_json::from_str(include_str!("schema.json")).expect("the schema is read in every test run")
}
