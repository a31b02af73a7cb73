//! One round: a schedule is run, and what was recorded is checked.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tallygate::call::{Call as Asked, Verb};
use tallygate::hold::HoldTerms;
use tallygate::{Check, Key, Limiter};
use tallygate_redis::RedisStore;
use tallygate_testkit::Reply;
use tallygate_testkit::random::Random;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::caller::{self, Leaving, Plan, Scene, Way};
use crate::checker::{self, Checked, Facts};
use crate::detail::{self, Detail};
use crate::history::{Log, Loss, LossKind, Part, Peeked, Recorder, Violation};
use crate::holder;
use crate::nemesis;
use crate::schedule::Schedule;
use crate::world::{Nodes, World};

/// What a round found.
#[derive(Debug, Default)]
pub struct Outcome {
    /// What was checked, and every violation.
    pub checked: Checked,
    /// Faults by kind.
    pub faults: BTreeMap<String, u64>,
    /// Calls, hang-ups included, floods excluded.
    pub calls: u64,
    /// Holds that were granted.
    pub holds: u64,
    /// Keys looked at after the round.
    pub keys: u64,
    /// Those without a TTL.
    pub orphans: u64,
    /// Panics in the server's log.
    pub panics: u64,
    /// How late this process was woken at most, in microseconds.
    pub late: u64,
    /// How long a thread of the server process waited for a processor at most from one look to the next, in microseconds.
    pub server_late: u64,
    /// Whether Sentinels have switched to another master by themselves: answers were then judged without the history.
    pub unasked_switch: bool,
    /// What each fault did to its callers.
    pub details: Vec<Detail>,
    /// How long it took.
    pub took: Duration,
    /// Everything that was recorded.
    pub log: Log,
}

/// Runs a schedule. A round that cannot go on, because a process does not come up or does not recover, is a violation.
#[must_use]
pub fn run(schedule: &Schedule) -> Outcome {
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run_unguarded(schedule)));
    caught.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        let violations = vec![Violation::new("the round can go on", text.unwrap_or_default())];
        Outcome { checked: Checked { violations, ..Checked::default() }, ..Outcome::default() }
    })
}

fn run_unguarded(schedule: &Schedule) -> Outcome {
    let start = Instant::now();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let mut outcome = runtime.expect("threads can be started").block_on(run_in(schedule));
    outcome.took = start.elapsed();
    outcome
}

async fn run_in(schedule: &Schedule) -> Outcome {
    let world = tokio::task::block_in_place(|| World::start(schedule));
    let mut stores = Vec::new();
    if !schedule.served {
        for _ in 0..schedule.load.clients {
            let builder = RedisStore::builder(&world.url()).deadline(schedule.load.deadline);
            stores.push(builder.connect().await.expect("the store accepts"));
        }
    }
    let scene = Scene { world, recorder: Recorder::default(), gate: Default::default(), over: AtomicBool::new(false) };
    let scene = Arc::new(scene);
    let direct = RedisStore::builder(&scene.world.direct_url()).deadline(Duration::from_secs(5));
    spend(&scene, &direct.clone().connect().await.expect("the store accepts")).await;
    let usage_before = scene.world.served.as_ref().map(crate::served::Served::usage);

    let ticker = thread::spawn({
        let scene = Arc::clone(&scene);
        move || tick(&scene)
    });
    let watcher = thread::spawn({
        let scene = Arc::clone(&scene);
        move || watch_switches(&scene)
    });
    let server_watcher = thread::spawn({
        let scene = Arc::clone(&scene);
        move || watch_server(&scene)
    });
    // Callers are tasks: they also wait for the threads that run them.
    let task_ticker = tokio::spawn(tick_as_task(Arc::clone(&scene)));
    let mut random = Random::new(schedule.seed ^ 0xC0FF_EE00);
    let mut callers = JoinSet::new();
    for place in 0..schedule.load.callers {
        let way = if stores.is_empty() { Way::Http(None) } else { Way::Library(stores[place % stores.len()].clone()) };
        callers.spawn(caller::run(Arc::clone(&scene), way, Random::new(random.number())));
    }
    for _ in 0..HOLDERS {
        let deadline = schedule.load.deadline.max(Duration::from_millis(50));
        let store = RedisStore::builder(&scene.world.url()).deadline(deadline).connect().await;
        let limiter = Limiter::new(store.expect("the store accepts"));
        callers.spawn(holder::run(Arc::clone(&scene), limiter, Random::new(random.number())));
    }
    for step in &schedule.steps {
        nemesis::inject(&scene, step, &stores, &mut random).await;
    }
    sleep(Duration::from_millis(schedule.tail)).await;
    scene.over.store(true, Ordering::Relaxed);
    if timeout(Duration::from_secs(30), callers.join_all()).await.is_err() {
        scene.recorder.violation(Violation::new("a call ends", "a caller still waited 30 s after the last fault"));
    }
    // What was sent and not answered has run by now, and so have refunds.
    sleep(Duration::from_millis(700)).await;
    ticker.join().expect("the ticker ends with the round");
    task_ticker.await.expect("the ticker ends with the round");
    watcher.join().expect("the watcher ends with the round");
    server_watcher.join().expect("the watcher ends with the round");
    let direct = direct.connect().await.expect("the store accepts");
    peek(&scene, &direct).await;
    tokio::task::block_in_place(|| finish(&scene, schedule, usage_before))
}

/// Uses up the state whose calls must be denied.
async fn spend(scene: &Scene, store: &RedisStore) {
    let part = Part::new(scene.world.spent(), 1);
    let plan = Plan { parts: vec![part], cost: 1, descriptors: Vec::new(), leaving: Leaving::Never };
    let call = Way::Library(store.clone()).call(scene, plan, true).await;
    assert!(call.allowed(), "the first unit is free: {call:?}");
    scene.recorder.call(call);
}

/// How many tasks reserve and settle.
const HOLDERS: usize = 3;

const TICK: Duration = Duration::from_millis(2);

/// Shorter delays are not recorded, in microseconds.
const LATE: u64 = 2000;

/// Records how late a thread of this process is woken.
fn tick(scene: &Scene) {
    while !scene.over.load(Ordering::Relaxed) {
        let start = Instant::now();
        thread::sleep(TICK);
        record_lateness(scene, start);
    }
}

/// Records how late a task is woken.
async fn tick_as_task(scene: Arc<Scene>) {
    while !scene.over.load(Ordering::Relaxed) {
        let start = Instant::now();
        sleep(TICK).await;
        record_lateness(&scene, start);
    }
}

fn record_lateness(scene: &Scene, start: Instant) {
    let late = u64::try_from(start.elapsed().saturating_sub(TICK).as_micros()).unwrap_or(u64::MAX);
    if late > LATE {
        let now = scene.recorder.now();
        scene.recorder.with(|log| log.late.push((now, late)));
    }
}

/// Records how long the threads of the server process wait for a processor. The kernel counts a wait when it ends.
fn watch_server(scene: &Scene) {
    let Some(served) = &scene.world.served else { return };
    // A thread that is new is known from the next look on.
    let mut known: HashMap<OsString, u64> = served.run_delays().into_iter().collect();
    while !scene.over.load(Ordering::Relaxed) {
        thread::sleep(10 * TICK);
        for (thread, delay) in served.run_delays() {
            let before = known.insert(thread, delay).unwrap_or(delay);
            let late = delay.saturating_sub(before);
            if late > LATE {
                let now = scene.recorder.now();
                scene.recorder.with(|log| log.server_late.push((now, late)));
            }
        }
    }
}

/// Records when the Sentinels switch to another master.
fn watch_switches(scene: &Scene) {
    let Nodes::Sentinel(sentinel) = &scene.world.nodes else { return };
    let mut known = 0;
    while !scene.over.load(Ordering::Relaxed) {
        let switches = sentinel.switches();
        if switches > known {
            let now = scene.recorder.now();
            scene.recorder.with(|log| log.switches.push(now));
            known = switches;
        }
        thread::sleep(Duration::from_millis(50));
    }
}

async fn peek(scene: &Scene, store: &RedisStore) {
    let mut peeked = Vec::new();
    for state in &scene.world.keys {
        let key = Key::new(&state.policy, &state.subject).expect("short names");
        let terms = state.holds.map(|on_abandon| HoldTerms::DEFAULT.with_on_abandon(on_abandon));
        let checks = [Check::new(key, &state.limit).with_holds(terms.as_ref())];
        let sent = scene.recorder.now();
        let answer = Asked::new(Verb::Peek, &checks).expect("a valid call").ask(store).await;
        let answer = answer.unwrap_or_else(|error| panic!("the store answers after the round: {error}"));
        let status = answer.binding();
        peeked.push(Some(Peeked {
            at: answer.decided_at().expect("the store was asked").as_micros(),
            sent,
            remaining: status.remaining(),
            reset_after: u64::try_from(status.reset_after().as_micros()).unwrap_or(u64::MAX),
            held: status.held(),
        }));
    }
    scene.recorder.with(|log| log.peeked = peeked);
}

fn finish(scene: &Scene, schedule: &Schedule, usage_before: Option<(u64, usize)>) -> Outcome {
    let mut outcome = Outcome::default();
    (outcome.keys, outcome.orphans) = orphans(scene);
    if let (Some(served), Some((memory_before, files_before))) = (&scene.world.served, usage_before) {
        let log = served.daemon.log();
        outcome.panics = log.lines().filter(|line| line.contains("panicked at")).count() as u64;
        let (memory, files) = served.usage();
        // Connections of callers that have left may take a moment; a flood leaves some memory to the allocator.
        if memory > memory_before + 150 || files > files_before + 200 {
            let what = format!("{memory_before} to {memory} MiB, {files_before} to {files} descriptors");
            scene.recorder.violation(Violation::new("memory and descriptors stay flat", what));
        }
        if outcome.panics > 0 {
            let line = log.lines().find(|line| line.contains("panicked at")).unwrap_or_default();
            scene.recorder.violation(Violation::new("no panics", line));
        }
    }
    if outcome.orphans > 0 {
        let what = format!("{} of {} keys", outcome.orphans, outcome.keys);
        scene.recorder.violation(Violation::new("every key expires", what));
    }
    let mut log = scene.recorder.take();
    outcome.unasked_switch = log.has_unasked_switch();
    if outcome.unasked_switch {
        log.losses = vec![Loss { keys: None, from: 0, to: u64::MAX, kind: LossKind::Repeated }];
    }
    let facts = Facts {
        keys: scene.world.keys.clone(),
        deadline: u64::try_from(schedule.load.deadline.as_micros()).expect("small"),
        step_back: checker::step_back(schedule.flavour),
        spent: Some(scene.world.spent()),
    };
    outcome.checked = checker::check(&log, &facts);
    outcome.calls = log.calls.len() as u64;
    outcome.holds = log.holdings.iter().filter(|holding| holding.granted).count() as u64;
    let longest = |late: &[(u64, u64)]| late.iter().map(|(_, late)| *late).max().unwrap_or(0);
    (outcome.late, outcome.server_late) = (longest(&log.late), longest(&log.server_late));
    outcome.details = detail::details(&log);
    for injected in &log.injected {
        *outcome.faults.entry(injected.fault.kind()).or_default() += 1;
    }
    outcome.log = log;
    outcome
}

/// All keys of ours, and how many of them have no TTL.
fn orphans(scene: &Scene) -> (u64, u64) {
    let (mut count, mut orphans) = (0, 0);
    for server in scene.world.servers() {
        let mut connection = server.connect().expect("the server accepts");
        // Replicas of a cluster answer only then; elsewhere it is an error that changes nothing.
        let _ = connection.call(&["READONLY"]);
        let keys = connection.call(&["KEYS", "tallygate:*"]).expect("the server answers");
        for key in keys.items() {
            let Reply::Bulk(key) = key else { panic!("not a key: {key:?}") };
            // A key of a slot that has just moved is answered by its new server.
            if let Reply::Int(left) = connection.call(&[b"PTTL".as_slice(), key]).expect("the server answers") {
                count += 1;
                orphans += u64::from(left == -1);
            }
        }
    }
    (count, orphans)
}
