//! Calls as Envoy makes them: over a socket, by the generated client. Inside the crate, because policies are built in code.

mod bounds;
mod health_reflection;
mod holds;
mod hung_store;
mod json;
mod refusals;
mod statuses;

use std::net::SocketAddr;
use std::sync::Arc;

use tallygate::MemoryStore;
use tallygate::clock::{ManualClock, Timestamp};
use tallygate::policy::{Domain, Mode, Policy, PolicySet, Rule, Want};
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::transport::Channel;

use crate::accept::{ListenSettings, ListenStats, Listener};
use crate::app::App;
use crate::http::serve;
use crate::metrics::Sources;
use crate::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use crate::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use crate::proto::envoy::service::ratelimit::v3::rate_limit_response::Code;
use crate::proto::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use crate::proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use crate::settings::Settings;
use crate::store::ServedStore;
use crate::token::Refunds;

/// A policy of domain `edge`.
fn policy(name: &str, limit: &str) -> Policy {
    Policy::new(name, "edge", limit).unwrap()
}

/// Counts each value of this entry apart, and applies where there is one.
fn by(key: &str) -> Rule {
    Rule::new().partition(key)
}

/// Applies where an entry has this value.
fn when(key: &str, value: &str) -> Rule {
    Rule::new().when(key, Want::one_of([value]))
}

/// What most tests ask about.
fn common_policies() -> Vec<(Policy, Rule)> {
    vec![
        (policy("per-user", "3/min fixed_window"), by("user")),
        (policy("login", "1/90s fixed_window"), when("path", "/login")),
        (policy("watched", "1/h fixed_window").with_mode(Mode::Shadow), by("watched")),
        (policy("free", "5/day").with_mode(Mode::Quota).with_metadata(Some(r#"{"tier":"free"}"#.into())), by("free")),
        (policy("paid", "1/7d").with_mode(Mode::Quota).with_metadata(Some(r#"{"tier":"paid"}"#.into())), by("paid")),
        (Policy::unlimited("staff", "edge").unwrap(), when("role", "staff")),
        (policy("nobody", "0/s"), when("role", "nobody")),
        (policy("tight", "2/min fixed_window"), by("both")),
        (policy("wide", "9/h fixed_window"), by("both")),
    ]
}

fn app(store: impl Into<ServedStore>, policies: Vec<(Policy, Rule)>) -> Arc<App> {
    let set = PolicySet::new(vec![Domain::new("edge", policies).unwrap()]).unwrap();
    App::new(store.into(), set, &Settings { refunds: Some(Refunds::Open), ..Settings::default() })
}

/// The embedded store with a clock that stands still, ten seconds into a minute, an hour and a day.
fn still_store() -> MemoryStore {
    let day = 86_400 * 1_000_000;
    MemoryStore::builder().clock(ManualClock::new(Timestamp::from_micros(20_000 * day + 10_000_000))).build()
}

/// A server on a free port, stopped when dropped.
struct Served {
    app: Arc<App>,
    addr: SocketAddr,
    _stop: DropGuard,
}

impl Served {
    fn new(app: Arc<App>) -> Self {
        Self::with(app, &ListenSettings::default())
    }

    fn with(app: Arc<App>, settings: &ListenSettings) -> Self {
        let listener = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let (addr, stop, settings) = (listener.local_addr(), CancellationToken::new(), settings.clone());
        let (router, shutdown) = (super::router(Arc::clone(&app)), stop.clone());
        tokio::spawn(async move {
            serve(listener, "grpc", router, &settings, None, shutdown, Arc::new(ListenStats::default())).await
        });
        Self { app, addr, _stop: stop.drop_guard() }
    }

    /// With the policies that most tests ask about, and a clock that stands still.
    fn common() -> Self {
        Self::new(app(still_store(), common_policies()))
    }

    async fn channel(&self) -> Channel {
        Channel::from_shared(format!("http://{}", self.addr)).unwrap().connect().await.unwrap()
    }

    async fn client(&self) -> RateLimitServiceClient<Channel> {
        RateLimitServiceClient::new(self.channel().await)
    }

    async fn ask(&self, request: RateLimitRequest) -> RateLimitResponse {
        self.client().await.should_rate_limit(request).await.unwrap().into_inner()
    }

    /// Asks about one descriptor after the other, all in one request.
    async fn ask_about(&self, descriptors: &[RateLimitDescriptor]) -> RateLimitResponse {
        self.ask(request(descriptors.to_vec())).await
    }
}

fn request(descriptors: Vec<RateLimitDescriptor>) -> RateLimitRequest {
    RateLimitRequest { domain: "edge".to_owned(), descriptors, hits_addend: 0 }
}

fn descriptor(entries: &[(&str, &str)]) -> RateLimitDescriptor {
    let entry = |(key, value): &(&str, &str)| Entry { key: (*key).to_owned(), value: (*value).to_owned() };
    RateLimitDescriptor { entries: entries.iter().map(entry).collect(), ..Default::default() }
}

/// The overall code, then that of each descriptor.
fn codes(response: &RateLimitResponse) -> Vec<Code> {
    let statuses = response.statuses.iter().map(|status| status.code());
    [response.overall_code()].into_iter().chain(statuses).collect()
}

fn header<'r>(response: &'r RateLimitResponse, name: &str) -> Option<&'r str> {
    assert!(response.response_headers_to_add.iter().all(|header| header.raw_value.is_empty()), "Envoy drops those");
    let mut found = response.response_headers_to_add.iter().filter(|header| header.key == name);
    found.next().map(|header| header.value.as_str())
}

/// The body of a refusal.
fn problem(response: &RateLimitResponse) -> serde_json::Value {
    serde_json::from_slice(&response.raw_body).unwrap()
}

/// How many calls that came in so were allowed, denied, could not be decided, or made no sense, as operators see it.
fn calls(app: &Arc<App>, api: &str) -> [u64; 4] {
    let sources = Sources { app: Arc::clone(app), listeners: Arc::default(), traces: None };
    let page = sources.render();
    ["allowed", "denied", "unavailable", "invalid"].map(|outcome| {
        let name = format!("tallygate_calls_total{{api=\"{api}\",outcome=\"{outcome}\"}} ");
        page.lines().find_map(|line| line.strip_prefix(&name)).unwrap().parse().unwrap()
    })
}
