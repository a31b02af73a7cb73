//! Log lines: one for each event, as text or JSON.

use std::fmt;

use serde::{Serialize, Serializer};
use serde_json::Value;
use tallygate_http::sanitize;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Layer};

use super::{Format, wall_clock};

/// Writes each event as one line, in one call.
pub(super) struct Lines<W> {
    pub(super) format: Format,
    pub(super) coloured: bool,
    pub(super) write: W,
}

impl<S: Subscriber, W: Fn(&str) + 'static> Layer<S> for Lines<W> {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let message = std::mem::take(&mut fields.message);
        let line = match self.format {
            Format::Text => text(event.metadata(), &message, &fields, self.coloured),
            Format::Json => json(event.metadata(), &message, &fields),
        };
        (self.write)(&line);
    }
}

/// The current time in RFC 3339, to the microsecond.
fn time() -> String {
    let mut now = prost_types::Timestamp::from(wall_clock());
    now.nanos -= now.nanos % 1_000;
    now.to_string()
}

fn text(metadata: &Metadata<'_>, message: &str, fields: &Fields, coloured: bool) -> String {
    let mut line = format!("{} ", time());
    let level = metadata.level();
    if coloured {
        let colour = match *level {
            Level::ERROR => 31,
            Level::WARN => 33,
            Level::INFO => 32,
            Level::DEBUG => 34,
            Level::TRACE => 35,
        };
        line += &format!("\u{1b}[{colour}m{level:>5}\u{1b}[0m");
    } else {
        line += &format!("{level:>5}");
    }
    line += &format!(" {}:", metadata.target());
    if !message.is_empty() {
        line += &format!(" {}", sanitize::text(message));
    }
    for (name, value) in &fields.others {
        line += &match value {
            Value::String(text) => format!(" {name}={}", one_word(text)),
            other => format!(" {name}={other}"),
        };
    }
    line.push('\n');
    line
}

/// In quotes unless it is one plain word, so that a value cannot look like two fields.
fn one_word(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.:/%+".contains(c);
    if !text.is_empty() && text.chars().all(plain) { text.to_owned() } else { sanitize::text(&format!("{text:?}")) }
}

fn json(metadata: &Metadata<'_>, message: &str, fields: &Fields) -> String {
    #[derive(Serialize)]
    struct Line<'a> {
        timestamp: String,
        level: &'a str,
        target: &'a str,
        message: &'a str,
        #[serde(skip_serializing_if = "Fields::is_empty")]
        fields: &'a Fields,
    }
    let (level, target) = (metadata.level().as_str(), metadata.target());
    let line = Line { timestamp: time(), level, target, message, fields };
    let line = serde_json::to_string(&line).expect("its keys are strings");
    sanitize::json(&line).into_owned() + "\n"
}

/// The fields of an event, in the order in which they were written.
#[derive(Default)]
struct Fields {
    message: String,
    others: Vec<(&'static str, Value)>,
}

impl Fields {
    fn is_empty(&self) -> bool {
        self.others.is_empty()
    }

    fn insert(&mut self, field: &Field, value: impl Into<Value>) {
        match (field.name(), value.into()) {
            ("message", Value::String(message)) => self.message = message,
            (name, value) => self.others.push((name, value)),
        }
    }
}

impl Serialize for Fields {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.others.iter().map(|(name, value)| (name, value)))
    }
}

impl Visit for Fields {
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

    /// Whether a terminal or a reader of lines could be misled by it.
    fn hostile(c: char) -> bool {
        let turns =
            matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}');
        c.is_control() || turns
    }

    /// Any text, with more of what does harm than chance would bring.
    fn text() -> impl Strategy<Value = String> {
        let nasty = prop::sample::select(
            "\n\r\t\0\u{1b}\u{7f}\u{85}\u{9b}\u{202e}\u{2028}\u{200b}\"'\\{= ".chars().collect::<Vec<_>>(),
        );
        prop::collection::vec(prop_oneof![nasty, any::<char>()], 0..40).prop_map(String::from_iter)
    }

    /// What is written while `run` runs.
    pub(in crate::telemetry) fn written(format: Format, level: LevelFilter, run: impl FnOnce()) -> String {
        let out = Arc::new(Mutex::new(String::new()));
        let sink = Arc::clone(&out);
        let lines = Lines { format, coloured: false, write: move |line: &str| sink.lock().unwrap().push_str(line) };
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
    fn a_newline_in_a_message_or_a_field_is_escaped_so_that_an_event_is_one_line() {
        let event = || tracing::warn!(target: "here", file = "a\nb", "first\nsecond\r\n");
        let line = written(Format::Text, LevelFilter::INFO, event);
        assert!(line.ends_with(" WARN here: first\\nsecond\\r\\n file=\"a\\nb\"\n"), "{line:?}");
        assert_eq!(line.lines().count(), 1, "{line:?}");
        let line = written(Format::Json, LevelFilter::INFO, event);
        assert_eq!(line.lines().count(), 1, "{line:?}");
        let object: Value = serde_json::from_str(&line).unwrap();
        assert_eq!((&object["message"], &object["fields"]["file"]), (&"first\nsecond\r\n".into(), &"a\nb".into()));
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
    fn the_members_of_a_line_keep_their_order_and_empty_fields_are_left_out() {
        let line = written(Format::Json, LevelFilter::INFO, || tracing::info!(target: "here", z = 1, a = 2, "ready"));
        let (_, rest) = line.split_once(",").unwrap();
        assert_eq!(
            rest,
            "\"level\":\"INFO\",\"target\":\"here\",\"message\":\"ready\",\"fields\":{\"z\":1,\"a\":2}}\n"
        );
        let line = written(Format::Json, LevelFilter::INFO, || tracing::info!("ready"));
        assert!(line.ends_with("\"message\":\"ready\"}\n"), "{line}");
    }

    #[test]
    fn only_the_level_is_coloured_and_only_on_a_terminal() {
        let out = Arc::new(Mutex::new(String::new()));
        let sink = Arc::clone(&out);
        let write = move |line: &str| sink.lock().unwrap().push_str(line);
        let lines = Lines { format: Format::Text, coloured: true, write };
        tracing::subscriber::with_default(tracing_subscriber::registry().with(lines), || {
            tracing::info!("\u{1b}[31mred")
        });
        let line = out.lock().unwrap().clone();
        assert!(line.contains("\u{1b}[32m INFO\u{1b}[0m ") && line.ends_with(": \\u{1b}[31mred\n"), "{line:?}");
    }

    proptest! {
        #[test]
        fn a_value_is_one_word_or_in_quotes_that_it_cannot_close(text in text()) {
            let out = one_word(&text);
            prop_assert!(!out.chars().any(hostile), "{out:?}");
            match out.strip_prefix('"') {
                None => prop_assert!(!out.contains([' ', '=', '"'])),
                Some(rest) => {
                    let mut escaped = false;
                    let end = rest.find(|c| { let ends = c == '"' && !escaped; escaped = c == '\\' && !escaped; ends });
                    prop_assert_eq!(end, Some(rest.len() - 1));
                }
            }
        }

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
