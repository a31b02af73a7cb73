//! Common mistakes, each reported once with its remedy.

use std::convert::Infallible;
use std::fmt::{self, Write as _};
use std::net::SocketAddr;
use std::process::Command;
use std::sync::{Arc, Mutex, Once};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use tallygate::policy::{Descriptor, PolicySet};
use tallygate::{MemoryStore, Store};
use tallygate_testkit::FaultyStore;
use tallygate_tower::{Caller, RateLimit, Rule, Trust};
use tower::util::ServiceExt;
use tower::{Layer as _, service_fn};
use tracing::subscriber::DefaultGuard;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, SubscriberExt};

/// What was logged on this thread.
struct Heard {
    lines: Arc<Mutex<Vec<(Level, String)>>>,
    _guard: DefaultGuard,
}

struct Ear(Arc<Mutex<Vec<(Level, String)>>>);

struct Text(String);

impl tracing::field::Visit for Text {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            write!(self.0, "{value:?}").unwrap();
        }
    }
}

impl<S: Subscriber> tracing_subscriber::Layer<S> for Ear {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        if event.metadata().target().starts_with("tallygate_tower") {
            let mut text = Text(String::new());
            event.record(&mut text);
            self.0.lock().unwrap().push((*event.metadata().level(), text.0));
        }
    }
}

/// Tracing remembers for each statement whether a subscriber wants it. While there is only one subscriber, it asks that
/// of the thread which comes by first, and tests on other threads have none: a subscriber of the whole process that
/// wants everything stands in for them.
static PROCESS: Once = Once::new();

impl Heard {
    fn listen() -> Self {
        PROCESS.call_once(|| tracing::subscriber::set_global_default(tracing_subscriber::registry()).unwrap());
        let lines = Arc::default();
        let ear = Ear(Arc::clone(&lines));
        let guard = tracing::subscriber::set_default(tracing_subscriber::registry().with(ear));
        Self { lines, _guard: guard }
    }

    fn lines(&self) -> Vec<(Level, String)> {
        self.lines.lock().unwrap().clone()
    }

    #[track_caller]
    fn only(&self) -> (Level, String) {
        let lines = self.lines();
        let [line] = &lines[..] else { panic!("{lines:#?}") };
        line.clone()
    }
}

async fn send<S: Store + 'static>(layer: &RateLimit<S>, request: Request<()>) -> u16 {
    let service = layer.layer(service_fn(|_: Request<()>| async {
        Ok::<_, Infallible>(Response::new(Full::new(Bytes::from_static(b"served"))))
    }));
    service.oneshot(request).await.unwrap().status().as_u16()
}

fn from(peer: &str) -> Request<()> {
    Request::builder().extension(SocketAddr::new(peer.parse().unwrap(), 1234)).body(()).unwrap()
}

fn forwarded(peer: &str, header: &'static str, value: &str) -> Request<()> {
    let mut request = from(peer);
    request.headers_mut().insert(header, value.parse().unwrap());
    request
}

fn wide() -> RateLimit {
    RateLimit::per_client("1000000/min").unwrap()
}

fn trusting(proxies: &str) -> RateLimit {
    wide().trust(Trust { proxies: proxies.parse().unwrap(), ..Trust::default() })
}

#[tokio::test]
async fn without_a_peer_callers_share_one_limit_and_the_log_has_the_line_that_helps() {
    let heard = Heard::listen();
    let layer = RateLimit::per_client("2/min").unwrap();
    let mut statuses = Vec::new();
    for _ in 0..4 {
        statuses.push(send(&layer, Request::new(())).await);
    }
    assert_eq!(statuses, [200, 200, 429, 429]);
    let (level, line) = heard.only();
    assert_eq!(level, Level::ERROR);
    assert!(line.contains("app.into_make_service_with_connect_info::<SocketAddr>()"), "{line}");
    assert!(line.contains("RateLimit::peer"), "{line}");
    // A caller with an address is not one of them.
    assert_eq!(send(&layer, from("192.0.2.1")).await, 200);
}

/// Set in the child process, which has no subscriber.
const CHILD: &str = "TALLYGATE_TEST_WITHOUT_SUBSCRIBER";

/// Without a `tracing` subscriber nothing said that all callers share one limit.
#[test]
fn without_a_peer_and_without_a_subscriber_one_line_on_stderr_has_the_remedy() {
    if std::env::var_os(CHILD).is_some() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let layer = RateLimit::per_client("2/min").unwrap();
        for status in [200, 200, 429, 429] {
            assert_eq!(runtime.block_on(send(&layer, Request::new(()))), status);
        }
        return;
    }
    let this = "diagnostics::without_a_peer_and_without_a_subscriber_one_line_on_stderr_has_the_remedy";
    let mut child = Command::new(std::env::current_exe().unwrap());
    let output = child.args(["--exact", this, "--nocapture"]).env(CHILD, "1").output().unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && stdout.contains("1 passed"), "{stdout}{stderr}");
    let lines: Vec<&str> = stderr.lines().filter(|line| line.starts_with("tallygate-tower: ")).collect();
    let [line] = lines[..] else { panic!("{stderr}") };
    assert!(line.contains("app.into_make_service_with_connect_info::<SocketAddr>()"), "{line}");
}

#[tokio::test]
async fn clones_and_services_of_a_layer_say_it_once_together() {
    let heard = Heard::listen();
    let layer = wide();
    for layer in [&layer, &layer.clone(), &layer.clone().skip(|_| false)] {
        send(layer, Request::new(())).await;
    }
    heard.only();
}

#[tokio::test]
async fn the_peer_is_not_missed_where_nobody_asks_for_it() {
    let heard = Heard::listen();
    let layer = RateLimit::new().rule(Rule::new("r", "9/min").unwrap().by(Caller::header("x-api-key")));
    send(&layer, Request::new(())).await;
    assert_eq!(heard.lines(), []);
}

#[tokio::test]
async fn a_forwarded_header_that_nobody_is_trusted_with_is_named_once() {
    for header in ["x-forwarded-for", "forwarded"] {
        let heard = Heard::listen();
        let layer = wide();
        for _ in 0..3 {
            send(&layer, forwarded("192.0.2.1", header, "203.0.113.7")).await;
        }
        let (level, line) = heard.only();
        assert!(level == Level::WARN && line.contains("RateLimit::trust"), "{line}");
    }
}

#[tokio::test]
async fn a_trusted_proxy_is_nothing_to_warn_of() {
    let heard = Heard::listen();
    let layer = trusting("10.0.0.0/8");
    for _ in 0..1500 {
        send(&layer, forwarded("10.0.0.1", "x-forwarded-for", "203.0.113.7")).await;
    }
    assert_eq!(heard.lines(), []);
}

#[tokio::test]
async fn a_proxy_outside_the_trusted_networks_is_named_once() {
    let heard = Heard::listen();
    let layer = trusting("172.16.0.0/12");
    // A public client may send any header.
    send(&layer, forwarded("192.0.2.1", "x-forwarded-for", "203.0.113.7")).await;
    assert_eq!(heard.lines(), []);
    for _ in 0..3 {
        send(&layer, forwarded("10.0.0.1", "x-forwarded-for", "203.0.113.7")).await;
    }
    let (level, line) = heard.only();
    assert!(level == Level::WARN && line.contains("10.0.0.1") && line.contains("RateLimit::trust"), "{line}");
}

#[tokio::test]
async fn a_trusted_proxy_that_writes_another_header_is_named_once() {
    let heard = Heard::listen();
    let layer = trusting("10.0.0.0/8");
    for _ in 0..3 {
        send(&layer, forwarded("10.0.0.1", "x-real-ip", "203.0.113.7")).await;
    }
    let (level, line) = heard.only();
    assert!(level == Level::WARN && line.contains("x-real-ip") && line.contains("Trust::header"), "{line}");
}

#[tokio::test]
async fn a_layer_that_limits_nothing_says_so_once() {
    let set: Arc<PolicySet> = PolicySet::default().into();
    let nothing = [RateLimit::new(), RateLimit::new().policies(set, "api", |_| Descriptor::new())];
    for (layer, remedy) in nothing.into_iter().zip(["RateLimit::rule", "RateLimit::policies"]) {
        let heard = Heard::listen();
        for _ in 0..3 {
            send(&layer, from("192.0.2.1")).await;
        }
        let (level, line) = heard.only();
        assert!(level == Level::ERROR && line.contains(remedy), "{line}");
    }
}

/// Each rule that counts addresses, and each refusal, counted a call again.
#[tokio::test]
async fn a_call_is_looked_at_once() {
    let by_address = |name: &str, limit: &str| Rule::new(name, limit).unwrap();
    let layers = [
        RateLimit::per_client("1/h").unwrap(),
        RateLimit::new().rule(by_address("one", "9/h")).rule(by_address("other", "9/h")),
    ];
    for layer in layers {
        let heard = Heard::listen();
        for _ in 0..999 {
            send(&layer, from("10.0.0.1")).await;
        }
        assert_eq!(heard.lines(), []);
        send(&layer, from("10.0.0.1")).await;
        heard.only();
    }
}

#[tokio::test]
async fn a_store_that_goes_away_is_named_once_however_often_it_comes_back() {
    let heard = Heard::listen();
    let store = FaultyStore::new(MemoryStore::new());
    let switch = store.switch();
    let layer = wide().store(store);
    for works in [true, false, false, true, false, true] {
        if works {
            switch.on()
        } else {
            switch.off()
        }
        send(&layer, from("192.0.2.1")).await;
    }
    let (level, line) = heard.only();
    assert!(level == Level::WARN && line.contains("on_error"), "{line}");
}

#[tokio::test]
async fn a_thousand_calls_of_one_private_address_look_like_a_proxy() {
    let heard = Heard::listen();
    let layer = wide();
    for _ in 0..999 {
        send(&layer, from("10.0.0.1")).await;
    }
    assert_eq!(heard.lines(), []);
    for _ in 0..1500 {
        send(&layer, from("10.0.0.1")).await;
    }
    let (level, line) = heard.only();
    assert!(level == Level::WARN && line.contains("one private address"), "{line}");
}

#[tokio::test]
async fn other_callers_are_proof_that_it_is_none() {
    for other in ["10.0.0.2", "192.0.2.1"] {
        let heard = Heard::listen();
        let layer = wide();
        // Such as the probes of a load balancer among calls that come directly.
        for _ in 0..1500 {
            send(&layer, from("10.0.0.1")).await;
            send(&layer, from(other)).await;
        }
        assert_eq!(heard.lines(), [], "{other}");
    }
}

#[tokio::test]
async fn a_public_address_may_call_as_often_as_it_likes() {
    let heard = Heard::listen();
    let layer = wide();
    for _ in 0..1500 {
        send(&layer, from("192.0.2.1")).await;
    }
    assert_eq!(heard.lines(), []);
}

#[tokio::test]
async fn trust_in_everybody_is_named_once() {
    for everybody in ["0.0.0.0/0", "10.0.0.0/8, ::/0"] {
        let heard = Heard::listen();
        let layer = trusting(everybody);
        for _ in 0..3 {
            send(&layer, forwarded("192.0.2.1", "x-forwarded-for", "203.0.113.7")).await;
        }
        let (level, line) = heard.only();
        assert!(level == Level::WARN && line.contains("trust only your proxies"), "{line}");
    }
}
