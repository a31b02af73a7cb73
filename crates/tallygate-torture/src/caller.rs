//! Callers: each makes one call after the other, through the library or through the server, and some hang up.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use serde_json::{Value, json};
use tallygate::call::{Call as Asked, Verb};
use tallygate::policy::Mode;
use tallygate::store::StoreErrorKind;
use tallygate::{Check, Cost, Decision, Key, StoreError};
use tallygate_redis::RedisStore;
use tallygate_testkit::random::Random;
use tokio::sync::RwLock;
use tokio::time::{sleep, timeout};

use crate::grpc::{Code, GrpcClient};
use crate::history::{Call, End, Instead, Part, Recorder, Seen};
use crate::served::HttpClient;
use crate::world::World;

/// What callers and faults share.
#[derive(Debug)]
pub struct Scene {
    /// The processes.
    pub world: World,
    /// What happened.
    pub recorder: Recorder,
    /// A caller holds it during a call. A fault that needs all calls to have ended takes it for itself.
    pub gate: RwLock<()>,
    /// Callers stop.
    pub over: AtomicBool,
}

/// When a caller leaves.
#[derive(Debug, Clone, Copy)]
pub enum Leaving {
    /// With the answer.
    Never,
    /// After its future was polled so often.
    Polls(u64),
    /// After this time.
    After(Duration),
}

impl Leaving {
    /// For a caller that leaves before its answer.
    pub fn early(random: &mut Random) -> Self {
        if random.chance(40) {
            Self::Polls(random.between(1, 4))
        } else {
            Self::After(Duration::from_micros(random.spread(1, 5000)))
        }
    }
}

/// What a call asks.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Its checks.
    pub parts: Vec<Part>,
    /// The units of each.
    pub cost: u64,
    /// The descriptors for the server.
    pub descriptors: Vec<Value>,
    /// When the caller leaves.
    pub leaving: Leaving,
}

/// A call of the load.
pub fn plan(world: &World, random: &mut Random) -> Plan {
    let load = &world.schedule.load;
    let cluster = world.schedule.world.is_cluster();
    let several =
        if load.subjects_per_call > 1 && random.chance(30) { random.between(2, load.subjects_per_call) } else { 1 };
    let usable: Vec<usize> =
        (0..load.subjects).filter(|subject| !cluster || (subject % 2 == 1) == (several > 1)).collect();
    let preferred = world.preferred.lock().expect("no caller panics").clone();
    let preferred: Vec<usize> = preferred.into_iter().filter(|subject| usable.contains(subject)).collect();
    let mut subjects = Vec::new();
    for _ in 0..several {
        let from = if !preferred.is_empty() && random.chance(90) { &preferred } else { &usable };
        let subject = random.pick(from);
        if !subjects.contains(&subject) {
            subjects.push(subject);
        }
    }
    let most = (32 / subjects.len() as u64).min(load.policies_per_call).max(1);
    let mut policies = Vec::new();
    for _ in 0..random.between(1, most) {
        let policy = usize::try_from(random.between(0, load.limits.len() as u64 - 1)).expect("an index");
        if !policies.contains(&policy) {
            policies.push(policy);
        }
    }
    let smallest = policies.iter().map(|&policy| load.limits[policy].capacity()).min().unwrap_or(1);
    let cost = if random.chance(70) { 1 } else { random.between(1, load.cost) }.min(smallest);
    let mut parts = Vec::new();
    let mut descriptors = Vec::new();
    for &subject in &subjects {
        let mut descriptor = json!({"u": format!("s{subject}")});
        for &policy in &policies {
            parts.push(Part::new(world.key_of(policy, subject), cost));
            descriptor[format!("m{policy}")] = "1".into();
        }
        descriptors.push(descriptor);
    }
    let leaving = if random.chance(load.hang_up) { Leaving::early(random) } else { Leaving::Never };
    Plan { parts, cost, descriptors, leaving }
}

/// A call that the spent state denies, beside states that have much left.
pub fn attack(world: &World, random: &mut Random) -> Plan {
    let spent = world.spent();
    let parts = [spent, spent + 1, spent + 2].map(|key| Part::new(key, 1)).to_vec();
    let descriptors = vec![json!({"a": "attacker"}), json!({"tenant": "acme"})];
    let leaving = if random.chance(90) { Leaving::early(random) } else { Leaving::Never };
    Plan { parts, cost: 1, descriptors, leaving }
}

/// Calls until the round is over.
pub async fn run(scene: Arc<Scene>, mut way: Way, mut random: Random) {
    while !scene.over.load(Ordering::Relaxed) {
        let plan = plan(&scene.world, &mut random);
        {
            let _gate = scene.gate.read().await;
            let call = way.call(&scene, plan, false).await;
            scene.recorder.call(call);
        }
        sleep(Duration::from_micros(random.between(0, scene.world.schedule.load.pause))).await;
    }
}

/// How a caller reaches the store.
#[derive(Debug)]
pub enum Way {
    /// Through the library.
    Library(RedisStore),
    /// Through the server, with the connection that it kept.
    Http(Option<HttpClient>),
    /// Through the server, as Envoy does. Its answers have no instants: they are not compared, but what they charge is.
    Grpc(GrpcClient),
}

impl Way {
    /// Makes a call, and says how it ended.
    pub async fn call(&mut self, scene: &Scene, plan: Plan, flood: bool) -> Call {
        let sent = scene.recorder.now();
        let Plan { mut parts, cost, descriptors, leaving } = plan;
        let end = match self {
            Self::Library(store) => {
                let answer = leave(leaving, ask(store, &scene.world, &parts)).await;
                answer.map_or(End::HungUp, |answer| decided(answer, &mut parts))
            }
            Self::Grpc(client) => match leave(leaving, client.should_rate_limit(&descriptors)).await {
                None => End::HungUp,
                Some(Ok(Code::Error(text))) => End::Failed { kind: format!("grpc: {text}"), may_have_charged: true },
                Some(Ok(code)) => {
                    let (allowed, source) = (code == Code::Ok, "grpc".to_owned());
                    End::Decided { allowed, at: None, split: false, source }
                }
                Some(Err(error)) => End::Failed { kind: format!("grpc: {error}"), may_have_charged: true },
            },
            Self::Http(kept) => {
                let body = json!({"domain": "t", "descriptors": descriptors, "cost": cost}).to_string();
                let answer = leave(leaving, post(kept, scene, "/v1/check", &body)).await;
                match answer {
                    Some(answer) => judged(answer, &scene.world, &mut parts),
                    None => {
                        // Closes the connection.
                        *kept = None;
                        End::HungUp
                    }
                }
            }
        };
        Call { sent, ended: scene.recorder.now(), parts, end, flood }
    }
}

/// Polls a future until it is ready, or its caller leaves.
pub(crate) async fn leave<F: Future>(leaving: Leaving, future: F) -> Option<F::Output> {
    match leaving {
        Leaving::Never => Some(future.await),
        Leaving::After(time) => timeout(time, future).await.ok(),
        Leaving::Polls(most) => {
            let mut future = pin!(future);
            let mut polls = 0;
            std::future::poll_fn(|context| {
                polls += 1;
                match future.as_mut().poll(context) {
                    Poll::Ready(output) => Poll::Ready(Some(output)),
                    Poll::Pending if polls >= most => Poll::Ready(None),
                    Poll::Pending => Poll::Pending,
                }
            })
            .await
        }
    }
}

async fn ask(store: &RedisStore, world: &World, parts: &[Part]) -> Result<Decision, StoreError> {
    let check = |part: &Part| {
        let state = &world.keys[part.key];
        let key = Key::new(&state.policy, &state.subject).expect("short names");
        let check = Check::new(key, &state.limit).cost(Cost::new(part.cost).expect("at least one"));
        // The quota is charged in a second step, if at all.
        if part.key == world.spent() + 2 { check.with_mode(Mode::Quota) } else { check }
    };
    let checks: Vec<Check<'_>> = parts.iter().map(check).collect();
    Asked::new(Verb::Check, &checks).expect("a valid call").ask(store).await
}

fn decided(answer: Result<Decision, StoreError>, parts: &mut [Part]) -> End {
    let decision = match answer {
        Ok(decision) => decision,
        Err(error) => {
            let kind = match error.kind() {
                // Rare, and its cause matters.
                StoreErrorKind::Corrupt => error.to_string(),
                kind => kind.name().to_owned(),
            };
            return End::Failed { kind, may_have_charged: error.may_have_charged() };
        }
    };
    let micros = |wait: Duration| u64::try_from(wait.as_micros()).unwrap_or(u64::MAX);
    for (place, (part, status)) in parts.iter_mut().zip(decision.statuses()).enumerate() {
        part.seen = decision.failure(place).is_none().then(|| Seen {
            fits: status.allowed(),
            remaining: Some(status.remaining()),
            retry_after: Some(status.retry_after().map(micros)),
            reset_after: Some(micros(status.reset_after())),
        });
    }
    End::Decided {
        allowed: decision.allowed(),
        at: decision.decided_at().map(tallygate::clock::Timestamp::as_micros),
        split: decision.split(),
        source: decision.source().name().to_owned(),
    }
}

/// Posts on a kept connection, or on a new one.
///
/// # Errors
/// When no response comes.
pub async fn post(
    kept: &mut Option<HttpClient>,
    scene: &Scene,
    path: &str,
    body: &str,
) -> std::io::Result<crate::served::Response> {
    let addr = scene.world.served.as_ref().expect("a world with a server").addr();
    let mut client = match kept.take() {
        Some(client) => client,
        None => HttpClient::open(addr).await?,
    };
    let response = client.post(path, body).await?;
    *kept = Some(client);
    Ok(response)
}

/// What the server says of a decision.
fn judged(answer: std::io::Result<crate::served::Response>, world: &World, parts: &mut [Part]) -> End {
    let (status, body) = match answer {
        Ok(response) => response,
        Err(error) => return End::Failed { kind: format!("http: {:?}", error.kind()), may_have_charged: true },
    };
    let body = serde_json::from_slice::<Value>(&body).unwrap_or_default();
    let Some(allowed) = body["allowed"].as_bool() else {
        let code = body["code"].as_str().unwrap_or("?").to_owned();
        return End::Failed { kind: format!("http {status} {code}"), may_have_charged: true };
    };
    // The statuses of one policy are in the order of the descriptors.
    let statuses = body["statuses"].as_array().map_or(&[][..], Vec::as_slice);
    for place in 0..parts.len() {
        let policy = |part: &Part| world.keys[part.key].policy.trim_start_matches("t/").to_owned();
        let name = policy(&parts[place]);
        let before = parts[..place].iter().filter(|part| policy(part) == name).count();
        let status = statuses.iter().filter(|status| status["policy"] == *name).nth(before);
        parts[place].instead = status.and_then(|status| match status["source"].as_str()? {
            "on_error_allow" => Some(Instead::Allow),
            "on_error_deny" => Some(Instead::Deny),
            "on_error_local" => Some(Instead::Local),
            _ => None,
        });
        parts[place].seen = status.filter(|status| status["source"] == "store").map(|status| Seen {
            fits: status["allowed"].as_bool().unwrap_or(false),
            remaining: status["remaining"].as_u64(),
            retry_after: None,
            reset_after: None,
        });
    }
    End::Decided {
        allowed,
        at: body["decided_at_us"].as_u64(),
        split: body["split"].as_bool().unwrap_or(false),
        source: body["source"].as_str().unwrap_or("?").to_owned(),
    }
}
