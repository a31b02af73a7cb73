//! What the log says: every change of a store once, never a password, where the server listens, and whose token was used.

use std::fmt::{Debug, Write};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tallygate_server::listen::Listener;
use tallygate_server::store::{ServedStore, StoreSpec};
use tallygate_server::{Listeners, Settings, Token};
use tallygate_testkit::{Server, http};
use tokio::time::timeout;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::DefaultGuard;
use tracing::{Event, Metadata, Subscriber};

const PATIENCE: Duration = Duration::from_secs(20);

/// Keeps every event as one line.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let _ = write!(self.0, " {field}={value:?}");
    }
}

impl Subscriber for Log {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(event.metadata().level().to_string());
        event.record(&mut line);
        self.0.lock().expect("no writer panics").push(line.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// The log of this thread.
fn log() -> (Log, DefaultGuard) {
    // Tracing caches for each statement whether a subscriber wants it. While there is only one subscriber, the first thread
    // decides, and tests on other threads have none: a subscriber of the whole process that wants everything stands in.
    let _ = tracing::subscriber::set_global_default(tracing_subscriber::registry());
    let log = Log::default();
    let guard = tracing::subscriber::set_default(log.clone());
    (log, guard)
}

/// Only the banner said where a server listens, and a log pipeline does not read it.
#[tokio::test(flavor = "current_thread")]
async fn every_listener_is_logged_with_its_address() {
    let (log, _guard) = log();
    let listener = || Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let (http, grpc) = (listener(), listener());
    let addresses = [("http", http.local_addr()), ("grpc", grpc.local_addr())];
    let settings = Settings { notice: Duration::ZERO, ..Settings::default() };
    let listeners = Listeners { http: Some(http), grpc: Some(grpc), admin: None };
    tallygate_server::run(settings, listeners, std::future::ready(())).await.unwrap();
    let lines = log.0.lock().unwrap();
    let listening: Vec<&String> = lines.iter().filter(|line| line.contains("message=listening")).collect();
    assert_eq!(listening.len(), 2, "{lines:#?}");
    for (line, (name, address)) in listening.iter().zip(addresses) {
        assert!(line.contains(&format!("listener=\"{name}\"")) && line.contains(&address.to_string()), "{line}");
    }
}

/// An operator must see in the log who did it.
#[tokio::test(flavor = "current_thread")]
async fn resets_deletions_and_admin_requests_are_logged_with_the_name_of_the_token_and_not_the_token() {
    let (log, _guard) = log();
    let listener = || Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let (http, admin) = (listener(), listener());
    let (http_addr, admin_addr) = (http.local_addr(), admin.local_addr());
    let token = Token::new("prometheus:read:0123456789abcdef\nci:operate:fedcba9876543210\n").unwrap();
    let settings = Settings { notice: Duration::ZERO, token: Some(token), ..Settings::default() };
    let listeners = Listeners { http: Some(http), grpc: None, admin: Some(admin) };
    let calls = tokio::task::spawn_blocking(move || {
        let headers = [("authorization", "Bearer fedcba9876543210"), ("content-type", "application/json")];
        let ask = |addr, method, path, body| http::request(addr, method, path, &headers, body).status;
        let reset = ask(http_addr, "POST", "/v1/reset", br#"{"key": "a", "limit": "5/s"}"#);
        let deletion = ask(http_addr, "DELETE", "/v1/counters/visits", b"");
        let reload = ask(admin_addr, "POST", "/-/reload", b"");
        assert_eq!([reset, deletion, reload], [200, 200, 200]);
    });
    tallygate_server::run(settings, listeners, async { calls.await.unwrap() }).await.unwrap();
    let lines = log.0.lock().unwrap();
    let named: Vec<&String> = lines.iter().filter(|line| line.contains("token=\"ci\"")).collect();
    let said = ["reset requested", "deletion of a counter requested", "path=\"/-/reload\""];
    assert_eq!(named.len(), said.len(), "{lines:#?}");
    for (line, said) in named.iter().zip(said) {
        assert!(line.contains(said), "{line}");
    }
    assert!(lines.iter().all(|line| !line.contains("fedcba9876543210")), "{lines:#?}");
}

// On one thread, so that this log is also that of the tasks.
#[tokio::test(flavor = "current_thread")]
async fn every_change_is_one_line_and_no_line_has_the_password() {
    let (log, _guard) = log();
    let server = Server::redis().password("hunter2").start();
    server.kill();
    // In its place a listener that hangs up: after the fourth time, three failed attempts have been logged or suppressed.
    let rude = std::net::TcpListener::bind(server.addr()).unwrap();
    let hung_up = tokio::task::spawn_blocking(move || (0..4).for_each(|_| drop(rude.accept().unwrap())));
    let spec = StoreSpec {
        deadline: Duration::from_millis(100),
        audit_every: Duration::ZERO,
        ..StoreSpec::new(&server.url())
    };
    let store = ServedStore::start(spec).unwrap();
    let mut changes = store.subscribe();
    let mut reach = async |up: bool| {
        timeout(PATIENCE, changes.wait_for(|condition| condition.is_ok() == up)).await.unwrap().unwrap();
    };
    timeout(PATIENCE, hung_up).await.unwrap().unwrap();
    server.restart();
    reach(true).await;
    server.kill();
    reach(false).await;
    server.restart();
    reach(true).await;

    let mut lines = log.0.lock().unwrap().clone();
    assert!(lines.iter().all(|line| !line.contains("hunter2")), "{lines:#?}");
    // What the watch finds in a server without settings is another test's.
    lines.retain(|line| line.contains("message=the store is"));
    let reported: Vec<&str> = lines.iter().map(|line| line.split(' ').next().unwrap()).collect();
    assert_eq!(reported, ["WARN", "INFO", "WARN", "INFO"], "{lines:#?}");
    assert!(lines[0].contains("the store is down") && lines[0].contains(&server.addr().to_string()), "{lines:#?}");
    assert!(lines[3].contains("up again") && lines[3].contains("down_ms="), "{lines:#?}");
}

/// A server that evicts was reported only after it had lost keys, by the next audit.
#[tokio::test(flavor = "current_thread")]
async fn findings_are_warned_of_at_start_once_each_with_their_remedy_and_without_secrets() {
    let (log, _guard) = log();
    let server = Server::redis().password("hunter2").arg("--maxmemory-policy", "allkeys-lru").start();
    server.command(&["SET", "tallygate:{secret-subject}:api:tb", "x"]).ok();
    let spec = StoreSpec { deadline: Duration::from_millis(100), ..StoreSpec::new(&server.url()) };
    let store = ServedStore::start(spec).unwrap();
    let mut watched = store.watched();
    timeout(PATIENCE, watched.wait_for(|seen| seen.chargeable == 1)).await.unwrap().unwrap();
    // Two more charges, so that a finding that is repeated would be seen.
    for _ in 0..2 {
        timeout(PATIENCE, watched.changed()).await.unwrap().unwrap();
    }
    let lines = log.0.lock().unwrap().clone();
    let of = |words: &str| lines.iter().filter(|line| line.contains(words)).collect::<Vec<_>>();
    let [eviction] = of("check=\"eviction_policy\"")[..] else { panic!("{lines:#?}") };
    assert!(eviction.starts_with("WARN") && eviction.contains("CONFIG SET maxmemory-policy noeviction"), "{eviction}");
    assert!(of("hunter2").is_empty() && of("secret-subject").is_empty(), "{lines:#?}");
}
