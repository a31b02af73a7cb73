//! One line for each event, as text or as JSON.

use std::fmt::{self, Write};

use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer};

use super::{Format, wall_clock};
use crate::escape::{push_json, push_text, push_value};

/// Writes events, each as one line and in one call.
pub(super) struct Lines<W> {
    format: Format,
    coloured: bool,
    write: W,
}

impl<W: Fn(&str)> Lines<W> {
    pub(super) fn new(format: Format, coloured: bool, write: W) -> Self {
        Self { format, coloured, write }
    }
}

impl<S: Subscriber, W: Fn(&str) + 'static> Layer<S> for Lines<W> {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let time = time();
        let line = match self.format {
            Format::Text => text(&time, event, self.coloured),
            Format::Json => json(&time, event),
        };
        (self.write)(&line);
    }
}

/// Now, to the microsecond, as RFC 3339 writes it.
fn time() -> String {
    let mut now = prost_types::Timestamp::from(wall_clock());
    now.nanos -= now.nanos % 1_000;
    now.to_string()
}

fn text(time: &str, event: &Event<'_>, coloured: bool) -> String {
    let metadata = event.metadata();
    let mut fields = TextFields::default();
    event.record(&mut fields);
    let mut line = format!("{time} ");
    let level = metadata.level();
    if coloured {
        let colour = match *level {
            Level::ERROR => 31,
            Level::WARN => 33,
            Level::INFO => 32,
            Level::DEBUG => 34,
            Level::TRACE => 35,
        };
        // Into a String: cannot fail.
        let _ = write!(line, "\u{1b}[{colour}m{level:>5}\u{1b}[0m");
    } else {
        let _ = write!(line, "{level:>5}");
    }
    let _ = write!(line, " {}: {}", metadata.target(), fields.message);
    // The first field brings the space that an event without a message already has.
    let rest = if fields.message.is_empty() { fields.rest.trim_start() } else { &fields.rest };
    line.push_str(rest);
    line.push('\n');
    line
}

fn json(time: &str, event: &Event<'_>) -> String {
    let metadata = event.metadata();
    let mut fields = JsonFields::default();
    event.record(&mut fields);
    let mut object = Map::new();
    object.insert("timestamp".to_owned(), time.into());
    object.insert("level".to_owned(), metadata.level().as_str().into());
    object.insert("target".to_owned(), metadata.target().into());
    object.insert("message".to_owned(), fields.0.shift_remove("message").unwrap_or_else(|| "".into()));
    object.insert("fields".to_owned(), Value::Object(fields.0));
    let mut line = String::new();
    push_json(&mut line, &Value::Object(object).to_string());
    line.push('\n');
    line
}

#[derive(Default)]
struct TextFields {
    message: String,
    rest: String,
}

impl Visit for TextFields {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "message" {
            push_text(&mut self.message, value);
        } else {
            self.rest.push(' ');
            push_text(&mut self.rest, field.name());
            self.rest.push('=');
            push_value(&mut self.rest, value);
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.record_str(field, &format!("{value:?}"));
    }
}

#[derive(Default)]
struct JsonFields(Map<String, Value>);

impl JsonFields {
    fn insert(&mut self, field: &Field, value: impl Into<Value>) {
        self.0.insert(field.name().to_owned(), value.into());
    }
}

impl Visit for JsonFields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.insert(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.insert(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.insert(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.insert(field, value);
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.insert(field, value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.insert(field, format!("{value:?}"));
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::{Arc, Mutex};

    use proptest::prelude::*;
    use tracing::level_filters::LevelFilter;
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;
    use crate::escape::tests::{hostile, text};

    /// What is written while `run` runs.
    pub(in crate::telemetry) fn written(format: Format, level: LevelFilter, run: impl FnOnce()) -> String {
        let out = Arc::new(Mutex::new(String::new()));
        let sink = Arc::clone(&out);
        let lines = Lines::new(format, false, move |line| sink.lock().unwrap().push_str(line));
        tracing::subscriber::with_default(tracing_subscriber::registry().with(lines).with(level), run);
        let out = out.lock().unwrap();
        out.clone()
    }

    #[test]
    fn an_event_is_one_line_of_text() {
        let line = written(Format::Text, LevelFilter::INFO, || {
            tracing::warn!(target: "here", connections = 3, who = "a b", "stopped");
            tracing::debug!("not this");
        });
        let (time, rest) = line.split_once(' ').unwrap();
        assert_eq!(rest, " WARN here: stopped connections=3 who=\"a b\"\n");
        time.parse::<prost_types::Timestamp>().unwrap();
    }

    #[test]
    fn an_event_is_one_object_of_json() {
        let line = written(Format::Json, LevelFilter::INFO, || {
            tracing::info!(target: "here", connections = 3, up = true, share = 0.5, who = %"x", "ready");
        });
        let mut object: Value = serde_json::from_str(&line).unwrap();
        let time = object.as_object_mut().unwrap().remove("timestamp").unwrap();
        time.as_str().unwrap().parse::<prost_types::Timestamp>().unwrap();
        let fields = serde_json::json!({"connections": 3, "up": true, "share": 0.5, "who": "x"});
        let expected = serde_json::json!({"level": "INFO", "target": "here", "message": "ready", "fields": fields});
        assert_eq!(object, expected);
    }

    #[test]
    fn only_the_level_is_coloured_and_only_on_a_terminal() {
        let out = Arc::new(Mutex::new(String::new()));
        let sink = Arc::clone(&out);
        let lines = Lines::new(Format::Text, true, move |line| sink.lock().unwrap().push_str(line));
        tracing::subscriber::with_default(tracing_subscriber::registry().with(lines), || {
            tracing::info!("\u{1b}[31mred")
        });
        let line = out.lock().unwrap().clone();
        assert!(line.contains("\u{1b}[32m INFO\u{1b}[0m ") && line.ends_with(": \\u{1b}[31mred\n"), "{line:?}");
    }

    proptest! {
        #[test]
        fn no_text_of_a_stranger_breaks_out_of_its_line(text in text()) {
            for format in [Format::Text, Format::Json] {
                let line = written(format, LevelFilter::TRACE, || {
                    tracing::info!(plain = text.as_str(), display = %text, debug = ?text, "said: {text}");
                });
                let line = line.strip_suffix('\n').unwrap();
                prop_assert!(!line.chars().any(hostile), "{line:?}");
                if format == Format::Json {
                    let object: Value = serde_json::from_str(line).unwrap();
                    prop_assert_eq!(object["fields"]["plain"].as_str().unwrap(), text.as_str());
                    prop_assert_eq!(object["fields"]["display"].as_str().unwrap(), text.as_str());
                    let message = format!("said: {text}");
                    prop_assert_eq!(object["message"].as_str().unwrap(), message);
                }
            }
        }
    }
}
