//! Examines the servers of a store: what could break a guarantee, and the setting that prevents it.
//!
//! Reading and judging are apart: `facts`, `side` and `trial` ask servers, and every `judge` is a function of what they
//! said, so that no reply, however odd, can do more than make a finding unknown.

mod clients;
mod clock;
mod cluster;
mod diagnosis;
mod facts;
mod finding;
mod memory;
mod replication;
mod sentinel;
mod side;
mod trial;
mod version;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use redis::{Pipeline, Value};
use tallygate::StoreError;
use tallygate::clock::Clock;
use tallygate::store::StoreErrorKind;
use tokio::time::{Instant, sleep};

use crate::audit::{Audit, Sweep};
use crate::builder::{ConnectError, check_prefix};
use crate::connection::{Client, Deadline, Node, Request, Settings};
use crate::store::RedisStore;
use crate::url::{Address, Place, StoreUrl};
use clock::{Begun, Reading};
use cluster::Nodes;
pub use diagnosis::{Charge, Diagnosis, ServerFigures};
use facts::{Facts, Fields, Missing, Reader, text};
pub use finding::{DoctorCheck, Finding, Severity};
pub use trial::Latency;

/// For a call of the doctor: longer than that of a service, so that a slow store is measured and not cut off.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long clocks are watched for jumps, and how often they are read.
const CLOCK_WATCH: Duration = Duration::from_secs(1);
const CLOCK_STEP: Duration = Duration::from_millis(50);
/// Subjects that are tried until one belongs to a node: enough for one with a thousandth of the slots.
const SUBJECTS: usize = 8192;
/// Keys that an examination looks through: seconds, not minutes. `tallygate audit` has no limit.
const KEYS: u64 = 1_000_000;

/// Examines a store over connections of its own.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
/// use tallygate_redis::Doctor;
///
/// let doctor = Doctor::connect("redis://127.0.0.1:6379", "tallygate", Duration::from_millis(15)).await?;
/// for finding in doctor.examine(|step| println!("{step}")).await.findings {
///     println!("{}: {} {}", finding.check, finding.found, finding.remedy);
/// }
/// # Ok(()) }
/// ```
pub struct Doctor {
    /// With the password: never printed.
    text: String,
    url: StoreUrl,
    prefix: String,
    deadline: Duration,
    client: Client,
    reader: Reader,
    clock: Clock,
    /// By address, so that a regular watch keeps its connections.
    nodes: Mutex<HashMap<String, Arc<Node>>>,
    /// The last reading of each clock.
    readings: Mutex<HashMap<String, Reading>>,
    store: tokio::sync::Mutex<Option<RedisStore>>,
}

impl Doctor {
    /// Connects. `deadline` is that of the calls to judge for: 15 ms in the server by default.
    pub async fn connect(url: &str, prefix: &str, deadline: Duration) -> Result<Self, ConnectError> {
        check_prefix(prefix)?;
        let parsed: StoreUrl = url.parse()?;
        let client = Client::connect(&parsed, Settings::default()).await?;
        Ok(Self {
            text: url.to_owned(),
            url: parsed,
            prefix: prefix.to_owned(),
            deadline,
            client,
            reader: Reader::default(),
            clock: Clock::system(),
            nodes: Mutex::default(),
            readings: Mutex::default(),
            store: tokio::sync::Mutex::default(),
        })
    }

    /// All of it: about three seconds, and longer with many keys. `progress` gets what is being examined.
    pub async fn examine(&self, mut progress: impl FnMut(&str)) -> Diagnosis {
        progress("reading settings");
        let (mut diagnosis, nodes) = self.facts(true).await;
        progress("watching clocks");
        self.watch_clocks(&mut diagnosis, &nodes).await;
        if let Place::Sentinel { sentinels, master, login } = &self.url.place {
            progress("asking sentinels");
            let mut views = Vec::new();
            for sentinel in sentinels {
                views.push(sentinel::look(sentinel, master, login, self.url.tls).await);
            }
            diagnosis.findings.extend(sentinel::judge(&views));
        }
        progress("making calls");
        self.try_calls(&mut diagnosis, &nodes, &mut progress).await;
        for node in &nodes {
            let slow = self.reader.ask(node, "slowlog|get", &["SLOWLOG", "GET", "128"]).await;
            let finding = match slow {
                Ok(reply) => trial::judge_slow(&reply, self.deadline),
                Err(missing) => unknown(DoctorCheck::SlowCommands, &missing),
            };
            diagnosis.add(&node.address().to_string(), [finding]);
        }
        diagnosis.findings.push(self.keys(&mut progress).await);
        diagnosis
    }

    /// What a running server watches: `INFO`, `TIME` and `CLUSTER INFO` of each master, and every script on a key of its own; a few
    /// milliseconds in all. Sends no `CONFIG`. What the user may not read is not asked for again.
    pub async fn watch(&self) -> Diagnosis {
        let (mut diagnosis, nodes) = self.facts(false).await;
        let (store, mut spread) = (self.store().await, Vec::new());
        for node in &nodes {
            let address = node.address().to_string();
            if let (Ok(store), Some(subject)) = (&store, self.subject_of(node).await) {
                diagnosis.add(&address, trial::refused_script(store, &subject).await);
            }
            let Some(reading) = self.read_clock(node).await else { continue };
            let before = self.readings.lock().unwrap_or_else(PoisonError::into_inner).insert(address.clone(), reading);
            let jump = before.and_then(|before| reading.jump_since(&before));
            diagnosis.note_clock(&address, &reading, jump);
            spread.push((address, reading));
        }
        diagnosis.findings.extend(clock::judge_spread(&spread));
        diagnosis
    }

    /// Charges one call on each master, on a key of its own, and removes the key.
    pub async fn charge(&self) -> Vec<Charge> {
        let nodes = self.masters().await;
        let store = match self.store().await {
            Ok(store) => store,
            Err(error) => {
                let result = trial::is_refusal(&error).then_some(Err(error));
                let charge = |node: &Arc<Node>| Charge { server: node.address().to_string(), result: result.clone() };
                return nodes.iter().map(charge).collect();
            }
        };
        let mut charges = Vec::new();
        for node in &nodes {
            let mut result = None;
            if let Some(subject) = self.subject_of(node).await {
                let charged = trial::charge(&store, &subject).await;
                if charged.is_ok() {
                    trial::forget(&store, &subject).await;
                }
                result = Some(charged).filter(|charged| charged.as_ref().err().is_none_or(trial::is_refusal));
            }
            charges.push(Charge { server: node.address().to_string(), result });
        }
        charges
    }

    /// The masters over connections that are kept.
    async fn masters(&self) -> Vec<Arc<Node>> {
        let masters = self.client.masters().await;
        let mut nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = |node: Arc<Node>| {
            let known = nodes.get(&node.address().to_string()).cloned();
            known.unwrap_or(node)
        };
        let masters: Vec<Arc<Node>> = masters.into_iter().map(kept).collect();
        *nodes = masters.iter().map(|node| (node.address().to_string(), Arc::clone(node))).collect();
        masters
    }

    /// Connects on first use: a user who may not run the scripts is a finding, not an error.
    async fn store(&self) -> Result<RedisStore, StoreError> {
        let mut store = self.store.lock().await;
        if let Some(store) = &*store {
            return Ok(store.clone());
        }
        let connected = RedisStore::builder(&self.text).prefix(&self.prefix).deadline(PATIENCE).connect().await;
        let connected = connected.map_err(|error| match error {
            ConnectError::Store(error) => error,
            other => StoreError::unavailable(other.to_string()),
        })?;
        *store = Some(connected.clone());
        Ok(connected)
    }

    /// What the masters say about themselves; those that answer.
    async fn facts(&self, settings: bool) -> (Diagnosis, Vec<Arc<Node>>) {
        let (mut diagnosis, mut answering) = (Diagnosis::default(), Vec::new());
        let mut views = Vec::new();
        let needs_replicas = !matches!(self.url.place, Place::Single(_));
        for node in self.masters().await {
            let address = node.address().to_string();
            let info = self.reader.info(&node).await;
            if let Err(missing) = &info
                && missing.unreachable
            {
                diagnosis.add(&address, [unreachable(missing)]);
                continue;
            }
            let asked = if settings { self.reader.settings(&node).await } else { Ok(Fields::default()) };
            let facts = Facts { address: address.clone(), info, settings: asked };
            diagnosis.servers.push(ServerFigures::of(&facts));
            diagnosis.add(&address, [version::judge(&facts)]);
            diagnosis.add(&address, memory::judge(&facts));
            diagnosis.add(&address, [clients::judge(&facts)]);
            // Without the settings too little is known of these to warn of them.
            if settings {
                diagnosis.add(&address, [replication::persistence(&facts), clients::script_limit(&facts)]);
            } else {
                let persistence = replication::persistence(&facts);
                diagnosis.add(&address, (persistence.severity != Severity::Unknown).then_some(persistence));
            }
            diagnosis.add(&address, [replication::judge(&facts, needs_replicas)]);
            if self.client.is_cluster() && settings {
                diagnosis.add(&address, cluster::judge_settings(&facts));
                match self.reader.ask(&node, "cluster|nodes", &["CLUSTER", "NODES"]).await {
                    Ok(reply) => views.push(Nodes::parse(&text(&reply).unwrap_or_default())),
                    Err(missing) => diagnosis.add(&address, [unknown(DoctorCheck::Cluster, &missing)]),
                }
            }
            answering.push(node);
        }
        diagnosis.findings.extend(cluster::judge_nodes(&views));
        if self.client.is_cluster()
            && let Some(node) = answering.first()
        {
            diagnosis.findings.push(match self.reader.ask(node, "cluster|info", &["CLUSTER", "INFO"]).await {
                Ok(reply) => cluster::judge_state(&Fields::of_text(&text(&reply).unwrap_or_default())),
                Err(missing) => unknown(DoctorCheck::Cluster, &missing),
            });
        }
        (diagnosis, answering)
    }

    async fn read_clock(&self, node: &Arc<Node>) -> Option<Reading> {
        let begun = Begun::new(&self.clock);
        begun.end(&self.reader.ask(node, "time", &["TIME"]).await.ok()?)
    }

    /// Masters for a second, replicas once.
    async fn watch_clocks(&self, diagnosis: &mut Diagnosis, nodes: &[Arc<Node>]) {
        let mut readings: Vec<Vec<Reading>> = vec![Vec::new(); nodes.len()];
        let began = Instant::now();
        while began.elapsed() < CLOCK_WATCH {
            for (node, readings) in nodes.iter().zip(&mut readings) {
                readings.extend(self.read_clock(node).await);
            }
            sleep(CLOCK_STEP).await;
        }
        let mut spread = Vec::new();
        for (node, readings) in nodes.iter().zip(&readings) {
            let address = node.address().to_string();
            match clock::best(readings) {
                Some(best) => {
                    diagnosis.note_clock(&address, &best, clock::jump(readings));
                    spread.push((address, best));
                }
                None => {
                    let unknown = Finding::unknown(DoctorCheck::Clock, "the server does not say the time");
                    diagnosis.add(&address, [unknown.fix("give the user the rule +time")]);
                }
            }
        }
        for (address, replica) in self.replicas(nodes).await {
            let mut readings = Vec::new();
            if let Ok(mut side) = side::Side::open(&replica, &self.url.login, self.url.tls).await {
                for _ in 0..5 {
                    let begun = Begun::new(&self.clock);
                    readings.extend(side.ask(&["TIME"]).await.ok().and_then(|reply| begun.end(&reply)));
                }
            }
            spread.extend(clock::best(&readings).map(|best| (address, best)));
        }
        diagnosis.findings.extend(clock::judge_spread(&spread));
    }

    /// A failover goes to one of these.
    async fn replicas(&self, nodes: &[Arc<Node>]) -> Vec<(String, Address)> {
        let mut replicas = HashMap::new();
        for node in nodes {
            if let Ok(info) = self.reader.info(node).await {
                for replica in replication::replicas(&info) {
                    let address = Address::beside(&replica.host, replica.port, node.address());
                    replicas.insert(address.to_string(), address);
                }
            }
        }
        replicas.into_iter().collect()
    }

    async fn try_calls(&self, diagnosis: &mut Diagnosis, nodes: &[Arc<Node>], progress: &mut impl FnMut(&str)) {
        let store = match self.store().await {
            Ok(store) => store,
            Err(error) => {
                // The store tries every command on connecting.
                let refused = error.kind() == StoreErrorKind::Refused;
                let finding =
                    if refused { trial::not_run("scripts", &error) } else { trial::judge_charge(&Err(error)) };
                diagnosis.findings.push(finding);
                return;
            }
        };
        for node in nodes {
            let address = node.address().to_string();
            let Some(subject) = self.subject_of(node).await else {
                diagnosis
                    .add(&address, [Finding::unknown(DoctorCheck::Charge, "no key was found that this node serves")]);
                continue;
            };
            let charged = trial::charge(&store, &subject).await;
            diagnosis.add(&address, [trial::judge_charge(&charged), trial::permissions(&store, &subject).await]);
            let timed = |done| progress(&format!("timing decisions on {address}: {done}"));
            if let Ok(latency) = trial::time(&store, &subject, timed).await {
                diagnosis.add(&address, [trial::judge_latency(&latency, self.deadline)]);
                let figures = diagnosis.servers.iter_mut().find(|figures| figures.address == address);
                figures.into_iter().for_each(|figures| figures.latency = Some(latency));
            }
        }
    }

    /// A subject whose keys this master serves. Without a cluster it serves all.
    async fn subject_of(&self, node: &Arc<Node>) -> Option<String> {
        if !self.client.is_cluster() {
            return Some("0".to_owned());
        }
        for first in (0..SUBJECTS).step_by(64) {
            let subjects: Vec<String> = (first..first + 64).map(|number| number.to_string()).collect();
            let mut gets = Pipeline::with_capacity(subjects.len());
            for subject in &subjects {
                gets.cmd("GET").arg(format!("{}:{{{subject}}}:{}", self.prefix, trial::POLICY));
            }
            let reply = node.send(Request::Pipeline(&gets), Deadline::for_command()).await.ok()?;
            let Value::Array(replies) = reply else { return None };
            // An error is a redirection, or a slot that nobody serves.
            let served = replies.iter().position(|reply| !matches!(reply, Value::ServerError(_)));
            if let Some(subject) = served.and_then(|place| subjects.get(place)) {
                return Some(subject.clone());
            }
        }
        None
    }

    async fn keys(&self, progress: &mut impl FnMut(&str)) -> Finding {
        let check = DoctorCheck::KeysWithoutTtl;
        let looked = async {
            let sweep = Sweep { at_most: KEYS, ..Sweep::of(&self.prefix)? };
            let audit = Audit::connect(&self.text).await?;
            Ok::<_, ConnectError>(audit.run(&sweep, |keys| progress(&format!("{keys} keys seen"))).await?)
        };
        let report = match looked.await {
            Ok(report) => report,
            Err(error) => {
                let error = error.to_string();
                let (why, remedy) = error.split_once("; ").unwrap_or((&error, ""));
                return Finding::unknown(check, why).fix(remedy);
            }
        };
        let seen = if report.complete {
            format!("{} key{}", report.keys, if report.keys == 1 { "" } else { "s" })
        } else {
            format!("the first {} keys (`tallygate audit` looks at all)", report.keys)
        };
        if report.orphans == 0 {
            return Finding::ok(check, format!("none in {seen}"));
        }
        Finding::problem(check, format!("{} in {seen}", report.orphans))
            .means(10, "they stay for ever and fill the memory; tallygate writes no such key")
            .fix("find out what writes them or removes their TTL, then run `tallygate audit --repair`")
    }
}

fn unknown(check: DoctorCheck, missing: &Missing) -> Finding {
    Finding::unknown(check, &missing.why).fix(&missing.remedy)
}

fn unreachable(missing: &Missing) -> Finding {
    Finding::problem(DoctorCheck::Reachable, &missing.why)
        .means(6, "calls on the keys of this server end in an error, and on_error answers them")
        .fix("start the server, or repair the network to it")
}
