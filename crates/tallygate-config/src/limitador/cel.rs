//! Conditions and variables as full CEL.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use cel::objects::Map;
use cel::{Context, Env, ParseErrors, Value};
use tallygate::policy::Descriptor;

/// In bytes. Chains of operators are evaluated by recursion, and expressions of this length fit a stack of 1 MiB.
const LONGEST: usize = 500;

/// The functions of the language, made once: making them takes longer than running most expressions.
static STANDARD: LazyLock<Arc<Env>> = LazyLock::new(|| Arc::new(Env::stdlib()));

/// An expression, and what it can refer to of its limit.
#[derive(Debug)]
pub(crate) struct Program {
    program: cel::Program,
    limit: Value,
}

/// A call, as expressions see it: `descriptors`, a list of mappings.
pub(crate) struct Scope(Value);

impl Scope {
    pub fn new(descriptors: &[&Descriptor]) -> Self {
        let maps = descriptors.iter().map(|descriptor| {
            let entries: HashMap<String, String> = descriptor.entries().iter().cloned().collect();
            Value::Map(Map::from(entries))
        });
        Self(Value::List(Arc::new(maps.collect())))
    }
}

/// The first error, on one line. The parser prints several lines for each: the message, the source and a caret. The others
/// mostly follow from the first.
fn first(errors: &ParseErrors) -> String {
    let Some(error) = errors.errors.first() else { return "it cannot be parsed".to_owned() };
    let message = error.msg.split_whitespace().collect::<Vec<_>>().join(" ");
    // Behind it is a list of every token of the language that may stand there.
    let message = message.split(" expecting {").next().unwrap_or_default().trim_start_matches("Syntax error: ");
    let (line, column) = error.pos;
    let place = if line > 1 { format!("line {line}, column {column}") } else { format!("column {column}") };
    format!("{message}, at {place} of the expression")
}

impl Program {
    pub fn new(source: &str, name: Option<&str>, id: Option<&str>) -> Result<Self, String> {
        if source.len() > LONGEST {
            return Err(format!("an expression has at most {LONGEST} bytes"));
        }
        let program = cel::Program::compile(source)
            .map_err(|errors| format!("`{source}` is not valid CEL: {}", first(&errors)))?;
        let text = |text: Option<&str>| text.map_or(Value::Null, Value::from);
        let limit = HashMap::from([("name", text(name)), ("id", text(id))]);
        Ok(Self { program, limit: Value::Map(Map::from(limit)) })
    }

    /// Whether the condition is `true`. A missing entry or another type counts as `false`.
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
        let mut context = Context::with_env(Arc::clone(&STANDARD));
        context.add_variable_from_value("descriptors", scope.0.clone());
        context.add_variable_from_value("limit", self.limit.clone());
        self.program.execute(&context).ok()
    }
}
