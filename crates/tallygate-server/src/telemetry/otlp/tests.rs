//! Spans from a request to a collector, over real sockets.

mod collector;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use http::{HeaderMap, HeaderValue, Request};
use opentelemetry::Context;
use opentelemetry::trace::TraceContextExt;
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tallygate::policy::OnError;
use tokio::net::{TcpListener, TcpSocket};
use tokio::process::Command;
use tokio::time::Instant;
use tower::ServiceExt;

use super::exporter::QUEUE;
use super::{FLUSH, Traces, parent};
use crate::accept::{Tls, TlsSettings};
use crate::telemetry::tests::scene::Scene;
use collector::Collector;

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
        request = request.header("traceparent", traceparent).header("tracestate", "vendor=1");
    }
    let answer = router.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
    assert_eq!(answer.status(), 200);
}

/// Records `count` spans of one decision, without ever giving way to another task.
async fn record(traces: &Traces, count: u64) {
    let scene = Scene::new("api", OnError::Deny);
    let result = scene.call(SUBJECT).await;
    for _ in 0..count {
        traces.record(&Context::new(), &scene.event(&result));
    }
}

fn counts(traces: &Traces) -> [u64; 3] {
    traces.counts().map(|(_, count)| count)
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
    let mut collector = Collector::start(200, 0, None);
    let traces = collector.traces("1");
    let router = traces.wrap(router(Scene::new("api", OnError::Deny)));
    for path in ["/", "/", "/down"] {
        request(&router, path, Some(PARENT)).await;
    }
    request(&router, "/", None).await;
    traces.clone().finish().await;
    assert_eq!(counts(&traces), [4, 0, 0]);

    let received = collector.next().await;
    assert_eq!(received.path, "/v1/traces");
    assert_eq!(received.headers["content-type"], "application/x-protobuf");
    assert!(!format!("{:?}", received.request).contains("alice"), "no subject leaves: {:?}", received.request);
    let resource = received.request.resource_spans[0].resource.clone().unwrap();
    assert!(texts(&resource.attributes).contains(&("service.name", "tallygate")), "{resource:?}");

    let parent = [0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef].repeat(2);
    let [first, second, down, root] = received.spans() else { panic!("four spans: {:?}", received.request) };
    for span in [first, second, down] {
        assert_eq!(span.trace_id, parent);
        assert_eq!(span.parent_span_id, [0, 0, 0, 0, 0, 0, 0, 0xff]);
        assert_eq!((span.flags, span.trace_state.as_str()), (0x301, "vendor=1"));
    }
    assert_eq!((root.trace_id.len(), root.parent_span_id.len()), (16, 0));
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
    let now = super::wall_clock().duration_since(std::time::UNIX_EPOCH).unwrap();
    let now = u64::try_from(now.as_nanos()).unwrap();
    assert!((now - 60_000_000_000..=now).contains(&first.end_time_unix_nano));
}

#[tokio::test]
async fn the_caller_decides_whether_its_trace_is_sampled_and_the_ratio_all_others() {
    let unsampled = PARENT.replace("ff-01", "ff-00");
    for (ratio, parent, expected) in [
        ("0", Some(PARENT), 1),
        ("0", Some(unsampled.as_str()), 0),
        ("0", None, 0),
        ("1", Some(PARENT), 1),
        ("1", Some(unsampled.as_str()), 0),
        ("1", None, 1),
    ] {
        let collector = Collector::start(200, 0, None);
        let traces = collector.traces(ratio);
        let router = router(Scene::new("api", OnError::Deny));
        request(&traces.wrap(router.clone()), "/", parent).await;
        // A router that is not wrapped traces nothing.
        request(&router, "/", parent).await;
        traces.clone().finish().await;
        assert_eq!(counts(&traces), [expected, 0, 0], "{ratio} {parent:?}");
    }
}

#[tokio::test]
async fn about_the_share_asked_for_is_sampled() {
    let collector = Collector::start(200, 0, None);
    let traces = collector.traces("10%");
    record(&traces, 10_000).await;
    traces.clone().finish().await;
    // Ten standard deviations either way.
    assert!((700..=1_300).contains(&counts(&traces)[0]), "{:?}", counts(&traces));
    let sizes: Vec<usize> = collector.all().iter().map(|received| received.spans().len()).collect();
    assert!(sizes.iter().all(|size| *size <= 512), "in batches: {sizes:?}");
}

/// One thread, and `record` never gives way: if it waited for the collector, this would never end.
#[tokio::test]
async fn decisions_do_not_wait_for_a_collector_that_is_down_and_what_is_dropped_is_counted() {
    // Bound and not listening: nobody answers there, and nobody else can take the port.
    let deaf = TcpSocket::new_v4().unwrap();
    deaf.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let url = format!("http://{}", deaf.local_addr().unwrap());
    let traces = Traces::start(&url, "1".parse().unwrap()).unwrap();
    record(&traces, 100_000).await;
    assert_eq!(counts(&traces), [0, 100_000 - QUEUE, 0]);
    let began = Instant::now();
    traces.clone().finish().await;
    assert!(began.elapsed() < FLUSH + Duration::from_secs(1), "{:?}", began.elapsed());
    let [exported, _, refused] = counts(&traces);
    assert!(exported == 0 && refused > 0, "{:?}", counts(&traces));
}

#[tokio::test]
async fn a_collector_that_never_answers_holds_up_the_end_for_three_seconds() {
    // Connections are taken by the kernel, and by nobody else.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    let traces = Traces::start(&url, "1".parse().unwrap()).unwrap();
    record(&traces, 10).await;
    let began = Instant::now();
    traces.finish().await;
    assert!((FLUSH..FLUSH + Duration::from_secs(1)).contains(&began.elapsed()), "{:?}", began.elapsed());
}

#[tokio::test]
async fn spans_that_a_collector_does_not_take_are_counted() {
    for (status, rejected, expected) in
        [(200, 0, [10, 0, 0]), (202, 0, [10, 0, 0]), (200, 3, [7, 0, 3]), (503, 0, [0, 0, 10]), (400, 0, [0, 0, 10])]
    {
        let collector = Collector::start(status, rejected, None);
        let traces = collector.traces("1");
        record(&traces, 10).await;
        traces.clone().finish().await;
        assert_eq!(counts(&traces), expected, "{status} {rejected}");
    }
}

#[test]
fn what_the_standard_forbids_is_no_parent() {
    let read = |values: &[&str], state: &str| {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append("traceparent", HeaderValue::from_str(value).unwrap());
        }
        headers.insert("tracestate", HeaderValue::from_str(state).unwrap());
        let context = parent(&headers).span().span_context().clone();
        context.is_valid().then(|| (context.span_id().to_string(), context.trace_state().header()))
    };
    let expected = |state: &str| Some(("00000000000000ff".to_owned(), state.to_owned()));
    assert_eq!(read(&[PARENT], "vendor=1"), expected("vendor=1"));
    assert_eq!(read(&[&format!("01{}-more", &PARENT[2..])], ""), expected(""), "a later version may say more");
    assert_eq!(read(&[PARENT], &format!("vendor={}", "1".repeat(512))), expected(""), "too long to keep");
    assert_eq!(read(&[PARENT, PARENT], ""), None);
    for bad in [
        "",
        "00",
        "ff-0123456789abcdef0123456789abcdef-00000000000000ff-01",
        "00-0123456789ABCDEF0123456789abcdef-00000000000000ff-01",
        "00-00000000000000000000000000000000-00000000000000ff-01",
        "00-0123456789abcdef0123456789abcdef-0000000000000000-01",
        "00-0123456789abcdef0123456789abcdef-00000000000000ff-01-more",
        "00-0123456789abcdef0123456789abcdef_00000000000000ff-01",
    ] {
        assert_eq!(read(&[bad], ""), None, "{bad}");
    }
}

/// The environment belongs to the process: this test runs itself in another one, which sends one span.
#[tokio::test]
async fn a_collector_behind_tls_is_sent_the_headers_of_the_environment() {
    if let Ok(url) = std::env::var("TALLYGATE_TEST_COLLECTOR") {
        let traces = Traces::start(&url, "1".parse().unwrap()).unwrap();
        record(&traces, 1).await;
        traces.clone().finish().await;
        assert_eq!(counts(&traces), [1, 0, 0]);
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    let mut authority = CertificateParams::default();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap().signed_by(&key, &authority);
    std::fs::write(file("authority"), authority.pem()).unwrap();
    std::fs::write(file("certificate"), certificate.unwrap().pem()).unwrap();
    std::fs::write(file("key"), key.serialize_pem()).unwrap();
    let tls = TlsSettings { certificate: file("certificate"), key: file("key"), client_ca: None };

    let mut collector = Collector::start(200, 0, Some(Tls::load(tls).unwrap()));
    let sent = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "telemetry::otlp::tests::a_collector_behind_tls_is_sent_the_headers_of_the_environment"])
        .env("TALLYGATE_TEST_COLLECTOR", collector.url())
        .env("SSL_CERT_FILE", file("authority"))
        .env("OTEL_EXPORTER_OTLP_HEADERS", "x-api-key=secret")
        .env("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
        .env("OTEL_SERVICE_NAME", "gate")
        .output()
        .await
        .unwrap();
    assert!(sent.status.success(), "{}", String::from_utf8_lossy(&sent.stdout));
    let received = collector.next().await;
    assert_eq!(received.headers["x-api-key"], "secret");
    let resource = received.request.resource_spans[0].resource.clone().unwrap();
    assert!(texts(&resource.attributes).contains(&("service.name", "gate")), "{resource:?}");
    assert_eq!(received.spans().len(), 1);
}
