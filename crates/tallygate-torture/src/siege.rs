//! Faults that callers cause: floods, hang-ups, slow bodies, calls of many checks, and calls of many policies to a store
//! that is far away. Each says by itself what must hold meanwhile.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::json;
use tallygate::call::{Call, Verb};
use tallygate::{Check, Key};
use tallygate_redis::RedisStore;
use tallygate_testkit::random::Random;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::caller::{Leaving, Plan, Scene, Way, attack, post};
use crate::grpc::{Code, GrpcClient};
use crate::history::{End, Part, Violation};
use crate::served::{FLOOD_LIMIT, HttpClient, SHADOWS};

/// Callers over their own limit leave at every point. Nobody else may pay for it: no fault is active, so what is used of
/// the states beside theirs must be the same as before.
pub async fn hang_ups(scene: &Arc<Scene>, ways: Vec<Way>, calls: u64, random: &mut Random) {
    // Refunds of faults before must be over, and those of these calls before the next.
    sleep(Duration::from_millis(500)).await;
    let direct = RedisStore::builder(&scene.world.direct_url()).deadline(Duration::from_secs(5));
    let direct = direct.connect().await.expect("no fault is active");
    let spent = scene.world.spent();
    if remaining(scene, &direct, spent).await > 0 {
        // Its state was lost.
        let parts = vec![Part::new(spent, 1)];
        let plan = Plan { parts, cost: 1, descriptors: Vec::new(), leaving: Leaving::Never };
        let call = Way::Library(direct.clone()).call(scene, plan, true).await;
        scene.recorder.call(call);
    }
    let from = scene.recorder.now();
    let before = [remaining(scene, &direct, spent + 1).await, remaining(scene, &direct, spent + 2).await];
    let each = calls / ways.len().max(1) as u64;
    let mut callers = JoinSet::new();
    for mut way in ways {
        let (scene, mut random) = (Arc::clone(scene), Random::new(random.number()));
        callers.spawn(async move {
            for _ in 0..each {
                let plan = attack(&scene.world, &mut random);
                let call = way.call(&scene, plan, false).await;
                scene.recorder.call(call);
            }
        });
    }
    callers.join_all().await;
    sleep(Duration::from_millis(500)).await;
    let after = [remaining(scene, &direct, spent + 1).await, remaining(scene, &direct, spent + 2).await];
    // On a busy machine commands miss their deadline: what they charge stays, as documented (guarantees, section 6).
    let missed = scene.recorder.with(|log| {
        let answered = log.calls.iter().filter(|call| call.sent >= from && call.end != End::HungUp);
        answered.filter(|call| !call.by_store() && !call.by_grpc()).count()
    });
    let tolerated = if missed > 0 { calls / 4 } else { 0 };
    let lost = before.iter().zip(&after).map(|(before, after)| before.abs_diff(*after)).max().unwrap_or(0);
    if lost > tolerated && remaining(scene, &direct, spent).await == 0 {
        let what = format!(
            "{calls} calls of a caller who has nothing left, most of them dropped: the states beside his had {before:?} units left and now have {after:?}"
        );
        scene.recorder.violation(Violation::new("denied calls charge nobody", what));
    }
}

async fn remaining(scene: &Scene, store: &RedisStore, key: usize) -> u64 {
    let state = &scene.world.keys[key];
    let checks = [Check::new(Key::new(&state.policy, &state.subject).expect("short names"), &state.limit)];
    let peek = Call::new(Verb::Peek, &checks).expect("a valid call").ask(store).await;
    peek.expect("no fault is active").binding().remaining()
}

/// What a flood got.
#[derive(Debug, Clone, Default)]
pub struct Flooded {
    /// Calls by the status of their answer.
    pub by_status: BTreeMap<u16, u64>,
    /// What they may have been admitted in all.
    pub bound: u64,
    /// How long each took, in microseconds, in order.
    pub took: Vec<u64>,
}

impl Flooded {
    /// Answers.
    #[must_use]
    pub fn answered(&self) -> u64 {
        self.by_status.values().sum()
    }

    /// Those that let the caller pass.
    #[must_use]
    pub fn admitted(&self) -> u64 {
        self.by_status.get(&200).copied().unwrap_or(0)
    }
}

/// Waits until what a fault before has left is over: the store must be healthy when a flood begins.
async fn answers_again(scene: &Arc<Scene>) {
    let body = json!({"domain": "t", "descriptors": [{"flood": "deny", "f": "before"}]}).to_string();
    for _ in 0..100 {
        if let Ok((_, answer)) = post(&mut None, scene, "/v1/check", &body).await
            && String::from_utf8_lossy(&answer).contains("\"source\":\"store\"")
        {
            return;
        }
        sleep(Duration::from_millis(20)).await;
    }
}

/// Many connections at once, for one subject of one limit, while the store is healthy: the limit still holds.
pub async fn flood(scene: &Arc<Scene>, connections: u64, time: Duration, on_error: &str, number: u64) -> Flooded {
    answers_again(scene).await;
    let body = json!({"domain": "t", "descriptors": [{"flood": on_error, "f": format!("f{number}")}]}).to_string();
    // Its own share comes on top, where a server may answer with local states.
    let bound = if on_error == "local" { 2 * FLOOD_LIMIT } else { FLOOD_LIMIT };
    let flooded = Arc::new(Mutex::new(Flooded { bound, ..Flooded::default() }));
    let until = Instant::now() + time;
    let mut callers = JoinSet::new();
    for _ in 0..connections {
        let (scene, body, flooded) = (Arc::clone(scene), body.clone(), Arc::clone(&flooded));
        callers.spawn(async move {
            let mut kept = None;
            while Instant::now() < until {
                let start = Instant::now();
                if let Ok((status, _)) = post(&mut kept, &scene, "/v1/check", &body).await {
                    let micros = u64::try_from(start.elapsed().as_micros()).unwrap_or(u64::MAX);
                    let mut flooded = flooded.lock().expect("no caller panics");
                    *flooded.by_status.entry(status).or_default() += 1;
                    flooded.took.push(micros);
                }
            }
        });
    }
    // Callers that still wait get an answer at the server's own timeout.
    let _ = tokio::time::timeout(time + Duration::from_secs(15), callers.join_all()).await;
    let mut flooded = flooded.lock().expect("no caller panics").clone();
    flooded.took.sort_unstable();
    if flooded.admitted() > bound {
        let what = format!(
            "{connections} connections with `on_error: {on_error}` on a healthy store: {} of {} calls admitted, the bound is {bound}",
            flooded.admitted(),
            flooded.answered()
        );
        scene.recorder.violation(Violation::new("a flood stays within the bound (A3)", what));
    }
    flooded
}

/// Callers that leave after three milliseconds, again and again, while the store hangs. Returns how many calls they made,
/// and how many units were charged to nobody.
pub async fn leavers(scene: &Arc<Scene>, ways: Vec<Way>, time: Duration) -> (u64, u64) {
    let direct = RedisStore::builder(&scene.world.direct_url()).deadline(Duration::from_secs(5));
    let direct = direct.connect().await.expect("no fault is active");
    let key = scene.world.spent() + 1;
    let before = remaining(scene, &direct, key).await;
    let server = &scene.world.servers()[0];
    server.stop();
    let until = Instant::now() + time;
    let mut callers = JoinSet::new();
    for mut way in ways {
        let scene = Arc::clone(scene);
        callers.spawn(async move {
            let mut calls = 0;
            while Instant::now() < until {
                let leaving = Leaving::After(Duration::from_millis(3));
                let descriptors = vec![json!({"tenant": "acme"})];
                let plan = Plan { parts: vec![Part::new(key, 1)], cost: 1, descriptors, leaving };
                way.call(&scene, plan, true).await;
                calls += 1;
            }
            calls
        });
    }
    let calls = callers.join_all().await.into_iter().sum();
    server.cont();
    // What was sent runs now, and the server is found to be up.
    sleep(Duration::from_secs(1)).await;
    (calls, before - remaining(scene, &direct, key).await)
}

/// Unfinished bodies hold no place that others need.
pub async fn slow_bodies(scene: &Arc<Scene>, connections: u64) {
    let addr = scene.world.served.as_ref().expect("a world with a server").addr();
    let mut open = Vec::new();
    for _ in 0..connections {
        if let Ok(mut client) = HttpClient::open(addr).await {
            let _ = client.send_part().await;
            open.push(client);
        }
    }
    let from = scene.recorder.now();
    sleep(Duration::from_millis(400)).await;
    let shed = scene.recorder.with(|log| {
        let meanwhile = log.calls.iter().filter(|call| call.sent >= from);
        meanwhile.filter(|call| matches!(&call.end, End::Failed { kind, .. } if kind.contains("overloaded"))).count()
    });
    if shed > 0 {
        let what = format!("{connections} unfinished bodies: {shed} other calls were shed");
        scene.recorder.violation(Violation::new("slow bodies hold up nobody (A7)", what));
    }
}

/// More checks than one call may have: an answer that a proxy does not let pass.
pub async fn many_checks(scene: &Arc<Scene>, count: u64) {
    let words: Vec<String> = (0..count).map(|index| format!("tok{index:02}")).collect();
    let entries = json!([{"key": "ip", "value": "10.0.0.1"}, {"key": "ua", "value": words.join(" ")}]);
    let body = json!({"domain": "t", "descriptors": [{"entries": entries}]}).to_string();
    let descriptor = json!({"ip": "10.0.0.1", "ua": words.join(" ")});
    let addr = scene.world.served.as_ref().expect("a world with a server").grpc();
    let asked = async { GrpcClient::open(addr).await?.should_rate_limit(&[descriptor]).await };
    if let Ok(Code::Error(text)) = asked.await {
        let what = format!("a request under {count} policies got the gRPC status {text}");
        scene.recorder.violation(Violation::new("no request provokes an error (A4)", what));
    }
    // Without an answer there is nothing to judge: the server may be stopped by another fault.
    let Ok((status, body)) = post(&mut None, scene, "/json", &body).await else { return };
    if status != 429 {
        let what = format!("a request under {count} policies got {status}: {}", String::from_utf8_lossy(&body));
        scene.recorder.violation(Violation::new("no request provokes an error (A4)", what));
    }
}

/// As many as fit into one call, with a policy that enforces: their shadows need further ones.
const SUBJECTS: usize = 16;

/// One deadline for a decision, whatever it asks.
pub async fn far_store(scene: &Arc<Scene>, millis: u64) {
    let proxy = scene.world.proxy.as_ref().expect("a world with a proxy");
    // Nobody else calls: the proxy delays replies one after the other.
    let gate = scene.gate.write().await;
    proxy.set(tallygate_testkit::Mode::Delay(Duration::from_millis(millis)));
    let mut kept = None;
    let mut took = Vec::new();
    let from = scene.recorder.now();
    for round in 0..12 {
        let mut descriptors = Vec::new();
        for subject in 0..SUBJECTS {
            let descriptor = json!({"u": format!("far{}", round + subject), "shadow": "1", "m0": "1"});
            descriptors.push(descriptor);
        }
        let body = json!({"domain": "t", "descriptors": descriptors}).to_string();
        let start = Instant::now();
        if post(&mut kept, scene, "/v1/check", &body).await.is_ok() {
            took.push(start.elapsed());
        }
    }
    proxy.set(tallygate_testkit::Mode::Pass);
    drop(gate);
    took.sort_unstable();
    let Some(median) = took.get(took.len() / 2) else { return };
    let deadline = scene.world.schedule.load.deadline;
    let starved = Duration::from_micros(scene.recorder.with(|log| log.starved(from, scene.recorder.now())));
    // Half of the calls, so that a busy machine does not count; 25 ms are more than one trip to this store.
    if *median > deadline + Duration::from_millis(25) + 3 * starved {
        let what = format!(
            "store {millis} ms away, {SUBJECTS} subjects under a policy and {SHADOWS} shadows: half of the calls took {median:?} or more, the deadline is {deadline:?}"
        );
        scene.recorder.violation(Violation::new("one deadline per decision (A5)", what));
    }
}
