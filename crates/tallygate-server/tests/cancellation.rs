//! Callers that leave: connections are cut at every stage of an HTTP call, and gRPC calls are cancelled at every poll or run into
//! their deadlines. What was denied is not charged, and nothing is left half done.

use std::cell::RefCell;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use serde_json::{Map, Value, json};
use tallygate::Cost;
use tallygate::call::Verb;
use tallygate::policy::Descriptor;
use tallygate_server::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use tallygate_server::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use tallygate_server::proto::envoy::service::ratelimit::v3::RateLimitRequest;
use tallygate_server::proto::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use tallygate_server::store::StoreSpec;
use tallygate_server::{Listeners, Settings, Token};
use tallygate_testkit::cancellation::{Case, Matrix, Scene, States, Then, drop_after, every_key_expires, wait, yaml};
use tallygate_testkit::http::{self, Client};
use tallygate_testkit::wait::PATIENCE;
use tallygate_testkit::{Cluster, Flavour, Server};
use tempfile::TempDir;
use tonic::transport::Channel;

use crate::support::running::Running;
use crate::support::served::{TOKEN, bearer, body};

/// A server with the policies of scenes, on whatever store.
struct Rig {
    running: Running,
    scenes: Vec<Arc<Scene>>,
    _folder: TempDir,
}

impl Rig {
    fn start(store: &str, scenes: Vec<Arc<Scene>>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("policies.yaml");
        std::fs::write(&file, yaml(&scenes)).unwrap();
        let settings = Settings {
            policies: Some(file),
            token: Some(Token::new(TOKEN).unwrap()),
            notice: Duration::ZERO,
            // Calls end because their callers leave, and for no other reason.
            store: StoreSpec { deadline: PATIENCE, ..StoreSpec::new(store) },
            ..Settings::default()
        };
        let running = Running::start(settings, |grpc| Listeners { grpc: Some(grpc), ..Listeners::default() });
        tallygate_testkit::wait::until("the store to be there", PATIENCE, || {
            (http::request(running.http, "GET", "/readyz", &[], b"").status == 200).then_some(())
        });
        Self { running, scenes, _folder: folder }
    }

    fn matrix(&self) -> Matrix<Asked> {
        Matrix::new(Asked(RefCell::new(Client::open(self.running.http).unwrap()))).that_cancels_reservations()
    }

    /// Cuts calls of every verb at every stage.
    fn cut_http(&self, matrix: &mut Matrix<Asked>) {
        for cut in Cut::all() {
            for scene in &self.scenes {
                for verb in Verb::ALL {
                    matrix.call(scene, *verb, &format!("{cut:?}"), |case| cut.make(self.running.http, case));
                }
            }
        }
    }

    fn grpc(&self) -> RateLimitServiceClient<Channel> {
        let channel = Channel::from_shared(format!("http://{}", self.running.other)).unwrap();
        RateLimitServiceClient::new(wait(channel.connect()).unwrap())
    }

    /// Cancels calls at every poll, and lets others run into deadlines.
    fn cut_grpc(&self, matrix: &mut Matrix<Asked>) {
        let client = self.grpc();
        matrix.every_poll(&self.scenes, GRPC_VERBS, |case, polls, every| {
            let mut client = client.clone();
            let answered = drop_after(client.should_rate_limit(request(case)), polls, every);
            let answered = answered.map(|answer| answer.unwrap()).is_some();
            (
                if polls == 0 {
                    Then::Before
                } else if answered {
                    Then::After
                } else {
                    Then::Either
                },
                answered,
            )
        });
        for micros in [100, 300, 500, 1000, 2000, 5000, 20_000] {
            for scene in &self.scenes {
                for verb in GRPC_VERBS {
                    let how = format!("a deadline of {micros} us");
                    matrix.call(scene, *verb, &how, |case| with_deadline(&client, case, Duration::from_micros(micros)));
                }
            }
        }
    }
}

/// What Envoy's protocol can ask for.
const GRPC_VERBS: &[Verb] = &[Verb::Check, Verb::Peek, Verb::Refund];

fn request(case: &Case) -> RateLimitRequest {
    let entry = |(key, value): &(String, String)| Entry { key: key.clone(), value: value.clone() };
    let hits = if case.verb() == Verb::Peek { 0 } else { case.cost().get() };
    let descriptor = RateLimitDescriptor {
        entries: case.descriptor().entries().iter().map(entry).collect(),
        limit: None,
        hits_addend: Some(hits),
        is_negative_hits: case.verb() == Verb::Refund,
    };
    RateLimitRequest { domain: case.scene().domain().to_owned(), descriptors: vec![descriptor], hits_addend: 0 }
}

/// Client and server give up at the deadline, whichever comes first.
fn with_deadline(client: &RateLimitServiceClient<Channel>, case: &Case, deadline: Duration) -> Then {
    let mut request = tonic::Request::new(request(case));
    request.set_timeout(deadline);
    let _ = wait(client.clone().should_rate_limit(request));
    Then::Either
}

/// When the caller leaves.
#[derive(Debug, Clone, Copy)]
enum Cut {
    BeforeSending,
    AfterTheHeaders,
    AmidTheBody,
    /// After the last byte, and so much later.
    Later(Duration),
    Answered,
}

impl Cut {
    fn all() -> impl Iterator<Item = Self> {
        let later = [0, 200, 500, 1000, 2000, 4000].map(|micros| Self::Later(Duration::from_micros(micros)));
        [Self::BeforeSending, Self::AfterTheHeaders, Self::AmidTheBody, Self::Answered].into_iter().chain(later)
    }

    fn make(self, addr: SocketAddr, case: &Case) -> Then {
        let (path, body) = (format!("/v1/{}", case.verb().name()), question(case, &case.descriptor(), case.cost()));
        // A reservation has units.
        let body = if case.verb() == Verb::Reserve { body.replace("\"cost\":", "\"units\":") } else { body };
        let headers = [("content-type", "application/json"), bearer()];
        if let Self::Answered = self {
            http::request(addr, "POST", &path, &headers, body.as_bytes());
            return Then::After;
        }
        let mut stream = TcpStream::connect(addr).unwrap();
        stream.set_nodelay(true).unwrap();
        if let Self::BeforeSending = self {
            return Then::Before;
        }
        let headers = headers.map(|(name, value)| format!("{name}: {value}\r\n")).concat();
        let head = format!("POST {path} HTTP/1.1\r\nhost: {addr}\r\n{headers}content-length: {}\r\n\r\n", body.len());
        stream.write_all(head.as_bytes()).unwrap();
        let sent = match self {
            Self::AfterTheHeaders => "",
            Self::AmidTheBody => &body[..body.len() / 2],
            _ => &body,
        };
        stream.write_all(sent.as_bytes()).unwrap();
        match self {
            Self::Later(delay) => {
                if !delay.is_zero() {
                    thread::sleep(delay);
                }
                Then::Either
            }
            _ => Then::Before,
        }
    }
}

fn question(case: &Case, descriptor: &Descriptor, cost: Cost) -> String {
    let entries = descriptor.entries().iter().map(|(key, value)| (key.clone(), Value::from(value.as_str())));
    let entries: Map<String, Value> = entries.collect();
    json!({"domain": case.scene().domain(), "descriptors": [entries], "cost": cost.get()}).to_string()
}

/// States as callers see them.
struct Asked(RefCell<Client>);

impl Asked {
    fn post(&self, path: &str, case: &Case, descriptor: &Descriptor, cost: Cost) -> Value {
        let question = question(case, descriptor, cost);
        let headers = [("content-type", "application/json")];
        body(&self.0.borrow_mut().request("POST", path, &headers, question.as_bytes()).unwrap())
    }
}

impl States for Asked {
    fn charge(&self, case: &Case, place: usize, units: Cost) {
        let answer = self.post("/v1/check", case, &case.descriptor_of(place), units);
        assert_eq!(answer["statuses"][0]["allowed"], true, "{case:?} cannot be prepared: {answer}");
    }

    fn used(&self, case: &Case) -> Vec<u64> {
        let answer = self.post("/v1/peek", case, &case.descriptor(), Cost::ONE);
        let statuses = answer["statuses"].as_array().unwrap_or_else(|| panic!("{answer}"));
        let used = statuses.iter().zip(case.capacities()).map(|(status, capacity)| {
            assert!(matches!(status["source"].as_str(), Some("store" | "zero_limit")), "{answer}");
            capacity - status["remaining"].as_u64().unwrap()
        });
        used.collect()
    }
}

/// For the client: the servers have threads of their own.
fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

fn over_http_and_grpc(store: &str, servers: &[Server], scenes: Vec<Arc<Scene>>) {
    let runtime = runtime();
    let _entered = runtime.enter();
    let rig = Rig::start(store, scenes);
    let mut matrix = rig.matrix();
    rig.cut_http(&mut matrix);
    rig.cut_grpc(&mut matrix);
    let summary = matrix.judge();
    assert!(summary.dropped > 20, "too few calls were dropped under way: {summary:?}");
    assert!(servers.is_empty() || every_key_expires(servers) > 100);
}

#[test]
fn in_memory() {
    over_http_and_grpc("memory", &[], Scene::generate(21, 5));
}

#[test]
fn on_one_server() {
    let server = Server::redis().start();
    over_http_and_grpc(&server.url(), std::slice::from_ref(&server), Scene::generate(22, 5));
}

#[test]
fn on_a_cluster() {
    let cluster = Cluster::start(Flavour::Redis, 3, 0);
    over_http_and_grpc(&cluster.url(), cluster.nodes(), Scene::generate(23, 15));
}

/// While one master hangs, calls are under way for as long as it takes.
#[test]
fn on_a_cluster_with_a_master_that_hangs() {
    let runtime = runtime();
    let _entered = runtime.enter();
    let cluster = Cluster::start(Flavour::Redis, 3, 0);
    let rig = Rig::start(&cluster.url(), Scene::generate(24, 20));
    let (mut matrix, client) = (rig.matrix(), rig.grpc());
    let scenes = || rig.scenes.iter().filter(|scene| scene.has_several_subjects());
    for master in cluster.nodes() {
        let calls: Vec<_> = scenes().flat_map(|scene| Verb::ALL.iter().map(move |verb| (scene, *verb))).collect();
        let how = |by: &str| format!("{} hangs, {by}", master.addr());
        let cut = Cut::Later(Duration::from_millis(1));
        matrix.together(&calls, &how("by HTTP"), || master.stop(), |case| cut.make(rig.running.http, case));
        master.cont();
        // As Envoy asks, if nobody tells it otherwise.
        let calls: Vec<_> = scenes().map(|scene| (scene, Verb::Check)).collect();
        let envoys = Duration::from_millis(20);
        matrix.together(&calls, &how("by gRPC"), || master.stop(), |case| with_deadline(&client, case, envoys));
        master.cont();
    }
    let summary = matrix.judge_each_state();
    assert!(summary.dropped > 20, "too few calls were dropped under way: {summary:?}");
    assert!(every_key_expires(cluster.nodes()) > 100);
}
