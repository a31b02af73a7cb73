//! Conditions and variables as full CEL.

use std::collections::HashMap;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;

use cel::objects::Map;
use cel::{Context, Value};
use tollgate::Descriptor;

/// An expression, and what it can know of its limit.
#[derive(Debug)]
pub(crate) struct Program {
    program: cel::Program,
    limit: Value,
}

/// A call, as expressions see it: `descriptors`, a list of mappings.
pub(super) struct Scope(Value);

impl Scope {
    pub fn new(descriptors: &[&Descriptor]) -> Self {
        let maps = descriptors.iter().map(|descriptor| {
            let entries: HashMap<String, String> = descriptor.entries().iter().cloned().collect();
            Value::Map(Map::from(entries))
        });
        Self(Value::List(Arc::new(maps.collect())))
    }
}

impl Program {
    pub fn new(source: &str, name: Option<&str>, id: Option<&str>) -> Result<Self, String> {
        let refused = |why: String| format!("`{}` is not CEL: {why}", source.escape_debug());
        // The parser is generated and has been seen to panic; a file must never bring a server down.
        let program = panic::catch_unwind(|| cel::Program::compile(source))
            .map_err(|_| refused("it cannot be parsed".to_owned()))?
            .map_err(|errors| refused(errors.to_string()))?;
        let text = |text: Option<&str>| text.map_or(Value::Null, |text| Value::from(text));
        let limit = HashMap::from([("name", text(name)), ("id", text(id))]);
        Ok(Self { program, limit: Value::Map(Map::from(limit)) })
    }

    /// Whether the condition holds. Entries that are not there, and anything that is no boolean, do not.
    pub fn holds(&self, scope: &Scope) -> bool {
        matches!(self.value(scope), Some(Value::Bool(true)))
    }

    /// The variable as text, if it has one.
    pub fn text(&self, scope: &Scope) -> Option<String> {
        match self.value(scope)? {
            Value::Int(number) => Some(number.to_string()),
            Value::UInt(number) => Some(number.to_string()),
            Value::Float(number) => Some(number.to_string()),
            Value::String(text) => Some(text.to_string()),
            Value::Bool(word) => Some(word.to_string()),
            Value::Null => Some("null".to_owned()),
            _ => None,
        }
    }

    fn value(&self, scope: &Scope) -> Option<Value> {
        let mut context = Context::default();
        context.add_variable_from_value("descriptors", scope.0.clone());
        context.add_variable_from_value("limit", self.limit.clone());
        panic::catch_unwind(AssertUnwindSafe(|| self.program.execute(&context))).ok()?.ok()
    }
}
