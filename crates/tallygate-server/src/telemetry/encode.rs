//! Spans in OTLP's JSON: ids in hex, times as decimal strings, enums as numbers.

use std::sync::LazyLock;
use std::time::{Duration, SystemTime};

use serde::Serialize;

use super::traces::{Span, random_name};
use crate::decision_event::CallOutcome;

/// OTLP's number for a span of a server.
const SERVER: u8 = 2;
/// OTLP's number for a span that failed.
const ERROR: u8 = 2;
/// Sampled.
const FLAGS: u32 = 1;
/// There is a parent, and it is in another process.
const REMOTE: u32 = 0x300;

/// Tells apart the processes of one service.
static INSTANCE: LazyLock<String> = LazyLock::new(random_name);

/// A request that hands these spans over.
pub(super) fn request(spans: &[Span]) -> String {
    let resource = Resource {
        attributes: [
            attribute("service.name", "tallygate"),
            attribute("service.version", env!("CARGO_PKG_VERSION")),
            attribute("service.instance.id", &INSTANCE),
        ],
    };
    let scope = Scope { name: "tallygate_server", version: env!("CARGO_PKG_VERSION") };
    let spans = spans.iter().map(SpanJson::from).collect();
    let request = Request { resource_spans: [ResourceSpans { resource, scope_spans: [ScopeSpans { scope, spans }] }] };
    serde_json::to_string(&request).expect("text and numbers are always JSON")
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Request<'a> {
    resource_spans: [ResourceSpans<'a>; 1],
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ResourceSpans<'a> {
    resource: Resource<'a>,
    scope_spans: [ScopeSpans<'a>; 1],
}

#[derive(Serialize)]
struct Resource<'a> {
    attributes: [Attribute<'a>; 3],
}

#[derive(Serialize)]
struct ScopeSpans<'a> {
    scope: Scope,
    spans: Vec<SpanJson<'a>>,
}

#[derive(Serialize)]
struct Scope {
    name: &'static str,
    version: &'static str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct SpanJson<'a> {
    trace_id: String,
    span_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    parent_span_id: Option<String>,
    flags: u32,
    name: &'static str,
    kind: u8,
    start_time_unix_nano: String,
    end_time_unix_nano: String,
    attributes: Vec<Attribute<'a>>,
    /// Left out unless the server is at fault: a call that is denied or wrong went as it should.
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<Status>,
}

#[derive(Serialize)]
struct Status {
    code: u8,
    message: &'static str,
}

#[derive(Serialize)]
struct Attribute<'a> {
    key: &'static str,
    value: Text<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Text<'a> {
    string_value: &'a str,
}

fn attribute<'a>(key: &'static str, text: &'a str) -> Attribute<'a> {
    Attribute { key, value: Text { string_value: text } }
}

impl<'a> From<&'a Span> for SpanJson<'a> {
    fn from(span: &'a Span) -> Self {
        let mut attributes =
            vec![attribute("tallygate.outcome", span.outcome.name()), attribute("tallygate.api", span.api.name())];
        let optional = [("tallygate.domain", &span.domain), ("tallygate.binding_policy", &span.binding_policy)];
        attributes.extend(optional.into_iter().filter_map(|(key, text)| Some(attribute(key, text.as_deref()?))));
        let ended = span.ended_at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let nanos = |since: Duration| since.as_nanos().to_string();
        Self {
            trace_id: format!("{:032x}", span.trace_id),
            span_id: format!("{:016x}", span.span_id),
            parent_span_id: span.parent.map(|parent| format!("{parent:016x}")),
            flags: span.parent.map_or(FLAGS, |_| FLAGS | REMOTE),
            name: span.verb.name(),
            kind: SERVER,
            start_time_unix_nano: nanos(ended.saturating_sub(span.took)),
            end_time_unix_nano: nanos(ended),
            attributes,
            status: (span.outcome == CallOutcome::Unavailable)
                .then_some(Status { code: ERROR, message: "the store could not answer, and the policy denies then" }),
        }
    }
}
