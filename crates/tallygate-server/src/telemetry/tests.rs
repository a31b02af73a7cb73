//! Spans from a request to a collector, over real sockets.

mod collector;
pub(super) mod scene;

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use http::Request;
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use serde_json::json;
use tallygate::{MemoryStore, OnError, PolicySet};
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tower::ServiceExt;
use tracing::level_filters::LevelFilter;

use super::exporter::{EVERY, Exporter, FLUSH, MOST};
use super::log_format::tests::written;
use super::traces::Counts;
use super::{Format, LogSettings, OtlpSettings, TelemetryError, TraceParent, Traces};
use crate::app::App;
use crate::settings::Settings;
use collector::{Collector, FINE};
use scene::Scene;

const SUBJECT: &str = "alice@example.org";
const PARENT: &str = "00-0123456789abcdef0123456789abcdef-00000000000000ff-01";

/// `/` decides a call; `/down` decides one while the store is down.
fn router(scene: Arc<Scene>) -> Router {
    let other = Arc::clone(&scene);
    let call = async move || assert!(scene.call(SUBJECT).await.unwrap().into_verdict().store_error().is_none());
    let vain = async move || assert!(other.call_in_vain(SUBJECT).await.unwrap().into_verdict().store_error().is_some());
    Router::new().route("/", get(call)).route("/down", get(vain))
}

async fn request(router: &Router, path: &str, traceparent: Option<&str>) {
    let mut request = Request::get(path);
    if let Some(traceparent) = traceparent {
        request = request.header("traceparent", traceparent);
    }
    let answer = router.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
    assert_eq!(answer.status(), 200);
}

/// Records `count` spans of one decision, without ever giving way to another task.
async fn record(traces: &Traces, count: usize) {
    let scene = Scene::new("api", OnError::Deny);
    let result = scene.call(SUBJECT).await;
    for _ in 0..count {
        traces.record(None, &scene.event(&result));
    }
}

fn texts(attributes: &[KeyValue]) -> Vec<(&str, &str)> {
    let text = |attribute| match attribute {
        &KeyValue { ref key, value: Some(ref value), .. } => match &value.value {
            Some(Value::StringValue(text)) => (key.as_str(), text.as_str()),
            other => panic!("{key}: {other:?}"),
        },
        other => panic!("{other:?}"),
    };
    attributes.iter().map(text).collect()
}

#[tokio::test]
async fn a_decision_becomes_a_span_under_the_callers() {
    let mut collector = Collector::start(FINE).await;
    let exporter = Exporter::start(collector.settings());
    let router = exporter.traces().wrap(router(Scene::new("api", OnError::Deny)));
    for path in ["/", "/", "/down"] {
        request(&router, path, Some(PARENT)).await;
    }
    request(&router, "/", None).await;
    let traces = exporter.traces();
    exporter.finish().await;
    assert_eq!((traces.exported(), traces.dropped(), traces.refused()), (4, 0, 0));

    let received = collector.next().await;
    assert_eq!(received.line, "POST /v1/traces HTTP/1.1");
    assert_eq!(received.headers["content-type"], "application/json");
    assert!(!received.body.contains("alice"), "no subject leaves: {}", received.body);
    let resource = received.request.resource_spans[0].resource.clone().unwrap();
    assert_eq!(texts(&resource.attributes)[0], ("service.name", "tallygate"));

    let parent = [0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef].repeat(2);
    let [first, second, down, root] = received.spans() else { panic!("four spans: {}", received.body) };
    for span in [first, second, down] {
        assert_eq!(span.trace_id, parent);
        assert_eq!(span.parent_span_id, [0, 0, 0, 0, 0, 0, 0, 0xff]);
        assert_eq!(span.flags, 0x301);
    }
    assert_eq!((root.trace_id.len(), root.parent_span_id.len(), root.flags), (16, 0, 1));
    assert_ne!(root.trace_id, parent);
    for (span, outcome) in [(first, "allowed"), (second, "denied"), (down, "unavailable"), (root, "denied")] {
        assert_eq!((span.name.as_str(), span.kind), ("check", 2));
        assert_eq!(span.span_id.len(), 8);
        assert_eq!(span.end_time_unix_nano - span.start_time_unix_nano, 1_500_000);
        let expected = [
            ("tallygate.outcome", outcome),
            ("tallygate.api", "http"),
            ("tallygate.domain", "api"),
            ("tallygate.binding_policy", "per-user"),
        ];
        assert_eq!(texts(&span.attributes), expected);
        let failed = span.status.as_ref().is_some_and(|status| status.code() == StatusCode::Error);
        assert_eq!(failed, outcome == "unavailable");
    }
    assert_ne!(first.span_id, second.span_id);
    // By the same clock as the tests': within the minute.
    let now = u64::try_from(super::wall_clock().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos()).unwrap();
    assert!((now - 60_000_000_000..=now).contains(&first.end_time_unix_nano));
}

/// The answers to limits that callers bring along passed observers by.
#[test]
fn a_denied_ad_hoc_call_is_logged_traced_and_counted_as_one_under_policies_is() {
    let policies = PolicySet::new(vec![scene::domain("denied-ad-hoc", OnError::Deny)]).unwrap();
    let app = App::new(MemoryStore::new().into(), policies, &Settings::default());
    let (sender, mut queue) = mpsc::channel(8);
    let traces = Traces::new(sender, "1".parse().unwrap(), Arc::default());
    let router = traces.wrap(crate::edge::router(Arc::clone(&app)));
    let by_policy = json!({"domain": "denied-ad-hoc", "descriptors": [{"user": SUBJECT}]});
    let ad_hoc = json!({"policy": "per-user", "key": SUBJECT, "limit": "1/min"});
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let log = written(Format::Json, LevelFilter::DEBUG, || {
        for body in [&by_policy, &ad_hoc, &by_policy, &ad_hoc] {
            let request = Request::post("/v1/check").header("content-type", "application/json");
            let request = request.body(Body::from(body.to_string())).unwrap();
            runtime.block_on(router.clone().oneshot(request)).unwrap();
        }
    });

    let lines: Vec<serde_json::Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let lines = lines.iter().map(|line| ["domain", "policy", "outcome", "source"].map(|field| &line["fields"][field]));
    let told = ["per-user", "denied", "store"].map(|word| json!(word));
    let expected = [json!("denied-ad-hoc"), serde_json::Value::Null];
    assert_eq!(lines.collect::<Vec<_>>(), expected.each_ref().map(|domain| [domain, &told[0], &told[1], &told[2]]));
    assert!(!log.contains(SUBJECT), "{log}");

    let spans = std::iter::from_fn(|| queue.try_recv().ok());
    let spans = spans.map(|span| (span.domain.is_some(), span.outcome.name(), span.binding_policy.unwrap()));
    let span = |by_policy, outcome| (by_policy, outcome, Box::from("per-user"));
    let expected = [span(true, "allowed"), span(false, "allowed"), span(true, "denied"), span(false, "denied")];
    assert_eq!(spans.collect::<Vec<_>>(), expected);

    let page = crate::metrics::Sources { app: &app, reloads: &Default::default(), listeners: &[] }.render();
    for outcome in ["allowed", "denied"] {
        let line = format!("tallygate_calls_total{{api=\"http\",outcome=\"{outcome}\"}} 2\n");
        assert!(page.contains(&line), "{line}{page}");
    }
}

#[tokio::test]
async fn the_caller_decides_whether_its_trace_is_sampled_and_the_ratio_all_others() {
    let (sender, mut queue) = mpsc::channel(8);
    let mut spans = || std::iter::from_fn(|| queue.try_recv().ok()).count();
    let unsampled = PARENT.replace("ff-01", "ff-00");
    for (ratio, sampled, not, none) in [("0", 1, 0, 0), ("1", 1, 0, 1)] {
        let traces = Traces::new(sender.clone(), ratio.parse().unwrap(), Arc::default());
        let router = traces.wrap(router(Scene::new("api", OnError::Deny)));
        for (parent, expected) in [(Some(PARENT), sampled), (Some(unsampled.as_str()), not), (None, none)] {
            request(&router, "/", parent).await;
            assert_eq!(spans(), expected, "{ratio} {parent:?}");
        }
    }
    request(&router(Scene::new("api", OnError::Deny)), "/", Some(PARENT)).await;
    assert_eq!(spans(), 0, "a router that is not wrapped traces nothing");
}

#[tokio::test]
async fn a_span_waits_two_seconds_at_most_and_a_full_batch_not_at_all() {
    let mut collector = Collector::start(FINE).await;
    let exporter = Exporter::start(collector.settings());
    let began = Instant::now();
    record(&exporter.traces(), MOST + 1).await;
    assert_eq!(collector.next().await.spans().len(), MOST);
    assert!(began.elapsed() < EVERY, "{:?}", began.elapsed());
    assert_eq!(collector.next().await.spans().len(), 1);
    assert!(began.elapsed() >= EVERY, "{:?}", began.elapsed());
    exporter.finish().await;
}

#[tokio::test]
async fn the_end_sends_what_waits_in_batches() {
    let collector = Collector::start(FINE).await;
    let exporter = Exporter::start(collector.settings());
    let traces = exporter.traces();
    record(&traces, 2 * MOST + 276).await;
    exporter.finish().await;
    let sizes: Vec<usize> = collector.all().iter().map(|received| received.spans().len()).collect();
    assert_eq!(sizes, [MOST, MOST, 276]);
    assert_eq!(traces.exported(), 1_300);
    record(&traces, 1).await;
    assert_eq!(traces.dropped(), 1, "what comes after the end is counted");
}

#[tokio::test]
async fn a_full_queue_drops_and_counts() {
    let (sender, mut queue) = mpsc::channel(8);
    let counts = Arc::new(Counts::default());
    let traces = Traces::new(sender, "1".parse().unwrap(), Arc::clone(&counts));
    record(&traces, 20).await;
    assert_eq!((traces.dropped(), counts.dropped.load(Relaxed)), (12, 12));
    queue.recv().await.unwrap();
    record(&traces, 1).await;
    assert_eq!(traces.dropped(), 12, "there is room again");
}

/// One thread, and `record` never gives way: if it waited for the task that sends, this would never end.
#[tokio::test]
async fn decisions_do_not_wait_for_a_collector_that_is_down() {
    // Bound and not listening: nobody answers there, and nobody else can take the port.
    let deaf = TcpSocket::new_v4().unwrap();
    deaf.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let settings =
        OtlpSettings::new(&format!("http://{}", deaf.local_addr().unwrap())).unwrap().with_ratio("1".parse().unwrap());
    let queue = settings.queue as u64;
    let exporter = Exporter::start(settings);
    let traces = exporter.traces();
    record(&traces, 100_000).await;
    assert_eq!(traces.dropped(), 100_000 - queue);
    exporter.finish().await;
    assert_eq!((traces.exported(), traces.refused()), (0, queue));
}

#[tokio::test(start_paused = true)]
async fn a_collector_that_never_answers_holds_up_the_end_for_three_seconds() {
    // Connections are taken by the kernel, and by nobody else.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let settings = OtlpSettings::new(&format!("http://{}", silent.local_addr().unwrap())).unwrap();
    let exporter = Exporter::start(settings.with_ratio("1".parse().unwrap()));
    record(&exporter.traces(), 10).await;
    let began = Instant::now();
    exporter.finish().await;
    assert!((FLUSH..FLUSH + Duration::from_millis(10)).contains(&began.elapsed()), "{:?}", began.elapsed());
}

#[tokio::test]
async fn spans_that_a_collector_does_not_take_are_counted() {
    const PARTLY: &str =
        "HTTP/1.1 200 OK\r\nContent-Length: 42\r\n\r\n{\"partialSuccess\": {\"rejectedSpans\": \"3\"}}";
    const CHUNKED: &str = "HTTP/1.1 202 Accepted\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n";
    const BUSY: &str = "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n";
    for (answer, exported, refused) in
        [(FINE, 10, 0), (CHUNKED, 10, 0), (PARTLY, 7, 3), (BUSY, 0, 10), ("hello\r\n", 0, 10)]
    {
        let collector = Collector::start(answer).await;
        let exporter = Exporter::start(collector.settings());
        let traces = exporter.traces();
        record(&traces, 10).await;
        exporter.finish().await;
        assert_eq!((traces.exported(), traces.refused()), (exported, refused), "{answer:?}");
    }
}

#[test]
fn a_process_sets_up_its_log_once_and_sends_spans_only_from_a_runtime() {
    let settings = |filter: &str, otlp| LogSettings { format: Format::Text, filter: filter.to_owned(), otlp };
    let collector = OtlpSettings::new("http://127.0.0.1:4318").unwrap();
    assert_eq!(super::init(settings("info", Some(collector))).unwrap_err(), TelemetryError::NoRuntime);
    assert!(matches!(super::init(settings("loud", None)), Err(TelemetryError::Filter { .. })));
    let guard = super::init(settings("off", None)).unwrap();
    assert!(guard.traces().is_none());
    assert_eq!(super::init(settings("off", None)).unwrap_err(), TelemetryError::AlreadySet);
}

#[test]
fn the_parent_of_the_tests_is_one() {
    let headers = [(http::HeaderName::from_static("traceparent"), http::HeaderValue::from_static(PARENT))];
    assert_eq!(TraceParent::parse(&headers.into_iter().collect()).unwrap().to_string(), PARENT);
}
